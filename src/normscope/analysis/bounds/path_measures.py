"""Measures of the path that training took: steps to a loss, and the noise of gradients early and late."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.analysis.bounds.chain import RefusedError
from normscope.analysis.bounds.paths import folded_tensors
from normscope.analysis.bounds.scores import Scores
from normscope.core.errors import InputError
from normscope.core.statement import statement
from normscope.graph.capture import Captured
from normscope.graph.interpreter import run

#: Cross-entropies whose first steps are counted.
FIRST, SECOND = 0.1, 0.01
#: Samples of a gradient, and gradients whose spread is measured.
BATCH, GRADIENTS = 32, 40


@statement("jiang2020", "optimization measures", holds="estimates from the record of one run")
def steps_to(history: Any, level: float, since: float | None = None) -> float:
    """Return the first recorded step at which the training loss was at most a level, counted from that of another.

    Args:
        history: steps and losses: a series of a run (``run.series("train/loss")``), or a pair of sequences.
        level: the loss.
        since: count from the first step at which the loss was at most this; from zero without it.

    Raises:
        RefusedError: if the run did not get there.
        InputError: if it is no history.

    >>> steps_to(([0, 10, 20, 30], [2.3, 0.5, 0.08, 0.02]), 0.1)
    20.0
    """
    steps, losses = _pair(history)
    reached = [s for s, v in zip(steps, losses, strict=True) if v <= level]
    if not reached:
        raise RefusedError(f"the recorded loss was never at most {level:g}; its smallest value was {min(losses):.3g}")
    return float(reached[0]) - (0.0 if since is None else steps_to(history, since))


def _pair(history: Any) -> tuple[Sequence[float], Sequence[float]]:
    """Return steps and losses.

    Raises:
        InputError: if these are not two sequences of one length, in order.
    """
    named = (getattr(history, "steps", None), getattr(history, "values", None))
    pair = named if named[0] is not None and not callable(named[1]) else history
    if not (isinstance(pair, tuple | list) and len(pair) == 2 and all(hasattr(t, "__len__") for t in pair)):
        raise InputError(f"Expected a history of steps and losses, got {type(history).__name__}.")
    steps, losses = ([float(v) for v in t] for t in pair)
    if len(steps) != len(losses) or not steps or steps != sorted(steps) or any(map(math.isnan, losses)):
        raise InputError(f"Expected as many losses as steps, in order and none of them NaN, got {len(losses)}.")
    return steps, losses


@statement("jiang2020", "gradient noise", holds="an estimate from random batches of the training data")
def log_gradient_noise(captured: Captured, scores: Scores, seed: int) -> float:
    r"""Return ``ln sum_j Var[g_j]`` for gradients ``g`` of the cross-entropy on random batches, BatchNorm folded.

    Args:
        captured: the network at some time.
        scores: with random training samples.
        seed: of the batches.

    Raises:
        RefusedError: if BatchNorm cannot be folded.
    """
    folded, constants = folded_tensors(captured)
    dtype, source = captured.example[0].dtype, torch.Generator().manual_seed(seed)
    fixed = {n: t.to(dtype) if t.is_floating_point() else t for n, t in folded.items()}
    names = [n for n, t in fixed.items() if t.is_floating_point() and n not in constants]
    labels = scores.labels[scores.chosen]
    found: list[Tensor] = []
    for _ in range(GRADIENTS):
        i = torch.randint(len(scores.some), (BATCH,), generator=source)
        leaves = {n: fixed[n].detach().clone().requires_grad_(True) for n in names}
        with torch.enable_grad():
            outputs = run(captured.graph, fixed | leaves, [scores.some[i].to(dtype)])[0]
            loss = F.cross_entropy(outputs, labels[i])
        slopes = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
        found.append(torch.cat([g.detach().flatten().double() for g in slopes]))
    spread = float(torch.stack(found).var(0).sum())
    return math.log(spread) if spread > 0 else -math.inf
