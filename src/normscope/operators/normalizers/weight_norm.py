r"""Weight normalization: ``W = diag(g) V^``, ``V^`` the rows of ``V`` made unit vectors.

The layer applies the effective weight; its constant is that of ``W``. Without ``g`` (rows of norm one) set ``g = 1``.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.rounding import as_float64, down, matrix_norm_sandwich, sum_units, tree_sum, up
from normscope.core.statement import statement
from normscope.graph.ir import Node
from normscope.graph.recognise import name_of
from normscope.operators.normalizer import Normalizer, Symmetry, of_the_weight
from normscope.operators.recognition import divides_filters
from normscope.operators.written_out import Surroundings


@dataclass(frozen=True)
class WeightNormBounds:
    """The norm of a weight-normalized matrix and what the factors alone say about it."""

    lower: float  #: proved lower bound of ``||diag(g) V^||_2``
    upper: float  #: proved upper bound of it
    largest_gain: float  #: ``max |g_i|``, a lower bound
    gain_norm: float  #: ``||g||_2``, an upper bound
    gain_times_direction: float  #: ``max |g_i| ||V^||_2``, an upper bound


def weight_norm_effective(v: Tensor, g: Tensor | None = None, dim: int | None = 0) -> Tensor:
    """Return the effective weight ``g v / ||v||`` in float64, the norm taken over every axis but ``dim``.

    Args:
        v: the direction parameter, of the shape of the weight.
        g: the gain, broadcastable along ``dim``; ``None`` for ones.
        dim: the axis of the outputs; ``None`` (or -1, as in PyTorch) normalizes the whole tensor.

    >>> weight_norm_effective(torch.tensor([[3.0, 4.0]]), torch.tensor([[10.0]])).tolist()
    [[6.0, 8.0]]
    """
    directions = as_float64(v, "v")
    whole = dim is None or dim == -1
    rows = directions.reshape(1, -1) if whole else directions.movedim(dim or 0, 0).flatten(1)
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    if bool((norms == 0).any()):
        raise InputError("WeightNorm needs nonzero directions v: a zero row has no effective weight.")
    gains = torch.ones_like(norms) if g is None else as_float64(g, "g").reshape(-1, 1)
    if gains.shape != norms.shape:
        raise InputError(f"Expected g to have {norms.shape[0]} elements, one per direction, got {gains.shape[0]}.")
    unit = rows / norms * gains
    if whole:
        return unit.reshape(directions.shape)
    moved = directions.movedim(dim or 0, 0).shape
    return unit.reshape(moved).movedim(0, dim or 0)


@statement("normscope", "Proposition WN-1", holds="one direction per output row (dim = 0)")
def weight_norm_bounds(v: Tensor, g: Tensor | None = None) -> WeightNormBounds:
    """Return ``||diag(g) V^||_2`` of the weight as a matrix with one row per output, and the factors' sandwich.

    ``max |g_i| <= ||W||_2 <= min(||g||_2, max |g_i| ||V^||_2)`` and ``1 <= ||V^||_2 <= sqrt(rows)``. A convolution is
    taken as its reshaped kernel: :mod:`normscope.operators.normalizers.spectral_norm` says what that means for the map.

    >>> bounds = weight_norm_bounds(torch.tensor([[1.0, 0.0], [2.0, 0.0]]))
    >>> round(bounds.upper, 9), round(bounds.gain_norm, 9), bounds.largest_gain <= 1.0
    (1.414213562, 1.414213562, True)
    """
    unit = weight_norm_effective(v).flatten(1)
    rows, columns = unit.shape
    gains = torch.ones(rows, dtype=torch.float64) if g is None else as_float64(g, "g").reshape(-1)
    lower, upper = matrix_norm_sandwich(weight_norm_effective(v, g).flatten(1))
    direction = matrix_norm_sandwich(unit)[1]
    # rounding of the rows: relative error (columns + 8) u in each, hence at most that times ||W||_F <= sqrt(rows) ||W||
    units = (columns + 8.0) * math.sqrt(rows)
    largest = float(gains.abs().max())
    norm = up(float(tree_sum(gains**2).sqrt()), sum_units(rows))
    product = up(largest * up(direction, units))
    certified = min(up(upper, units), norm, product)
    return WeightNormBounds(min(down(lower, units), certified), certified, largest, norm, product)


@statement("normscope", "Proposition WN-2")
def weight_norm_parameter_constant(v: Tensor, g: Tensor | None = None) -> float:
    """Return the norm of ``dw/dv`` at ``v``: ``max_i |g_i| / ||v_i||``, each block being ``(g/||v||)(I - v^ v^^T)``.

    Directions of one element do not move the weight: 0.

    >>> round(weight_norm_parameter_constant(torch.tensor([[3.0, 4.0]]), torch.tensor([10.0])), 9)
    2.0
    """
    rows = as_float64(v, "v").flatten(1) if v.ndim > 1 else as_float64(v, "v")[:, None]
    norms = torch.linalg.vector_norm(rows, dim=1)
    if bool((norms == 0).any()):
        return math.inf
    gains = torch.ones_like(norms) if g is None else as_float64(g, "g").reshape(-1)
    if rows.shape[1] == 1:
        return 0.0
    return up(float((gains.abs() / norms).max()), rows.shape[1] + 8.0)


def _of_weight(node: Node, around: Surroundings) -> bool:
    """Return whether a node is torch's weight normalization, or divides a weight by the length of its own rows."""
    if name_of(node) in ("_weight_norm", "_weight_norm_interface"):
        return True
    match = around.recogniser.match(node)
    if match is not None:
        return not match.centered and around.is_weight(match.source)
    return divides_filters(node, around, centered=False)


NORMALIZER = Normalizer(
    kind="weight_norm",
    formula="W_i = g_i v_i/||v_i||, for every row or the whole weight",
    constants=of_the_weight,
    symmetry=Symmetry("neuron"),
    of_weight=_of_weight,
)
