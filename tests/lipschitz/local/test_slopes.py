"""Slopes on intervals: every tangent, secant and remainder of a fine grid lies within them."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from torch import Tensor, nn

from networks import points, program_of
from normscope.lipschitz.local.slopes import ScalarFunction, scalar_of
from normscope.operators.activation import on_tensors
from normscope.operators.scalar.activations import ACTIVATIONS, curve_of, slope

#: Functions with a bounded slope on the whole line.
NAMES = sorted(
    name
    for name in ACTIVATIONS
    if math.isfinite(slope(name)) and name not in ("identity", "neg", "prelu", "clamp", "sin", "cos", "softplus")
)


def _scalar(name: str) -> ScalarFunction:
    defaults = {key: p.default for key, p in inspect.signature(ACTIVATIONS[name]).parameters.items()}
    inexact = 2.0**-24 if name in ("hardsigmoid", "hardswish") else 0.0  # torch rounds 1/6 to float32
    return ScalarFunction(on_tensors(name, defaults), curve_of(name), inexact)


@pytest.mark.parametrize("name", NAMES)
def test_every_secant_and_tangent_lies_in_its_sector(name: str) -> None:
    g = _scalar(name)
    z = torch.cat([3 * points(200), torch.tensor([0.0, 3.0, -3.0, 1e-13], dtype=torch.float64)])
    reach = 2.0 * torch.rand(len(z), generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** 3
    found = g.sectors(z, 1e-12, -reach, 0.7 * reach)
    for share in torch.linspace(0, 1, 41, dtype=torch.float64):
        d = -reach + share * 1.7 * reach
        tangent = g.derivative(z + d) - found.nominal
        inner = d.abs() > 1e-3
        secant = (g.function(z + d) - g.function(z)) / d - found.nominal
        remainder = g.function(z + d) - g.function(z) - found.nominal * d
        assert _within(tangent, found.tangent, 1e-12)
        assert _within(secant[inner], (found.secant[0][inner], found.secant[1][inner]), 1e-11)
        assert _within(remainder, found.remainder, 1e-13)


def _within(x: Tensor, ends: tuple[Tensor, Tensor], room: float) -> bool:
    return bool(((ends[0] - room <= x) & (x <= ends[1] + room)).all())


def test_a_relu_that_barely_crosses_has_a_small_secant_and_a_full_tangent() -> None:
    g = _scalar("relu")
    one = torch.ones(1, dtype=torch.float64)
    found = g.sectors(-0.9 * one, 0.0, -one, one)
    assert found.tangent == (0.0, 1.0)
    assert found.secant[0] == 0.0
    assert float(found.secant[1]) == pytest.approx(0.1, rel=1e-9)
    assert float(found.remainder[1]) == pytest.approx(0.1, rel=1e-9)


def test_a_kink_within_the_error_of_the_point_has_all_slopes() -> None:
    g = _scalar("relu")
    found = g.sectors(torch.full((1,), 1e-9, dtype=torch.float64), 1e-8, *2 * [torch.zeros(1, dtype=torch.float64)])
    assert float(found.tangent[1] - found.tangent[0]) == 1.0


@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_a_kink_within_the_error_beyond_an_end_belongs_to_the_interval(side: float) -> None:
    z, reach = torch.full((1,), -side, dtype=torch.float64), torch.full((1,), 1.0 - 1e-9, dtype=torch.float64)
    ends = (0.0 * z, reach) if side > 0 else (-reach, 0.0 * z)
    found = _scalar("relu").sectors(z, 1e-8, *ends)
    assert float(found.tangent[1] - found.tangent[0]) == 1.0


@pytest.mark.parametrize("name", ["relu", "leaky_relu"])
def test_an_interval_whose_ends_are_not_numbers_has_all_slopes(name: str) -> None:
    """Or those that the other end leaves."""
    low = torch.tensor([math.nan, math.nan, 1.0, -1.0], dtype=torch.float64)
    high = torch.tensor([math.nan, -1.0, math.nan, math.nan], dtype=torch.float64)
    least, most = _scalar(name).tangents(low, high)
    flat = slope(name, None, -2.0, -1.0)
    assert least.tolist() == [flat, flat, 1.0, flat]
    assert most.tolist() == [1.0, flat, 1.0, 1.0]


def test_a_slope_outside_the_domain_is_unknown() -> None:
    low, high = _scalar("sqrt").tangents(torch.tensor([-1.0]), torch.tensor([1.0]))
    assert math.isinf(low)
    assert math.isinf(high)


def test_rules_of_programs_have_their_functions() -> None:
    class Gate(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.sigmoid(1.7 * x)

    x = points(1, 5)
    for model in (nn.PReLU(5), nn.Softplus(), nn.Hardtanh(), Gate(), nn.ReLU6()):
        model = model.double()
        rules = [a.atom for a in program_of(model, x).atoms if a.atom.inputs]
        g = scalar_of(rules[-1])
        assert g is not None
        torch.testing.assert_close(g.function(x), model(x).detach(), rtol=1e-12, atol=1e-12)
        low, high = g.tangents(x - 0.1, x + 0.1)
        slope = torch.autograd.functional.jacobian(lambda z, m=model: m(z).sum(), x)
        assert bool(((low <= slope + 1e-12) & (slope <= high + 1e-12)).all())


def test_other_operations_are_no_scalar_functions() -> None:
    (rule,) = [a.atom for a in program_of(nn.Softmax(-1), points(1, 3)).atoms if a.atom.inputs]
    assert scalar_of(rule) is None
