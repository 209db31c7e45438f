"""Roots of quadratic forms: lengths and deviations that are written out."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from networks import points, program_of, upper_of
from normscope.operators.root_of_form import RootOfForm

N = 6


class _Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def _masked(x: Tensor) -> Tensor:
    """Return the deviation as it is computed where some entries may be missing, and none is."""
    seen = torch.ones_like(x)
    count = seen.sum(1, keepdim=True).clamp_min(1.0)
    mean = (x * seen).sum(1, keepdim=True) / count
    return torch.sqrt((((x - mean) * seen) ** 2).sum(1) / count.squeeze(1) + 1e-5)


#: The function, and the norm of its derivative far from zero: the largest there is.
FORMS: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "variance": (lambda x: torch.sqrt(x.var(1, unbiased=False) + 1e-5), 1 / math.sqrt(N)),
    "unbiased variance": (lambda x: x.var(1).sqrt(), 1 / math.sqrt(N - 1)),
    "mean square": (lambda x: (x.pow(2).mean(1) + 1e-5).sqrt(), 1 / math.sqrt(N)),
    "sum of squares": (lambda x: ((x * x).sum(1, keepdim=True) + 1e-8) ** 0.5, 1.0),
    "difference of moments": (
        lambda x: ((x**2).mean(1) - x.mean(1) ** 2).clamp(min=1e-6).sqrt(), 1 / math.sqrt(N)
    ),
    "squares and their sum": (
        lambda x: torch.sqrt(x.square().sum(1) + 2 * x.sum(1).square() + 1e-3), math.sqrt(1 + 2 * N)
    ),
    "missing entries": (_masked, 1 / math.sqrt(N)),
}  # fmt: skip
#: Square roots that have no finite constant on all inputs.
OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum of absolute values": lambda x: torch.sqrt(x.abs().sum(1)),
    "fourth powers": lambda x: torch.sqrt((x**4).sum(1) + 1e-5),
    "a product of neighbours": lambda x: torch.sqrt((x * x.roll(1, 1)).sum(1).square() + 1e-5),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_constant_is_that_of_a_seminorm(name: str) -> None:
    """It is the largest derivative, which random inputs come near and none exceeds."""
    function, truth = FORMS[name]
    program = program_of(_Function(function), points(2, N))
    assert any(isinstance(atom.atom, RootOfForm) for atom in program.atoms)
    upper = upper_of(program)
    assert upper == pytest.approx(truth, rel=1e-6)
    for scale in (1e-3, 1.0, 1e3):
        for x in scale * torch.randn(20, N, dtype=torch.float64, generator=torch.Generator().manual_seed(0)):
            slope = torch.autograd.functional.jacobian(lambda z: function(z[None]).flatten(), x)
            assert float(slope.norm()) <= upper
    along = 1e3 * (torch.ones(N) if name == "squares and their sum" else torch.arange(N) - (N - 1) / 2).double()
    attained = torch.autograd.functional.jacobian(lambda z: function(z[None]).flatten(), along).norm()
    assert float(attained) == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize("name", OTHERS)
def test_other_roots_stay_what_they_are(name: str) -> None:
    """What is no form has no constant on all inputs."""
    program = program_of(_Function(OTHERS[name]), points(2, N))
    assert not any(isinstance(atom.atom, RootOfForm) for atom in program.atoms)
    assert upper_of(program) == math.inf
