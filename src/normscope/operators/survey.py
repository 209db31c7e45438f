"""One pass over the data: statistics of the inputs of all normalizers and activations, in constant memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from normscope.core.errors import NonFiniteError
from normscope.graph.capture import Captured
from normscope.graph.interpreter import as_floating, run
from normscope.graph.ir import Node, Ref
from normscope.graph.weights_validation import all_finite
from normscope.operators.arithmetic import Product, Quotient, Square
from normscope.operators.attention import Attention
from normscope.operators.expression import reached
from normscope.operators.matrix import Bilinear, MatrixProduct
from normscope.operators.nonlinear import Pointwise, Range
from normscope.operators.normalizer import acts_on_weights
from normscope.operators.program import Program
from normscope.operators.site import Site
from normscope.operators.spread_division import Spread


@dataclass(eq=False)
class Moments:
    """Mean, biased variance, minimum and maximum of each channel over all samples and positions so far.

    The merge is Chan's: with counts n, m and difference d of the means,
    ``M2 = M2_a + M2_b + d^2 n m / (n + m)``, in float64.

    >>> moments = Moments()
    >>> moments.update(torch.tensor([[1.0], [2.0]]))
    >>> moments.update(torch.tensor([[6.0]]))
    >>> moments.mean.tolist(), round(moments.variance.item(), 12)
    ([3.0], 4.666666666667)
    """

    count: int = 0
    mean: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    squares: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    low: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    high: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))

    @property
    def variance(self) -> Tensor:
        """Return the biased variance of each channel."""
        return self.squares / max(self.count, 1)

    def update(self, x: Tensor, axis: int = -1) -> None:
        """Add the entries of a tensor, with channels along the given axis."""
        if x.ndim < 2:
            x, axis = x.reshape(1, -1), -1
        x = x.detach()
        if not x.numel():
            return
        axis %= x.ndim
        others, n = [i for i in range(x.ndim) if i != axis], x.numel() // x.shape[axis]
        wide = x.to(torch.float64)
        middle = wide.mean(others, keepdim=True)
        mean, squares = middle.flatten(), (wide - middle).square_().sum(others)
        low, high = x.amin(others).double(), x.amax(others).double()
        if self.count == 0:
            self.count, self.mean, self.squares, self.low, self.high = n, mean, squares, low, high
            return
        total = self.count + n
        difference = mean - self.mean
        self.squares = self.squares + squares + difference.square() * (self.count * n / total)
        self.mean = self.mean + difference * (n / total)
        self.low, self.high = torch.minimum(self.low, low), torch.maximum(self.high, high)
        self.count = total


@dataclass(eq=False)
class InputStatistics:
    """Statistics of the input of one normalizer or activation."""

    moments: Moments = field(default_factory=Moments)  #: per-channel moments
    #: least spread of each group (a normalizer of its own input) or channel, shaped like its groups
    floor: Tensor | None = None
    largest_norm: float = 0.0  #: largest l2 norm of one sample
    groups: int = 0  #: number of groups, before a normalizer of its own input
    below_eps: int = 0  #: how many of them have a spread that is not zero and at most the root of its eps


@dataclass(eq=False)
class Survey:
    """The result of one pass over the data."""

    samples: int = 0  #: number of samples
    before_normalizers: dict[str, InputStatistics] = field(default_factory=dict)  #: by graph node of the normalizer
    before_activations: dict[str, InputStatistics] = field(default_factory=dict)  #: by graph node of the activation
    inputs: list[Range] = field(default_factory=list)  #: range of each block of the network input
    #: range, a little widened, of every tensor whose size a rule needs, by graph node
    factors: dict[str, Range] = field(default_factory=dict)

    def floors(self) -> dict[str, Tensor]:
        """Return the least spread before each normalizer that uses the statistics of its input.

        They are lowered by what the order of summation may change, so that the inputs seen lie inside in any batching.
        """
        found = {name: seen.floor for name, seen in self.before_normalizers.items()}
        return {name: floor * (1 - 1e-12) for name, floor in found.items() if floor is not None}

    def include(self, other: Survey) -> None:
        """Lower the floors to those of another survey of the same network."""
        for name, seen in other.before_normalizers.items():
            mine = self.before_normalizers.get(name)
            if mine is not None and mine.floor is not None and seen.floor is not None:
                mine.floor = torch.minimum(mine.floor, seen.floor)
        for name, inside in other.factors.items():
            self.factors[name] = _hull(self.factors.get(name, inside), inside)


def survey(
    captured: Captured,
    program: Program,
    batches: Iterable[list[Tensor]],
    *,
    activations: Mapping[str, str],
    progress: Callable[[int], None] | None = None,
    dtype: torch.dtype | None = None,
    channels: Mapping[str, int | None] | None = None,
    also: Callable[[Node, Any, Mapping[str, Any]], None] | None = None,
) -> Survey:
    """Run the graph over the data once and collect statistics.

    Args:
        captured: the model.
        program: its program, with the normalizers to observe.
        batches: inputs, batch axis first.
        activations: the node of each activation to observe, and the node it reads.
        progress: called with the number of samples so far.
        dtype: run in this precision instead of the model's own.
        channels: the axis that holds channels, by activation, where it is known.
        also: called first at every node, with the node, its value and all values so far.

    Raises:
        NonFiniteError: if the network gives NaN, or NaN or infinity before a normalizer or activation, on some sample.
    """
    result = Survey()
    sites = {s.node: s for s in program.sites if s.shape and not acts_on_weights(s)}
    watch: dict[str, list[tuple[str, Site | None]]] = {}
    for site in sites.values():
        watch.setdefault(site.source, []).append((site.node, site))
    for name, source in activations.items():
        watch.setdefault(source, []).append((name, None))
    blocks = {b.name: i for i, b in enumerate(program.blocks)}
    factors = sized_tensors(program)
    result.inputs = [Range(math.inf, -math.inf, 0.0, 0.0) for _ in program.blocks]
    reference = program.blocks[0].shape[0] if program.blocks and program.blocks[0].shape else 1
    tensors = captured.tensors_as(dtype)
    for batch in batches:
        size = batch[0].shape[0] if batch and batch[0].ndim else 1

        def visit(node: Node, value: Any, values: Mapping[str, Any], size: int = size) -> None:
            if also is not None:
                also(node, value, values)
            if node.name in blocks:
                index = blocks[node.name]
                result.inputs[index] = _hull(result.inputs[index], range_seen(value, size, reference, room=0.0))
            if node.name in factors and isinstance(value, Tensor) and value.is_floating_point() and value.numel():
                inside = range_seen(value, size, reference)
                result.factors[node.name] = _hull(result.factors.get(node.name, inside), inside)
            for name, site in watch.get(node.name, ()):
                group = result.before_activations if site is None else result.before_normalizers
                axis = None if channels is None else channels.get(name)
                _see(group.setdefault(name, InputStatistics()), value, site, size, reference, name, axis)

        with torch.no_grad():
            outputs = run(captured.graph, tensors, [as_floating(t, dtype) for t in batch], visit, dtype)
        if any(bool(out.isnan().any()) for out in outputs if isinstance(out, Tensor)):
            raise NonFiniteError(
                "The network returns NaN on some sample. Fix the data, or the operation that divides by "
                "zero or takes a root or logarithm of a negative number."
            )
        result.samples += size
        if progress is not None:
            progress(result.samples)
    return result


def _see(
    seen: InputStatistics, x: Tensor, site: Site | None, size: int, reference: int, name: str, axis: int | None = None
) -> None:
    """Add one batch to the statistics of an input."""
    x = x if x.is_floating_point() else x.double()
    if not all_finite(x):
        if site is None:
            return  # e.g. scores masked by minus infinity; whether the network stays finite shows in its outputs
        raise NonFiniteError(
            f"The values before {name} are NaN or infinite on some sample. Fix the data, or run the "
            "model in a wider dtype (model.double())."
        )
    seen.moments.update(x, _channel_axis(x, site) if axis is None else axis)
    per_sample = x.reshape(size, -1) if x.numel() % max(size, 1) == 0 else x.reshape(1, -1)
    norms = torch.linalg.vector_norm(per_sample, dim=1, dtype=torch.float64)
    seen.largest_norm = max(seen.largest_norm, float(norms.max()))
    if site is not None and site.spread is not None:
        spreads = group_spreads(x, site.spread, size / max(reference, 1))
        floor = least_of_groups(spreads, site.spread)
        seen.floor = floor if seen.floor is None else torch.minimum(seen.floor, floor)
        squares = spreads.square() * site.spread.factor
        seen.groups += squares.numel()
        seen.below_eps += int(((squares <= site.eps) & (squares > 0)).sum())


def _channel_axis(x: Tensor, site: Site | None) -> int:
    """Return the axis that holds channels: the last of tokens, the second of images."""
    if site is not None and site.spread is not None and site.spread.channel_axis is None:
        return x.ndim - 1
    channels_first = x.ndim in (4, 5) or (site is not None and x.ndim == 3)
    return 1 if channels_first else x.ndim - 1


def group_floor(x: Tensor, spread: Spread, scale: float) -> Tensor:
    """Return the least spread of each group over a batch, in the shape the groups have for one sample.

    Groups of different samples or tokens share one floor; channels and channel groups keep their own.
    """
    return least_of_groups(group_spreads(x, spread, scale), spread)


def group_spreads(x: Tensor, spread: Spread, scale: float) -> Tensor:
    """Return the spread of each group of a batch, ``scale`` times as many samples as the groups are given for."""
    view = list(spread.view)
    if x.ndim == len(view) and sum(a != b for a, b in zip(x.shape, view, strict=True)) <= 1:
        view = list(x.shape)  # the view is the tensor itself, wherever its batch axis is
    else:
        view[0] = x.shape[0] if 0 in spread.axes else max(1, round(view[0] * scale))
    return replace(spread, view=tuple(view)).of(x.detach().to(torch.float64))


def least_of_groups(values: Tensor, spread: Spread) -> Tensor:
    """Return the least of spreads over samples and tokens, one for each channel or channel group."""
    dims = [i for i in range(values.ndim) if i != spread.channel_axis]
    return values.amin(dims, keepdim=True)


def activation_inputs(captured: Captured, program: Program) -> dict[str, str]:
    """Return the node of every entrywise nonlinearity and the node it reads."""
    found: dict[str, str] = {}
    for atom in program.atoms:
        name = atom.atom.name
        if isinstance(atom.atom, Pointwise) and name not in found:
            node = captured.graph[name]
            first = next((a for a in node.args if isinstance(a, Ref)), None)
            if first is not None:
                found[name] = first.name
    return found


#: Rules that need the size of what they act on.
_SIZED = (Pointwise, Product, Quotient, Square, Attention, Bilinear, MatrixProduct)
#: By how much, relatively, ranges inside the network are widened, so that the data lies in their interior.
_ROOM = 1e-3


def sized_tensors(program: Program) -> set[str]:
    """Return the graph nodes of tensors whose size a rule needs: factors, scores, arguments of steep functions."""
    found: set[str] = set()
    for atom in program.atoms:
        rule = atom.atom
        if isinstance(rule, Pointwise) and not rule.needs_range:
            continue
        sized = rule.inputs if isinstance(rule, _SIZED) else ()
        below = reached(sized, lambda expr: () if expr.id in program.nodes else expr.inputs)
        found |= {program.nodes[expr.id] for expr in below if expr.id in program.nodes}
    return found


def range_seen(value: Tensor, size: int, reference: int, *, room: float = _ROOM) -> Range:
    """Return the range of a tensor on a batch, a little widened; norms are of as many samples as a program takes.

    >>> round(range_seen(torch.tensor([[3.0, 4.0]]), 1, 1).norm, 6)
    5.005
    """
    x = value.detach().to(torch.float64)
    pieces = size // max(reference, 1)
    apart = pieces * reference == size and x.ndim > 0 and x.shape[0] % max(size, 1) == 0
    norm = float(x.reshape(pieces if apart else 1, -1).norm(dim=1).max())
    row = float(x.norm(dim=-1).max()) if x.ndim else norm
    low, high = float(x.min()), float(x.max())
    around = room * max(abs(low), abs(high))
    return Range(low - around, high + around, row * (1 + room), norm * (1 + room))


def _hull(a: Range, b: Range) -> Range:
    return Range(min(a.low, b.low), max(a.high, b.high), max(a.row, b.row), max(a.norm, b.norm))
