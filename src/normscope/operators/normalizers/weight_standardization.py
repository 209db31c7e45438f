r"""Weight standardization: each filter is centred and divided by its standard deviation before it is used.

``W^_i = gain_i (w_i - mean(w_i)) / sqrt(var(w_i) + eps)``, the mean over the ``n`` inputs of filter ``i``. It is layer
normalization of the weight; the layer then applies ``W^``.
"""

import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.rounding import as_float64, require_nonnegative
from normscope.graph.ir import Node
from normscope.graph.recognise import name_of
from normscope.operators.filter_quotient import divides_filters
from normscope.operators.normalizer import Normalizer, Symmetry, kinds_by_op, of_the_weight
from normscope.operators.quadratic_form import find_form
from normscope.operators.written_out import Surroundings


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


def _of_weight(node: Node, around: Surroundings) -> bool:
    """Tell whether a node normalizes a weight of a layer and removes its mean."""
    if name_of(node) in kinds_by_op():
        return around.is_weight(node.inputs()[0]) and around.acts_as_weight(node)
    match = around.recogniser.match(node)
    if match is not None and around.is_weight(match.source):
        return match.centered
    form = None if match is not None else find_form(node, around)
    if form is not None:
        return form.centered and form.is_variance and around.is_weight(form.source)
    return divides_filters(node, around, centered=True)


NORMALIZER = Normalizer(
    kind="weight_standardization",
    formula="W_i = gain_i (w_i - mean)/sqrt(var + eps), for every filter",
    constants=of_the_weight,
    symmetry=Symmetry("neuron", shift=True),
    of_weight=_of_weight,
)
