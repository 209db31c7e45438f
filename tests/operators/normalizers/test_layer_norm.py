"""Layer normalization: closed forms against automatic differentiation, many digits and pairs of points."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from normscope.core.errors import InputError, NonFiniteError
from normscope.core.statement import statements
from normscope.operators.normalizers import batch_norm as batch
from normscope.operators.normalizers import group_norm as group
from normscope.operators.normalizers.layer_norm import (
    layer_norm_at,
    layer_norm_each,
    layer_norm_global,
    layer_norm_jacobian,
    layer_norm_on_ball,
    layer_norm_on_floor,
    layer_norm_printed,
    layer_norm_range,
    printed_is_bound,
)
from normscope.operators.normalizers.secular_equation import centered_scale_norm
from normscope.papers.than2025 import slides
from operators.normalizers.truth import (
    KINDS,
    digits,
    exact_norm,
    exact_normalizer,
    jacobian_norm,
    kinds,
    offsets,
    scales,
    seeds,
    spreads,
    stabilizers,
    vectors,
)

sizes = st.integers(1, 7)


def layer_norm(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
    """Return layer normalization over the last axis, from its definition."""
    y = x - x.mean(-1, keepdim=True)
    return gamma * y / (y.square().mean(-1, keepdim=True) + eps).sqrt()


def top_direction(gamma: Tensor) -> Tensor:
    """Return the unit centred vector that ``diag(gamma)`` stretches most."""
    n = gamma.numel()
    P = torch.eye(n, dtype=torch.float64) - 1.0 / n
    return torch.linalg.svd(gamma[:, None] * P).Vh[0]


@settings(derandomize=True, deadline=None, max_examples=150)
@given(sizes, kinds, seeds, stabilizers, spreads, offsets)
def test_at_a_point_equals_automatic_differentiation(
    n: int, kind: str, seed: int, eps: float, spread: float, offset: float
) -> None:
    """The closed form agrees with a dense SVD of the autograd Jacobian to 1e-10 of the largest possible norm."""
    if n == 1 and eps == 0:
        return
    x, gamma = vectors(n, seed, spread, offset), scales(n, seed, kind)
    if n > 1:
        x = x - x.mean()  # autograd itself loses digits to an offset; offsets are tested with many digits below
    truth = jacobian_norm(lambda z: layer_norm(z, gamma, eps), x)
    size = float(gamma.abs().max()) * layer_norm_printed(float(x.std(unbiased=False)), eps)
    assert layer_norm_at(x, gamma, eps) == pytest.approx(truth, rel=1e-10, abs=1e-10 * size)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.integers(2, 6), kinds, seeds, stabilizers, spreads, offsets)
def test_at_a_point_is_above_the_exact_norm(
    n: int, kind: str, seed: int, eps: float, spread: float, offset: float
) -> None:
    """With fifty digits the closed form is an upper bound, and not above by more than rounding."""
    x, gamma = vectors(n, seed, spread, offset), scales(n, seed, kind)
    truth = exact_normalizer(x, gamma, eps, centre=True)
    bound = layer_norm_at(x, gamma, eps)
    size = float(gamma.abs().max()) * layer_norm_printed(float(x.std(unbiased=False)), eps)
    assert bound >= truth * (1 - 1e-40)
    assert bound**2 - truth**2 <= 2e-12 * size**2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [2, 3, 8])
def test_constant_vectors_attain_the_global_constant(n: int, kind: str) -> None:
    """At zero variance the Jacobian norm is the constant of all inputs, and no random point exceeds it."""
    gamma, eps = scales(n, 3, kind), 1e-3
    constant = layer_norm_global(gamma, eps)
    flat = torch.full((n,), 0.7, dtype=torch.float64)
    assert layer_norm_at(flat, gamma, eps) == pytest.approx(constant, rel=1e-12)
    assert jacobian_norm(lambda z: layer_norm(z, gamma, eps), flat) == pytest.approx(constant, rel=1e-10)
    points = torch.stack([vectors(n, s, 0.05) for s in range(40)])
    assert layer_norm_at(points, gamma, eps) <= constant * (1 + 1e-12)


@settings(derandomize=True, deadline=None, max_examples=120)
@given(st.integers(1, 7), kinds, seeds)
def test_centered_scale_norm_is_above_the_exact_norm(n: int, kind: str, seed: int) -> None:
    """``||diag(gamma) P||`` with fifty digits, its sandwich, and its closeness."""
    gamma = scales(n, seed, kind)
    values = digits(gamma)
    rows = [[values[i] * ((1 if i == j else 0) - (1 / type(values[0])(n))) for j in range(n)] for i in range(n)]
    truth, bound = exact_norm(rows), centered_scale_norm(gamma)
    ordered = gamma.abs().sort(descending=True).values.tolist()
    assert truth * (1 - 1e-40) <= bound <= float(truth) * (1 + 1e-13) + 1e-300
    assert bound <= ordered[0] * (1 + 1e-14)
    assert n == 1 or bound >= ordered[1]


def test_centered_scale_norm_of_extreme_scales() -> None:
    """Scales near the ends of the float range do not overflow; zero stays zero."""
    gamma = torch.tensor([3.0, 2.0, 1.0, 0.5], dtype=torch.float64)
    for factor in (2.0**-900, 2.0**900):
        assert centered_scale_norm(gamma * factor) == pytest.approx(2.707666 * factor, rel=1e-6)
    assert centered_scale_norm(torch.zeros(5)) == 0.0
    assert centered_scale_norm(torch.tensor([1.0, 0.0])) == pytest.approx(math.sqrt(0.5), rel=1e-14)


def test_acceptance_numbers() -> None:
    """Known values: general scale, two elements, a one-hot scale, one element."""
    assert layer_norm_global(torch.tensor([3.0, 2.0, 1.0, 0.5]), 1e-5) == pytest.approx(856.2392, abs=5e-5)
    assert layer_norm_global(torch.ones(2), 1e-5) == pytest.approx(316.2278, abs=5e-5)
    one_hot = torch.nn.functional.one_hot(torch.tensor(0), 10).double()
    assert layer_norm_global(one_hot, 1e-5) == pytest.approx(300.0, abs=1e-8)
    assert layer_norm_global(torch.ones(1), 1e-5) == 0.0


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_no_stabilizer(n: int) -> None:
    """With ``eps = 0`` the map is not Lipschitz, not defined at constants, and flat in between for two elements."""
    gamma, x = torch.ones(n, dtype=torch.float64), vectors(n, 4)
    assert layer_norm_global(gamma, 0.0) == math.inf
    assert layer_norm_at(torch.zeros(n), gamma, 0.0) == math.inf
    if n == 2:
        assert layer_norm_at(x, gamma, 0.0) == 0.0
    if n > 2:
        assert layer_norm_at(x, gamma, 0.0) == pytest.approx(1 / float(x.std(unbiased=False)), rel=1e-12)


def test_small_sizes_have_their_own_formulas() -> None:
    """One element: zero. Two: ``c eps / (sigma^2 + eps)^{3/2}``. Three: ``c / sqrt(sigma^2 + eps)``."""
    assert layer_norm_at(torch.tensor([4.0]), torch.tensor([9.0]), 1e-5) == 0.0
    pair = layer_norm_at(torch.tensor([3.0, -3.0]), torch.tensor([2.0, -2.0]), 0.5)
    assert pair == pytest.approx(2 * 0.5 / 9.5**1.5, rel=1e-13)
    three = layer_norm_at(torch.tensor([3.0, -3.0, 0.0]), torch.full((3,), -2.0), 0.5)
    assert three == pytest.approx(2 / math.sqrt(6.5), rel=1e-13)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.integers(2, 7), kinds, seeds, st.sampled_from((0.0, 1e-3, 0.1)), st.sampled_from((0.1, 0.5, 3.0)))
def test_floor_is_never_exceeded_by_a_pair(n: int, kind: str, seed: int, eps: float, s: float) -> None:
    """Random and antipodal pairs with standard deviation at least ``s`` stay below the constant."""
    gamma = scales(n, seed, kind)
    bound = layer_norm_on_floor(gamma, eps, s)
    generator = torch.Generator().manual_seed(seed)
    y = torch.randn(2, 400, n, dtype=torch.float64, generator=generator)
    y = y - y.mean(-1, keepdim=True)
    lengths = s * (1 + 2 * torch.rand(2, 400, 1, dtype=torch.float64, generator=generator) ** 3)
    y = y / y.square().mean(-1, keepdim=True).sqrt() * lengths
    a, b = y
    b[:100] = -a[:100]
    b[100:200] = a[100:200] * (1 + 1e-3)
    difference = (layer_norm(a, gamma, eps) - layer_norm(b, gamma, eps)).norm(dim=-1)
    distance = (a - b).norm(dim=-1)
    assert (difference <= bound * distance * (1 + 1e-12) + 1e-14).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [2, 3, 6])
@pytest.mark.parametrize("s", [0.0, 0.5])
def test_floor_is_attained_by_an_antipodal_pair(n: int, kind: str, s: float) -> None:
    """The pair ``+- sqrt(n) s v``, with ``v`` the most stretched direction, has exactly this quotient."""
    gamma, eps = scales(n, 11, kind), 1e-3
    y = top_direction(gamma) * math.sqrt(n) * (s or 1e-7)
    quotient = float((layer_norm(y, gamma, eps) - layer_norm(-y, gamma, eps)).norm() / (2 * y).norm())
    assert quotient == pytest.approx(layer_norm_on_floor(gamma, eps, s), rel=1e-9)


def test_floor_for_two_elements_is_attained_although_the_jacobian_is_small() -> None:
    """The set is not convex: the Jacobian is 0.008 everywhere, an antipodal pair has quotient 1.996."""
    x = torch.tensor([0.5, -0.5], dtype=torch.float64)
    assert layer_norm_at(x, torch.ones(2), 1e-3) < 0.01
    quotient = float((layer_norm(x, torch.ones(2), 1e-3) - layer_norm(-x, torch.ones(2), 1e-3)).norm() / (2 * x).norm())
    assert layer_norm_on_floor(torch.ones(2), 1e-3, 0.5) == pytest.approx(quotient, rel=1e-12)
    assert quotient == pytest.approx(1.99601, abs=1e-5)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.integers(1, 6), kinds, seeds, st.sampled_from((1e-5, 0.1)), st.sampled_from((0.0, 0.1, 1.0, 10.0)))
def test_ball_is_never_exceeded(n: int, kind: str, seed: int, eps: float, radius: float) -> None:
    """Jacobians at points of the ball, and quotients of pairs in it, stay below the bound."""
    x, gamma = vectors(n, seed), scales(n, seed, kind)
    bound = layer_norm_on_ball(x, radius, gamma, eps)
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randn(200, n, dtype=torch.float64, generator=generator)
    steps[0] = -(x - x.mean())  # towards the constant vectors, where the norm is largest
    steps = steps / steps.norm(dim=-1, keepdim=True).clamp_min(1e-300) * radius * (1 - 1e-15)
    points = x + steps
    assert layer_norm_at(points, gamma, eps) <= bound * (1 + 1e-9) + 1e-300
    a, b = points[:100], points[100:]
    apart = (a - b).norm(dim=-1) > 1e-6
    quotient = (layer_norm(a, gamma, eps) - layer_norm(b, gamma, eps)).norm(dim=-1) / (a - b).norm(dim=-1)
    assert (quotient[apart] <= bound * (1 + 1e-9) + 1e-12).all()


@pytest.mark.parametrize("n", [2, 3, 6])
def test_ball_is_attained_for_a_constant_scale(n: int) -> None:
    """The point of the ball nearest to the constants has the Jacobian norm of the bound."""
    x, gamma, eps = vectors(n, 5), torch.full((n,), -1.5, dtype=torch.float64), 0.01
    y = x - x.mean()
    radius = float(y.norm()) / 2
    nearest = x - radius * y / y.norm()
    assert layer_norm_on_ball(x, radius, gamma, eps) == pytest.approx(layer_norm_at(nearest, gamma, eps), rel=1e-10)
    far = layer_norm_on_ball(x, 1e3, gamma, eps)
    assert far == pytest.approx(layer_norm_global(gamma, eps), rel=1e-12)


def test_ball_without_stabilizer() -> None:
    """A ball that reaches the constants has no bound; one that does not, has."""
    x = torch.tensor([1.0, -1.0, 0.0])
    assert layer_norm_on_ball(x, 2.0, torch.ones(3), 0.0) == math.inf
    assert layer_norm_on_ball(x, 0.5, torch.ones(3), 0.0) < 3.0
    assert layer_norm_on_ball(torch.tensor([1.0, -1.0]), 0.5, torch.ones(2), 0.0) == 0.0


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.integers(1, 7), kinds, seeds)
def test_range_holds_and_is_attained(n: int, kind: str, seed: int) -> None:
    """Outputs stay in the ball and in the box, and the worst input reaches both."""
    gamma, beta = scales(n, seed, kind), vectors(n, seed + 5)
    spread = layer_norm_range(gamma, beta)
    x = vectors(n * 50, seed).reshape(50, n) * 1e3
    y = layer_norm(x, gamma, 1e-12) + beta
    assert (y.norm(dim=-1) <= spread.radius * (1 + 1e-12)).all()
    assert (y >= spread.low - 1e-10).all()
    assert (y <= spread.high + 1e-10).all()
    centred = layer_norm_range(gamma, None)
    worst = layer_norm(top_direction(gamma) * 1e6, gamma, 1e-12) if n > 1 else torch.zeros(1)
    assert float(worst.norm()) == pytest.approx(centred.radius, rel=1e-9, abs=1e-12)
    peak = layer_norm(torch.eye(n, dtype=torch.float64)[0] * 1e6, gamma, 1e-12)[0].abs() if n > 1 else torch.tensor(0.0)
    assert float(peak) == pytest.approx(float(centred.high[0]), rel=1e-9, abs=1e-12)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.integers(2, 7), kinds, seeds, st.sampled_from((1e-12, 1e-5, 0.1)))
def test_jacobian_formula(n: int, kind: str, seed: int, eps: float) -> None:
    """The printed Jacobian is that of automatic differentiation."""
    x, gamma = vectors(n, seed), scales(n, seed, kind)
    truth = torch.func.jacrev(lambda z: layer_norm(z, gamma, eps))(x)
    assert torch.allclose(layer_norm_jacobian(x, gamma, eps), truth, rtol=1e-10, atol=1e-11)


def test_batches_and_several_normalized_axes() -> None:
    """A batch gives one norm per vector; the largest is the norm of the block-diagonal Jacobian."""
    x, gamma = vectors(2 * 3 * 4 * 2, 1).reshape(2, 3, 4, 2), vectors(8, 2).reshape(4, 2)
    each = layer_norm_each(x, gamma, 1e-3)
    assert each.shape == (2, 3)
    assert layer_norm_at(x, gamma, 1e-3) == pytest.approx(float(each.max()), rel=1e-15)
    truth = jacobian_norm(lambda z: torch.nn.functional.layer_norm(z, (4, 2), gamma, None, 1e-3), x)
    assert float(each.max()) == pytest.approx(truth, rel=1e-10)
    assert layer_norm_at(x, torch.ones(4, 2), 0.0) == pytest.approx(
        float(layer_norm_each(x, torch.ones(4, 2), 0.0).max()), rel=1e-15
    )


@pytest.mark.parametrize("n", [2, 5])
def test_balls_around_several_vectors_have_the_largest_bound_of_each(n: int) -> None:
    """Wherever the vector of least spread stands."""
    x, gamma = vectors(3 * n, 1).reshape(3, n) * torch.tensor([[1.0], [9.0], [4.0]]), vectors(n, 2)
    each = [layer_norm_on_ball(row, 0.1, gamma, 1e-3) for row in x]
    assert len(set(each)) == 3
    assert layer_norm_on_ball(x, 0.1, gamma, 1e-3) == pytest.approx(max(each), rel=1e-12)


def test_an_offset_costs_no_digits() -> None:
    """A large common offset changes neither the norm nor its certificate."""
    x = torch.tensor([0.0, 1.0, 3.0, -2.0], dtype=torch.float64)
    plain, moved = (layer_norm_at(x + c, torch.ones(4), 1e-5) for c in (0.0, 2.0**40))
    assert moved == pytest.approx(plain, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_dtypes_are_read_exactly(dtype: torch.dtype) -> None:
    """Half precision inputs are the numbers they store."""
    x, gamma = vectors(6, 0).to(dtype), scales(6, 0, "general").to(dtype)
    assert layer_norm_at(x, gamma, 1e-5) == layer_norm_at(x.double(), gamma.double(), 1e-5)


def test_printed_constants_and_where_they_are_bounds() -> None:
    """The lemma is the constant for a scale of ones."""
    assert printed_is_bound(layer_norm_printed(0.0, 1e-5), layer_norm_global(torch.ones(8), 1e-5))
    assert not printed_is_bound(layer_norm_printed(0.0, 1e-5), layer_norm_global(torch.full((8,), 2.0), 1e-5))
    assert layer_norm_printed(0.0, 0.0) == math.inf


def test_printed_formulas_are_registered_as_printed() -> None:
    """What the paper and the slides print is never registered as a plain statement."""
    assert batch.batch_norm_printed
    assert group.group_norm_printed
    assert slides.layer_norm_slides
    homes = ("normscope.operators.normalizers", "normscope.papers.than2025.slides")
    printed = {(s.paper, s.number): s for s in statements() if s.function.startswith(homes)}
    for key in (
        ("than2025", "Lemma 1"),
        ("than2025", "Lemma 2"),
        ("than2025", "Lemma 3"),
        ("than2025slides", "BN"),
        ("than2025slides", "LN"),
        ("than2025slides", "GN"),
    ):
        assert printed[key].holds.startswith("printed")


def test_range_of_one_scale_for_all() -> None:
    """A single scale stands for all elements."""
    one, all_of_them = (layer_norm_range(torch.full((k,), 2.0), None, 9) for k in (1, 9))
    assert one.radius == all_of_them.radius == pytest.approx(6.0, rel=1e-14)
    assert torch.equal(one.high, all_of_them.high)
    with pytest.raises(InputError, match="one for all"):
        layer_norm_range(torch.ones(3), None, 9)


def test_errors() -> None:
    """Wrong shapes, negative numbers and NaN are refused with a reason."""
    with pytest.raises(InputError, match="last axes"):
        layer_norm_at(torch.zeros(3), torch.ones(4), 1e-5)
    with pytest.raises(InputError, match="eps"):
        layer_norm_global(torch.ones(3), -1.0)
    with pytest.raises(InputError, match="radius"):
        layer_norm_on_ball(torch.zeros(3), -1.0, torch.ones(3), 1e-5)
    with pytest.raises(NonFiniteError, match="gamma"):
        layer_norm_global(torch.tensor([1.0, math.nan]), 1e-5)
    with pytest.raises(InputError, match="constant vector"):
        layer_norm_jacobian(torch.ones(3), torch.ones(3), 0.0)


def test_the_global_constant_grows_with_depth_as_the_theory_says() -> None:
    """One block with identity weights and ReLU attains ``sqrt(1 - 1/n)/sqrt(eps)`` near zero (n = 16)."""
    n, eps = 16, 1e-5
    v = torch.full((n,), -1.0 / (n - 1), dtype=torch.float64)
    v[0] = 1.0
    norm = jacobian_norm(lambda z: torch.relu(layer_norm(z, torch.ones(n, dtype=torch.float64), eps)), v * 1e-14)
    assert norm == pytest.approx(306.1862, abs=5e-5)
    assert norm <= layer_norm_global(torch.ones(n), eps)
