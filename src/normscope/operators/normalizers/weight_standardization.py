r"""Weight standardization: each filter is centred and divided by its standard deviation before it is used.

``W^_i = gain_i (w_i - mean(w_i)) / sqrt(var(w_i) + eps)``, the mean over the ``n`` inputs of filter ``i``. It is layer
normalization of the weight; the layer then applies ``W^``.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.rounding import as_float64, matrix_norm_sandwich, require_nonnegative, up
from normscope.core.statement import statement
from normscope.graph.ir import Node
from normscope.graph.recognise import name_of
from normscope.operators.normalizer import Normalizer, Symmetry, kinds_by_op, of_the_weight
from normscope.operators.normalizers.layer_norm import layer_norm_each
from normscope.operators.normalizers.moments import standard_deviation
from normscope.operators.quadratic_form import find_root_quotient
from normscope.operators.recognition import divides_filters
from normscope.operators.written_out import Surroundings


@dataclass(frozen=True)
class StandardizationBounds:
    """What standardization makes of a weight, as a matrix with one row per filter."""

    lower: float  #: proved lower bound of ``||W^||_2``
    upper: float  #: proved upper bound of it
    row_norms: Tensor  #: norms of the filters, at most ``|gain_i| sqrt(n)``
    universal: float  #: ``||gain||_2 sqrt(n)``, an upper bound whatever the weight was


def standardized_weight(weight: Tensor, gain: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Return the effective weight in float64, filters along the first axis.

    Args:
        weight: the weight, (outputs, ...).
        gain: one factor per filter (the gain times any fixed scale such as ``1/sqrt(fan_in)``), ``None`` for ones.
        eps: the stabilizer added to the variance, ``>= 0``.

    >>> standardized_weight(torch.tensor([[1.0, 3.0]]), eps=0.0).tolist()
    [[-1.0, 1.0]]
    """
    rows = as_float64(weight, "weight").flatten(1)
    y = rows - rows.mean(dim=1, keepdim=True)
    y = y - y.mean(dim=1, keepdim=True)
    root = (y.square().mean(dim=1, keepdim=True) + require_nonnegative(eps, "eps")).sqrt()
    if bool((root == 0).any()):
        raise InputError("Weight standardization with eps = 0 needs filters that are not constant.")
    gains = torch.ones_like(root) if gain is None else as_float64(gain, "gain").reshape(-1, 1)
    if gains.shape != root.shape:
        raise InputError(f"Expected gain to have one element per filter ({root.shape[0]}), got {gains.shape[0]}.")
    return (y / root * gains).reshape(weight.shape)


@statement("normscope", "Proposition WS-1")
def standardization_bounds(weight: Tensor, gain: Tensor | None = None, eps: float = 1e-5) -> StandardizationBounds:
    """Return the norm of the standardized weight and the bounds that hold for every weight.

    A filter has norm ``|gain_i| sqrt(n) sigma_i/sqrt(sigma_i^2 + eps)`` and sums to zero, so the layer ignores what is
    common to its inputs: ``||W^|| = ||W^ P||``.

    >>> bounds = standardization_bounds(torch.tensor([[1.0, 3.0], [2.0, 0.0]]), eps=0.0)
    >>> round(bounds.upper, 9), round(bounds.universal, 9)
    (2.0, 2.0)
    """
    effective = standardized_weight(weight, gain, eps).flatten(1)
    rows, n = effective.shape
    lower, upper = matrix_norm_sandwich(effective)
    gains = torch.ones(rows, dtype=torch.float64) if gain is None else as_float64(gain, "gain").reshape(-1)
    norms = torch.linalg.vector_norm(effective, dim=1)
    # each filter carries the rounding of its centring, relative to its size before it
    spread = standard_deviation(as_float64(weight, "weight").flatten(1))
    relative = (4.0 * n + 32.0) * 2.0**-53 + 4.0 * float(spread.direction_error.max())
    slack = relative * float(torch.linalg.vector_norm(norms))
    universal = up(float(torch.linalg.vector_norm(gains)) * math.sqrt(n), rows + 16.0)
    certified = min(up(upper + slack), universal)
    return StandardizationBounds(min(max(0.0, lower - slack), certified), certified, norms, universal)


@statement("normscope", "Proposition WS-2")
def standardization_parameter_constant(weight: Tensor, gain: Tensor | None = None, eps: float = 1e-5) -> float:
    """Return the norm of ``dW^/dW`` at a weight: the largest layer-normalization Jacobian norm over the filters.

    >>> round(standardization_parameter_constant(torch.tensor([[0.0, 2.0, 4.0]]), eps=0.0), 6)
    0.612372
    """
    rows = as_float64(weight, "weight").flatten(1)
    each = layer_norm_each(rows, torch.ones(rows.shape[1]), eps)
    if gain is None or bool(torch.isinf(each).any()):
        return float(each.max())
    return up(float((each * as_float64(gain, "gain").reshape(-1).abs()).max()))


def _of_weight(node: Node, around: Surroundings) -> bool:
    """Return whether a node normalizes a weight of a layer and removes its mean."""
    if name_of(node) in kinds_by_op():
        return around.is_weight(node.inputs()[0]) and around.acts_as_weight(node)
    match = around.recogniser.match(node)
    if match is not None and around.is_weight(match.source):
        return match.centered
    quotient = None if match is not None else find_root_quotient(node, around)
    if quotient is not None:
        return quotient.centered and quotient.form.is_variance and around.is_weight(quotient.source)
    return divides_filters(node, around, centered=True)


NORMALIZER = Normalizer(
    kind="weight_standardization",
    formula="W_i = gain_i (w_i - mean)/sqrt(var + eps), for every filter",
    constants=of_the_weight,
    symmetry=Symmetry("neuron", shift=True),
    of_weight=_of_weight,
)
