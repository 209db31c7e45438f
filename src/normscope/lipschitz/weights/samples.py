"""What the weights meet at given inputs: one pass in float64, with room for its own rounding."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from normscope.graph.capture import Captured
from normscope.graph.interpreter import as_floating, run
from normscope.graph.ir import Graph, Node
from normscope.lipschitz.lower import _moved
from normscope.lipschitz.weights.factors import Factor, activation, factor
from normscope.lipschitz.weights.uses import Use, Weights
from normscope.operators.normalizer import couples_samples

#: Most numbers of the stacked map of one use that are kept.
LARGEST_STACK = 2**24
#: How many times the change under other last bits counts as rounding.
ROOM = 8.0


@dataclass(eq=False)
class Met:
    """What one use of a weight met at one input."""

    factor: Factor  #: the map from a change of the weight to a change of the result
    norm: float = math.inf  #: its norm, rounded up; filled in when it is measured
    rounding: float = 0.0  #: how far the map in exact arithmetic may be from it
    activation: float | None = None  #: ``||h_{i-1}||`` of the tensor a matrix or kernel meets


@dataclass(eq=False)
class Sample:
    """What every use met at one input, and the norm of that input."""

    met: dict[int, Met] = field(default_factory=dict)
    input_norm: float = 0.0


def meet(captured: Captured, weights: Weights, inputs: Sequence[Tensor]) -> Sample:
    """Return what every use of a weight meets at one input."""
    tensors = captured.tensors_as(torch.float64)
    given = [as_floating(t, torch.float64) for t in inputs]
    at: dict[str, list[int]] = {}
    for index, use in enumerate(weights.uses):
        if use.kind in ("matrix", "convolution", "diagonal"):
            at.setdefault(use.node, []).append(index)
    blocks = {b.name for b in weights.program.blocks}
    sample, squares = Sample(), [0.0]

    def first(node: Node, value: Any, values: Mapping[str, Any]) -> None:
        if node.name in blocks:
            squares.append(float(value.square().sum()))
        for index in at.get(node.name, ()):
            found = factor(node, weights.uses[index], values)
            if found is not None:
                sample.met[index] = Met(found, activation=activation(node, weights.uses[index], values))

    def again(node: Node, value: Any, values: Mapping[str, Any]) -> Any:
        for index in at.get(node.name, ()):
            found = factor(node, weights.uses[index], values)
            if found is not None and index in sample.met:
                met = sample.met[index]
                met.rounding = ROOM * met.factor.distance(found)
        return _moved(value, 1)[0] if node.name in blocks else None

    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        run(captured.graph, tensors, given, first, torch.float64)
        run(captured.graph, tensors, given, again, torch.float64)
    for met in sample.met.values():
        met.norm = (met.factor.norm() + met.rounding) * (1 + 1e-12)
    sample.input_norm = math.sqrt(sum(squares)) * (1 + 1e-12)
    return sample


def stacked_norm(samples: Sequence[Met], *, centred: bool = False) -> float:
    """Return the norm of the map of several samples stacked into one input, rounded up.

    ``||H||_2`` of all rows together where they are few enough, otherwise the root of the sum of squares.

    >>> one = Met(Factor(torch.tensor([[[3.0, 4.0]]])))
    >>> round(stacked_norm([one, one]), 9), stacked_norm([one, one], centred=True)
    (7.071067812, 0.0)
    """
    first, rest = samples[0].factor, [s.factor for s in samples[1:]]
    size = sum(s.factor.blocks.numel() for s in samples if s.factor.blocks is not None)
    if size > LARGEST_STACK:
        return math.sqrt(sum(s.norm**2 for s in samples)) * (1 + 1e-12)
    whole = first.stacked(rest)
    rounding = math.sqrt(sum(s.rounding**2 for s in samples))
    return ((whole.centred() if centred else whole).norm() + rounding) * (1 + 1e-12)


def before_batch_statistics(graph: Graph, weights: Weights, use: Use) -> bool:
    """Return whether nothing but a normalizer by batch statistics, channel by channel, reads the result of a use."""
    node, users = graph[use.node], graph.users()[use.node]
    channels_last = node.shape is None or len(node.shape) != 2
    if use.kind == "matrix" and channels_last:
        return False
    for site in weights.program.sites:
        direct = site.source == use.node and users == [site.node] and not site.written_out
        if direct and couples_samples(site.kind) and site.spread is not None and 0 in site.spread.axes:
            return use.kind in ("matrix", "convolution", "diagonal")
    return False
