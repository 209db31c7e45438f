"""Theorem 13 of than2025: a network with prescribed constants in the weight and in the total input of a layer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.statement import statement
from normscope.core.value import ALL_INPUTS, Kind, Value, product
from normscope.papers.than2025.extremal.theorem_6_networks import (
    Extremal,
    both_sides,
    check_layer,
    checked_input,
    checked_scales,
    checked_widths,
    relu_network,
    scaled_identities,
    square_norm,
)

AT_INPUT = "this input, all weights of the layer"


@dataclass(frozen=True)
class Parts:
    """The widths, scales and input that the constructions around one layer share."""

    widths: tuple[int, ...]  #: ``n_0, ..., n_K``
    layer: int  #: ``i``, from one
    before: tuple[float, ...]  #: ``a_1, ..., a_{i-1}``
    at: float  #: ``a_i``
    after: tuple[float, ...]  #: ``a_{i+1}, ..., a_K``
    x: Tensor  #: the input
    #: ``h_{i-1}(x)`` over the scales before the layer: ``x`` for the first, else ``relu(x)`` cut to ``min(n_0, ...,
    #: n_{i-1})``
    kept: Tensor
    rows: int  #: ``min(n_i, ..., n_K)``, the rows of ``W_i`` that reach the output

    def extremal(self, rows: int, label: str) -> Extremal:
        """Return the network whose first ``rows`` rows of ``W_i`` point along ``h_{i-1}(x)``, the others being zero."""
        unit = self.kept / self.kept.abs().max()
        direction = torch.zeros(self.widths[self.layer], self.widths[self.layer - 1], dtype=self.x.dtype)
        direction[:rows, : unit.numel()] = rows**-0.5 * (unit / torch.linalg.vector_norm(unit))
        weights = scaled_identities(self.widths, (*self.before, 1.0, *self.after), self.x.dtype)
        weights[self.layer - 1] = (self.at or 1.0) * direction
        factors, norm = (*self.before, *self.after), rows * square_norm(self.kept)
        constant, attained = both_sides(factors, label, AT_INPUT, norm)
        return Extremal(
            relu_network(weights), constant, attained, self.x, direction, self.layer, theorem_13_printed(self)
        )


def parts(
    widths: Sequence[int], scales: Sequence[float] | float, layer: int, x: Tensor | None, dtype: torch.dtype
) -> Parts:
    """Return the parts of a construction around a layer."""
    shape = checked_widths(widths)
    depth = len(shape) - 1
    check_layer(layer, depth)
    held = checked_scales(scales, depth, dtype)
    point = checked_input(x, shape[0], dtype)
    # The first layer sees the input itself, a later one what ReLU left of it.
    kept = (point if layer == 1 else torch.relu(point))[: min(shape[:layer])]
    if not bool(kept.any()) or 0.0 in held[: layer - 1]:
        wanted = "nonzero number" if layer == 1 else "positive number"
        raise InputError(
            f"No signal reaches layer {layer}. Pass an input with a {wanted} among its first "
            f"{kept.numel()}, and positive scales before the layer."
        )
    return Parts(shape, layer, held[: layer - 1], held[layer - 1], held[layer:], point, kept, min(shape[layer:]))


@statement("than2025", "Theorem 13", holds="corrected: the norm of all of h_{i-1}(x), the truncation is of rows of W_i")
def theorem_13(
    widths: Sequence[int],
    scales: Sequence[float] | float,
    layer: int = 1,
    x: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> Extremal:
    """Return a ReLU network with ``||h(x), W_i|| = a_{i+1} ... a_K ||h_{i-1}(x)||``.

    ``W_k = a_k I_k`` for ``k != i``; the first row of ``W_i`` is ``a_i h_{i-1}(x)/||h_{i-1}(x)||``, so it is active,
    and the others are zero. The constant is attained there, along that row; it is the supremum over all ``W_i``.

    Args:
        widths: ``n_0, ..., n_K``, input first.
        scales: ``a_1, ..., a_K``, or one number for all.
        layer: ``i``, from one to ``K``.
        x: the input, by default the first unit vector.
        dtype: of the weights.

    Returns:
        The network at that weight; ``direction`` is one of ``W_i``, and ``printed`` equation (8).

    Raises:
        InputError: if an argument is out of range, or nothing of ``x`` reaches the layer.

    >>> net = theorem_13([3, 2, 1], [1.0, 5.0], 1, torch.tensor([0.0, 0.0, 1.0]))
    >>> round(net.constant.value, 12), net.printed.value
    (5.0, 0.0)
    """
    return parts(widths, scales, layer, x, dtype).extremal(1, "than2025 Theorem 13")


@statement("than2025", "Theorem 13", holds="the constant in the total input of the layer, over all total inputs")
def total_input(here: Parts) -> tuple[Value, Value]:
    """Return ``||h, y_i|| = a_{i+1} ... a_K``, equation (9), rounded up and rounded down.

    >>> round(total_input(parts([2, 2, 2], 3.0, 1, None, torch.float64))[0].value, 12)
    3.0
    """
    return both_sides(here.after, "than2025 Theorem 13", ALL_INPUTS)


@statement("than2025", "Theorem 13", holds="printed, equation (8); not the constant where the cut drops entries of h")
def theorem_13_printed(here: Parts) -> Value:
    """Return ``a_{i+1} ... a_K ||h_{i-1}(x)^(n_{i+1}, ..., n_K)||``, as printed; for ``i = K`` nothing is cut.

    >>> x = torch.tensor([0.0, 0.0, 1.0])
    >>> theorem_13_printed(parts([3, 2, 1], [1.0, 5.0], 1, x, torch.float64)).value
    0.0
    """
    cut = here.kept[: min((here.kept.numel(), *here.widths[here.layer + 1 :]))]
    norm = Value(0.5 * math.log(square_norm(cut)) if bool(cut.any()) else -math.inf, Kind.PRINTED)
    factors = [Value.of(a, Kind.PRINTED) for a in (*here.before, *here.after)]
    log = -math.inf if norm.log == -math.inf else product([norm, *factors]).log
    return Value(log, Kind.PRINTED, AT_INPUT, statement="than2025 Theorem 13")


@dataclass(frozen=True)
class Gradients:
    """The gradients of one layer of a network of scaled identities, at the first unit vector."""

    layer: int  #: ``i``, from one
    signal: Value  #: ``||h_{i-1}(x)||``, what reaches it
    total_input: Value  #: ``||h, y_i||``, how the output depends on its total input: the gradient passed back
    weight: Value  #: ``||h(x), W_i||``, their product


@statement(
    "than2025", "Remark 16", holds="for the gradient passed back; that of a weight also has the signal as a factor"
)
def gradients(
    widths: Sequence[int], scales: Sequence[float] | float, dtype: torch.dtype = torch.float64
) -> tuple[Gradients, ...]:
    """Return the gradients of every layer of the network of Theorem 6 at the first unit vector.

    The gradient passed back to layer ``i`` is ``a_{i+1} ... a_K``: it explodes or vanishes towards the first layers.
    The signal is ``a_1 ... a_{i-1}``, so that of the weight, ``prod_{k != i} a_k``, is of one order for all layers:
    with equal scales deeper layers are no easier.

    Arguments are those of :func:`~normscope.papers.than2025.extremal.theorem_6_networks.theorem_6`.

    Returns:
        One entry for each layer; values rounded up, logarithms where floats end.

    >>> [round(g.total_input.value, 9) for g in gradients([2, 2, 2, 2], 10.0)]
    [100.0, 10.0, 1.0]
    >>> [round(g.weight.value, 9) for g in gradients([2, 2, 2, 2], 10.0)]
    [100.0, 100.0, 100.0]
    """
    depth = len(checked_widths(widths)) - 1
    held = checked_scales(scales, depth, dtype)
    own = [both_sides((a,), "than2025 Remark 16", "the first unit vector")[0] for a in held]
    one = both_sides((), "than2025 Remark 16", "the first unit vector")[0]
    signals = list(accumulate(own[:-1], mul, initial=one))
    passed = list(accumulate(reversed(own[1:]), mul, initial=one))[::-1]
    return tuple(Gradients(i + 1, s, p, s * p) for i, (s, p) in enumerate(zip(signals, passed, strict=True)))


@statement("than2025", "Corollary 14", holds="corrected, equation (11): the root of r = min(n_i, ..., n_K) is missing")
def l1_loss(
    widths: Sequence[int],
    scales: Sequence[float] | float,
    layer: int = 1,
    x: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> Extremal:
    """Return a ReLU network whose l1 loss has ``||f, W_i|| = sqrt(r) a_{i+1} ... a_K ||h_{i-1}(x)||``.

    As in Theorem 13, with ``r = min(n_i, ..., n_K)`` rows of ``W_i`` along ``h_{i-1}(x)``: all outputs that can move
    do, and add up. Targets of minus one are below every output, so every slope of the loss is one there.

    Arguments and errors are those of :func:`theorem_13`; the scale of the layer itself is the norm of ``W_i``.

    Returns:
        The network at that weight; the loss is ``sum |h(x) + 1|``.

    >>> net = l1_loss([3, 4, 5, 6], [1.0, 2.0, 3.0], 1, torch.tensor([3.0, 0.0, 0.0]))
    >>> round(net.constant.value, 12), round(net.printed.value, 12)
    (36.0, 18.0)
    """
    here = parts(widths, scales, layer, x, dtype)
    if 0.0 in here.after:
        raise InputError("Expected positive scales after the layer: with a zero the loss vanishes.")
    return here.extremal(here.rows, "than2025 Corollary 14")
