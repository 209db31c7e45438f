"""Normalization to length one, with three stabilizers."""

from __future__ import annotations

import pytest
from torch import nn

from networks import Lambda, points, program_of, upper_of
from networks import jacobian_norm as network_jacobian_norm
from operators.normalizers.published import ScaleNorm


@pytest.mark.parametrize("form", ["first", "inverse", "last"])
def test_a_gain_may_stand_anywhere(form: str) -> None:
    """ScaleNorm is division by the length, with its gain before, inside or after the division."""
    model = ScaleNorm(form, eps=1e-2).double()
    program = program_of(model, points(2, 3, 6))
    (site,) = program.sites
    assert site.kind == "l2_norm"
    assert site.gamma is not None
    assert float(site.gamma) == pytest.approx(3.0)
    upper = upper_of(program)
    assert upper == pytest.approx(3.0 / 1e-2, rel=1e-9)
    assert network_jacobian_norm(model, points(1, 3, 6) * 1e-6) == pytest.approx(upper, rel=1e-9)
    assert network_jacobian_norm(model, points(1, 3, 6)) <= upper


def test_other_gains_before_the_division() -> None:
    """A vector, a number, and both."""
    gain = points(6)
    functions = (
        lambda s, x: (s.g * x) / (x.norm(dim=-1, keepdim=True) + 1e-2),
        lambda s, x: x * 2.0 * (s.g / x.square().sum(-1, keepdim=True).add(1e-4).sqrt()),
    )
    for function, top in zip(functions, (1.0, 2.0), strict=True):
        model = Lambda(function, g=nn.Parameter(gain))
        program = program_of(model, points(2, 6))
        assert [s.kind for s in program.sites] == ["l2_norm"]
        worst = network_jacobian_norm(model, points(1, 6) * 1e-9)
        assert upper_of(program) == pytest.approx(top * float(gain.abs().max()) * 100.0, rel=1e-6)
        assert worst == pytest.approx(upper_of(program), rel=1e-4)
