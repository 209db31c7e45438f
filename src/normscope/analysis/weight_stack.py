"""A training batch as one input: constants in the weights with batch statistics, where there is BatchNorm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from normscope.core.value import Kind, Value, log_of, log_sum
from normscope.graph.capture import Captured
from normscope.graph.modes import has_batch_norm, with_batch_statistics
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.weights.bounds import input_factors, joint_constant, output_constants, weight_constant
from normscope.lipschitz.weights.pointwise import Norms, norms_at
from normscope.lipschitz.weights.samples import before_batch_statistics, meet, stacked_norm
from normscope.lipschitz.weights.uses import Weights, find_weights
from normscope.operators.nonlinear import INF
from normscope.operators.survey import survey

if TYPE_CHECKING:
    from normscope.analysis.weight_rows import Found

#: Samples of the batch, and multiplications of a forward pass of it, up to which it is looked at unasked.
BATCH = 16
AFFORDABLE = 2_000_000


@dataclass(eq=False)
class Stacked:
    """What was found of a batch as one input."""

    size: int  #: samples of it
    mode: str | None  #: what BatchNorm does, if there is one
    names: list[str]  #: of the weights
    certified: list[float]  #: logarithms of ``||h, W||``
    factors: list[float]  #: logarithms of ``||dW -> dY||``
    norms: Norms  #: exact norms there

    def _value(self, log: float, kind: Kind, statement: str) -> Value:
        where = f"the first {self.size} samples stacked, at these weights"
        return Value(log, kind, where, self.mode, statement)

    def values(self, name: str) -> dict[str, Value]:
        """Return the values of one weight."""
        if name not in self.names:
            return {}
        i = self.names.index(name)
        return {
            "certified": self._value(self.certified[i], Kind.CERTIFIED, "normscope Proposition W-3"),
            "input_norm": self._value(self.factors[i], Kind.CERTIFIED, "normscope Proposition W-2"),
            "attained": self._value(log_of(self.norms.weights[i]), Kind.LOWER, "normscope F13"),
        }

    def jointly(self, certified: Sequence[Value | None]) -> dict[str, Value]:
        """Return the constants in all weights together."""
        log = joint_constant([INF if v is None else v.log for v in certified])
        out = {"stacked_certified": self._value(log, Kind.CERTIFIED, "normscope Proposition W-6")}
        if self.norms.jointly is not None:
            out["stacked_attained"] = self._value(log_of(self.norms.jointly), Kind.LOWER, "normscope F13")
        return out


def stacked(found: Found, samples: Sequence[list[Tensor]], *, coupled: bool) -> Stacked | None:
    """Look at the first samples stacked into one input, or return ``None`` where that is already so, or too much."""
    work = found.work
    captured = work.captured
    wanted = work.options.stacked
    if wanted is None:
        wanted = sum(t.numel() for t in captured.tensors.values()) < AFFORDABLE
    if coupled or len(samples) < 2 or not wanted or captured.graph.batch != "dynamic":
        return None
    chosen = samples[:BATCH]
    batch = [torch.cat(parts) if parts[0].ndim else parts[0] for parts in zip(*chosen, strict=True)]
    work.say("a stacked batch")
    if has_batch_norm(captured.graph) and work.options.mode == "running":
        return _with_batch_statistics(found, batch, len(chosen))
    weights, outputs = found.weights, found.outputs["variance_floor"].small
    factors = []
    for i in range(len(weights.uses)):
        met = [s.met[i] for s in found.samples[: len(chosen)] if i in s.met]
        single = [f[i] for f in found.factors[: len(chosen)]]
        bound = log_sum((2 * f for f in single), INF) / 2
        if len(met) == len(chosen):
            bound = min(bound, log_of(stacked_norm(met) * weights.uses[i].copies))
        factors.append(bound)
    return _gathered(found, weights, captured, batch, len(chosen), outputs, factors, found.mode)


def _with_batch_statistics(found: Found, batch: list[Tensor], size: int) -> Stacked:
    """Look at a batch whose statistics BatchNorm uses."""
    work = found.work
    graph = with_batch_statistics(work.captured.graph)
    captured = replace(work.captured, graph=graph, example=batch)
    weights = find_weights(graph, captured.tensors, batch)
    seen = survey(captured, weights.program, [batch], activations={}, dtype=torch.float64)
    ranges = (r.tightened(b.shape) for r, b in zip(seen.inputs, weights.program.blocks, strict=True))
    domain = Domain("this batch", seen.floors(), tuple(ranges))
    composition = Composition(weights.program, domain, work.norms)
    outputs = output_constants(weights, composition).small
    sample = meet(captured, weights, batch)
    factors = input_factors(weights, sample, composition)
    for i, use in enumerate(weights.uses):
        if i in sample.met and before_batch_statistics(graph, weights, use):
            factors[i] = log_of(stacked_norm([sample.met[i]], centred=True) * use.copies)
    return _gathered(found, weights, captured, batch, size, outputs, factors, "batch")


def _gathered(
    found: Found, weights: Weights, captured: Captured, batch: list[Tensor], size: int, outputs: Sequence[float],
    factors: Sequence[float], mode: str | None,
) -> Stacked:  # fmt: skip
    """Put constants and factors together, and measure the exact norms."""
    certified, together = [], []
    for leaf in range(len(weights.leaves)):
        uses = weights.of(leaf)
        certified.append(weight_constant([outputs[i] for i in uses], [factors[i] for i in uses]))
        together.append(log_sum((2 * factors[i] for i in uses), math.inf) / 2)
    norms = norms_at(captured, weights, batch, seed=found.work.options.seed)
    return Stacked(size, mode, [leaf.name for leaf in weights.leaves], certified, together, norms)
