"""EvoNorms: all are seen; S2 has a bound, and for the others the Jacobian grows without one."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from networks import Lambda, jacobian_norm, points, program_of, seeded, upper_of
from normscope.operators.normalizers.evo_norm import WORST, evo_norm_constants, evo_norm_global
from operators.normalizers.published import EvoNorm, group_std


def _variant(activation: nn.Module) -> nn.Module:
    return Lambda(lambda s, x: s.h(x) / group_std(x, 2, 1e-2, centred=False), h=activation)


@pytest.mark.parametrize("form", ["B0", "B1", "B2", "S0", "S1", "S2"])
def test_every_form_is_seen(form: str) -> None:
    """And every one of a network."""
    model = seeded(nn.Sequential(EvoNorm(form, 4), nn.Conv2d(4, 4, 1), EvoNorm(form, 4)))
    program = program_of(model, points(2, 4, 3, 3))
    assert [s.kind for s in program.sites] == ["evo_norm", "evo_norm"]
    assert (upper_of(program) < math.inf) == (form == "S2")
    assert (evo_norm_constants(program.sites[0]).proved.log < math.inf) == (form == "S2")


@pytest.mark.parametrize("activation", [nn.SiLU(), nn.ReLU(), nn.GELU(), nn.Tanh(), nn.LeakyReLU(0.3)])
def test_over_a_root_mean_square_the_bound_holds(activation: nn.Module) -> None:
    """For other activations too; at small inputs some come near it."""
    model = _variant(activation).double()
    program = program_of(model, points(2, 4, 3, 3))
    assert [s.kind for s in program.sites] == ["evo_norm"]
    upper = upper_of(program)
    worst = max(jacobian_norm(model, points(1, 4, 3, 3, seed=i) * size) for i in range(2) for size in (1e-6, 0.1, 3.0))
    assert worst <= upper
    assert worst >= (0.9 if isinstance(activation, nn.ReLU | nn.Tanh | nn.LeakyReLU) else 0.4) * upper


def test_the_bound_is_a_closed_form() -> None:
    """The maximum of ``(1 + t) sqrt(1 - t)``, on a grid."""
    t = torch.linspace(0, 1, 100_001, dtype=torch.float64)
    assert float(((1 + t) * (1 - t).sqrt()).max()) == pytest.approx(WORST, rel=1e-9)
    assert evo_norm_global(2.0, 0.25) == pytest.approx(4 * WORST, rel=1e-12)
    assert evo_norm_global(1.0, 0.0) == math.inf


@pytest.mark.parametrize("form", ["S0", "S1"])
def test_over_a_standard_deviation_there_is_none(form: str) -> None:
    """The Jacobian grows with the mean of a group."""
    model = seeded(EvoNorm(form, 4))
    with torch.no_grad():
        model.v.fill_(1.0)
    x = points(1, 4, 3, 3) * 0.1
    norms = [jacobian_norm(model, x + c) for c in (10.0, 100.0, 1000.0)]
    assert norms[1] > 5 * norms[0]
    assert norms[2] > 5 * norms[1]


def test_below_a_maximum_there_is_none() -> None:
    """B0: where ``v x + std`` is small although x is large. B2: where ``rms - x`` is."""
    model, n = EvoNorm("B0", 1, eps=1e-3).double().eval(), 9
    with torch.no_grad():
        model.v.fill_(0.2)
        norms = []
        for large in (1e2, 1e3, 1e4):
            x = torch.full((1, 1, 3, 3), -(large - (0.2 * large + 2.0) * n / math.sqrt(n - 1)), dtype=torch.float64)
            x[0, 0, 0, 0] = -large
            norms.append(jacobian_norm(model, x))
    assert norms[1] > 5 * norms[0]
    assert norms[2] > 5 * norms[1]
    other = EvoNorm("B2", 1, eps=1e-3).double().eval()
    norms = [jacobian_norm(other, torch.full((1, 1, 3, 3), c).double() + _bump(c)) for c in (1e2, 1e3, 1e4)]
    assert norms[1] > 5 * norms[0]
    assert norms[2] > 5 * norms[1]


def _bump(c: float) -> Tensor:
    """Return what makes ``rms - x`` two at the first entry of a constant map."""
    x = torch.zeros(1, 1, 3, 3, dtype=torch.float64)
    x[0, 0, 1:] = 2.0 * 9 / 6
    return x


def test_an_activation_before_its_own_normalizer_is_no_evo_norm() -> None:
    """``h/rms(h)`` is RMSNorm of h."""

    def function(s: Lambda, x: Tensor) -> Tensor:
        h = F.silu(x)
        return h / (h.square().mean(-1, keepdim=True) + 1e-3).sqrt()

    assert [s.kind for s in program_of(Lambda(function), points(2, 6)).sites] == ["rms_norm"]
