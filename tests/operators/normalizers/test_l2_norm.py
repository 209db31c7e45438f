"""Normalization to length one, with three stabilizers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from networks import Lambda, points, program_of, upper_of
from networks import jacobian_norm as network_jacobian_norm
from normscope.core.errors import InputError
from normscope.operators.normalizers.l2_norm import (
    Form,
    l2_norm_at,
    l2_norm_global,
    l2_norm_on_ball,
    l2_norm_on_floor,
)
from operators.normalizers.published import ScaleNorm
from operators.normalizers.truth import jacobian_norm, seeds, vectors

FORMS: tuple[Form, ...] = ("max", "add", "square")
forms = st.sampled_from(FORMS)


def normalize(x: Tensor, eps: float, form: Form) -> Tensor:
    """Return the normalization from its definition."""
    length = x.square().sum(-1, keepdim=True).sqrt()
    if form == "max":
        return x / length.clamp_min(eps)
    return x / (length + eps) if form == "add" else x / (length.square() + eps).sqrt()


@settings(derandomize=True, deadline=None, max_examples=120)
@given(st.integers(1, 6), forms, seeds, st.sampled_from((1e-12, 1e-3, 0.5, 20.0)), st.sampled_from((0.05, 1.0, 30.0)))
def test_at_a_point_equals_automatic_differentiation(n: int, form: Form, seed: int, eps: float, spread: float) -> None:
    """The closed form agrees with the dense Jacobian, inside and outside of the stabilizer."""
    x = vectors(n, seed, spread)
    truth = jacobian_norm(lambda z: normalize(z, eps, form), x)
    bound = l2_norm_at(x, eps, form)
    assert bound == pytest.approx(truth, rel=1e-10, abs=1e-14 / float(x.norm()))
    assert bound >= truth * (1 - 1e-13) - 1e-14 / float(x.norm())


def test_the_functional_of_pytorch_is_the_first_form() -> None:
    """``torch.nn.functional.normalize`` divides by ``max(||x||, eps)``."""
    x = vectors(12, 1).reshape(3, 4)
    assert torch.allclose(torch.nn.functional.normalize(x, dim=-1, eps=0.5), normalize(x, 0.5, "max"))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("s", [0.0, 0.2, 2.0])
def test_floor_holds_for_all_pairs_and_is_attained(form: Form, n: int, s: float) -> None:
    """Random, close and antipodal pairs stay below; the antipodal pair on the floor reaches the constant."""
    eps = 0.3
    bound = l2_norm_on_floor(eps, s, form)
    y = vectors(2 * 500 * n, 3).reshape(2, 500, n)
    y = y / y.norm(dim=-1, keepdim=True) * (s + vectors(1000, 4).abs().reshape(2, 500, 1) ** 3)
    y[1, :100] = -y[0, :100]
    a, b = y
    keep = (a - b).norm(dim=-1) > 1e-9
    quotient = ((normalize(a, eps, form) - normalize(b, eps, form)).norm(dim=-1) / (a - b).norm(dim=-1))[keep]
    assert (quotient <= bound * (1 + 1e-7)).all()
    x = torch.zeros(n, dtype=torch.float64)
    x[0] = s or 1e-9
    attained = float((normalize(x, eps, form) - normalize(-x, eps, form)).norm() / (2 * x).norm())
    assert attained == pytest.approx(bound, rel=1e-7)


def test_global_constants() -> None:
    """``1/eps``, ``1/eps`` and ``1/sqrt(eps)``; infinite without a stabilizer."""
    assert l2_norm_global(1e-4) == pytest.approx(1e4, rel=1e-14)
    assert l2_norm_global(1e-4, "add") == pytest.approx(1e4, rel=1e-14)
    assert l2_norm_global(1e-4, "square") == pytest.approx(1e2, rel=1e-14)
    assert all(l2_norm_global(0.0, form) == math.inf for form in FORMS)
    assert l2_norm_at(torch.zeros(3), 0.0) == math.inf
    assert l2_norm_at(torch.zeros(1), 0.0, "add") == math.inf


def test_the_kink_counts_its_steeper_side() -> None:
    """At length ``eps`` one element is steep inside and flat outside."""
    assert l2_norm_at(torch.tensor([0.5]), 0.5) == pytest.approx(2.0, rel=1e-13)
    assert l2_norm_at(torch.tensor([0.6]), 0.5) == 0.0


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.integers(1, 5), forms, seeds, st.sampled_from((0.0, 0.3, 5.0)))
def test_ball_is_never_exceeded(n: int, form: Form, seed: int, radius: float) -> None:
    """Local constants at points of the ball stay below the bound."""
    x, eps = vectors(n, seed), 0.1
    bound = l2_norm_on_ball(x, radius, eps, form)
    steps = vectors(50 * n, seed + 1).reshape(50, n)
    steps[0] = -x
    steps = steps / steps.norm(dim=-1, keepdim=True) * radius * (1 - 1e-15)
    assert l2_norm_at(x + steps, eps, form) <= bound * (1 + 1e-9)


def test_batches_take_the_shortest_vector() -> None:
    """Vectors lie along the last axis."""
    x = torch.tensor([[3.0, 4.0], [0.6, 0.8]])
    assert l2_norm_at(x, 1e-12) == pytest.approx(1.0, rel=1e-6)


def test_errors() -> None:
    """An unknown form is refused."""
    with pytest.raises(InputError, match="'max', 'add' or 'square'"):
        l2_norm_global(1.0, "cube")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="eps"):
        l2_norm_on_floor(-1.0, 0.0)


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
    assert upper == pytest.approx(3.0 * l2_norm_global(1e-2), rel=1e-9)
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
