"""Losses between 0 and 1 that are Lipschitz in the scores: those that Theorem 20 may be used with."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.analysis.bounds.chain import RefusedError
from normscope.core.errors import InputError
from normscope.generalization.margins import margins, ramp_loss

#: Losses by name.
LOSSES = ("ramp", "probability", "cross-entropy")


@dataclass(frozen=True)
class BoundedLoss:
    """A loss between 0 and 1.

    Attributes:
        name: what it is.
        constant: its Lipschitz constant in the scores, Euclidean norm.
        of: what its expectation bounds.
        values: of samples, from scores and classes.
        gamma: margin from which it is zero, for a ramp.
    """

    name: str
    constant: float
    of: str
    values: Callable[[Tensor, Tensor], Tensor]
    gamma: float | None = None


def bounded_losses(name: str, gammas: list[float], clip: float | None) -> list[BoundedLoss]:
    """Return the losses to try: the ramp of the margin at each gamma, or one that was named.

    ``1 - p_y`` has gradient ``-p_y (e_y - p)``, of norm at most ``sqrt(2) p_y (1 - p_y) <= sqrt(2)/4``. Cross-entropy
    cut at the probability ``c`` and divided by ``ln(1/c)`` has constant ``sqrt(2)/ln(1/c)``.
    """
    if name not in LOSSES:
        raise InputError(f"Expected a loss among {', '.join(LOSSES)}, got {name!r}.")
    if name == "ramp":
        return [_ramp(gamma) for gamma in gammas]
    if name == "probability":
        return [BoundedLoss("1 - p_y", math.sqrt(2) / 4, "expected 1 - p_y", lambda s, y: 1 - _right(s, y))]
    if clip is None or not 0 < clip < 1:
        raise RefusedError("cross-entropy is unbounded: clip it (clip=0.001 keeps probabilities above 0.001)")
    scale = math.log(1 / clip)
    label, of = f"cross-entropy clipped at {clip:g}, over {scale:.3g}", "expected clipped cross-entropy"
    return [BoundedLoss(label, math.sqrt(2) / scale, of, lambda s, y: -_right(s, y).clamp_min(clip).log() / scale)]


def _ramp(gamma: float) -> BoundedLoss:
    """Return the ramp of the margin at one gamma."""
    constant = math.sqrt(2) / gamma
    name = f"ramp at {gamma:.4g}"
    return BoundedLoss(name, constant, "this network", lambda s, y: ramp_loss(margins(s, y), gamma), gamma)


def _right(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the probability of the right class."""
    return torch.softmax(scores.double(), 1).gather(1, labels.unsqueeze(1)).squeeze(1)
