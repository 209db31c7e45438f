"""How to measure curvature."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.errors import InputError
from normscope.curvature.problem import Problem
from normscope.graph.objective import LossFunction


@dataclass(frozen=True)
class Settings:
    """How to measure curvature.

    Attributes:
        mode: what BatchNorm does: ``batch``, ``running`` or ``frozen-batch``.
        matrix: ``hessian``, ``ggn``, ``fisher``, ``empirical-fisher`` or ``residual``.
        parameters: name patterns of the parameters to look at.
        top: how many of the largest eigenvalues.
        bottom: how many of the smallest.
        tolerance: relative residual of an eigenvalue.
        max_products: the most products for eigenvalues.
        probes: products for trace and Frobenius norm; 0 for none.
        density: random vectors for the density; 0 for none.
        quotient: compute the spectrum modulo symmetries; by default for small networks.
        symmetry: look for the symmetries of the model; or the names of weights whose rows may be rescaled.
        symmetry_seconds: time for the search of symmetries: 0 for no search, ``math.inf`` for as long as it takes,
            as with ``quotient=True``.
        generators: further flat directions, one a row.
        modes: also compare the largest eigenvalue in all three modes.
        sharpness: also measure the sharpness family.
        radius: of the balls in which sharpness is measured.
        rate: the learning rate in use, for the stability threshold.
        momentum: the momentum in use.
        masks: fixed dropout masks to average over; 0 switches dropout off.
        batch: samples of a batch.
        limit: samples to use.
        dtype: compute in this precision instead of the model's own; float32 by default where that is shorter.
        way: ``retained``, ``recompute`` or ``linearize``; by default by cost.
        seed: random seed.

    Raises:
        InputError: if a number is too small.

    >>> Settings(top=2).top
    2
    """

    mode: str = "batch"
    matrix: str = "hessian"
    parameters: str | Sequence[str] | None = None
    top: int = 5
    bottom: int = 1
    tolerance: float = 1e-5
    max_products: int = 300
    probes: int = 20
    density: int = 0
    quotient: bool | None = None
    symmetry: bool | Sequence[str] = True
    symmetry_seconds: float = 30.0
    generators: Tensor | None = None
    modes: bool = False
    sharpness: bool = False
    radius: float = 0.05
    rate: float | None = None
    momentum: float = 0.0
    masks: int = 0
    batch: int = 128
    limit: int | None = None
    dtype: torch.dtype | None = None
    way: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"top": 1, "bottom": 0, "max_products": 1, "probes": 0, "density": 0, "tolerance": 0.0, "batch": 1}
        for name, low in least.items():
            if not getattr(self, name) >= low:
                raise InputError(f"Expected {name} to be at least {low:g}, got {getattr(self, name)}.")
        if self.limit is not None and self.limit < 1:
            raise InputError(f"Expected limit to be at least 1, got {self.limit}.")

    def problem(self, model: nn.Module, data: Any, loss: LossFunction | None, **changes: Any) -> Problem:
        """Return the loss that is looked at."""
        names = ("mode", "parameters", "masks", "batch", "limit", "dtype", "seed")
        arguments: dict[str, Any] = {name: getattr(self, name) for name in names}
        return Problem(model, data, loss, **(arguments | changes))
