"""The parts of extremal networks: exact norms, both sides of a product, layers without randomness."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from fingerprints import fingerprint
from normscope import analyze
from normscope.core.errors import InputError, NonFiniteError
from normscope.core.value import Kind
from normscope.papers.than2025.extremal import Extremal, layer_norm_blow_up, remark_7, scaled_output, theorem_6
from normscope.papers.than2025.extremal.theorem_6_networks import (
    both_sides,
    checked_input,
    linear,
    relu_network,
    scaled_identity,
    square_norm,
)


def test_both_sides_enclose_the_product() -> None:
    """Ten factors of 0.1 and the root of two, exactly as fractions."""
    high, low = both_sides((0.1,) * 10, "than2025 Theorem 6", "here", Fraction(2))
    exact = Fraction(0.1) ** 20 * 2
    assert Fraction(low.value) ** 2 <= exact <= Fraction(high.value) ** 2
    assert high.value == pytest.approx(low.value, rel=1e-12)
    assert both_sides((), "", "")[0].value == both_sides((), "", "")[1].value == 1.0
    assert both_sides((0.0, 3.0), "", "")[0].value == 0.0


def test_norms_are_exact() -> None:
    """Also where squares leave the range of floats."""
    assert (
        square_norm(torch.tensor([1e200, 1e-200], dtype=torch.float64)) == Fraction(1e200) ** 2 + Fraction(1e-200) ** 2
    )


def test_layers() -> None:
    """Rectangular identities, a weight as given, an activation after every layer."""
    assert scaled_identity(3, 2, 2.0, torch.float32).tolist() == [[2.0, 0.0], [0.0, 2.0], [0.0, 0.0]]
    weight = torch.tensor([[1.0, -2.0]])
    assert torch.equal(linear(weight).weight, weight)
    net = relu_network([weight, -torch.ones(1, 1)])
    assert [type(m).__name__ for m in net] == ["Linear", "ReLU", "Linear", "ReLU"]
    assert not any(p.is_meta for p in net.parameters())


def test_inputs() -> None:
    """The first unit vector, or a real finite vector that fits."""
    assert checked_input(None, 3, torch.float64).tolist() == [1.0, 0.0, 0.0]
    with pytest.raises(InputError, match="a real vector of 3 numbers"):
        checked_input(torch.ones(2), 3, torch.float64)
    with pytest.raises(NonFiniteError):
        checked_input(torch.tensor([math.nan, 0.0]), 2, torch.float64)


SHAPES = [[5, 3, 7, 2, 4], [1, 1], [1, 9, 1], [4, 4, 4, 4], [2, 8, 3]]


@pytest.mark.parametrize("widths", SHAPES, ids=str)
def test_the_jacobian_has_the_product_as_norm(widths: list[int]) -> None:
    """At the point, by dense differentiation; and no pair of points gives more."""
    scales = [2.0, 0.5, 3.0, 1.5][: len(widths) - 1]
    net = theorem_6(widths, scales)
    jacobian = torch.autograd.functional.jacobian(net.module, net.point)
    norm = float(torch.linalg.matrix_norm(jacobian, 2))
    assert norm == pytest.approx(math.prod(scales), rel=1e-14)
    assert net.attained.value <= math.prod(scales) <= net.constant.value
    assert net.constant.value == pytest.approx(math.prod(scales), rel=1e-13)
    assert (net.constant.kind, net.attained.kind) == (Kind.CERTIFIED, Kind.LOWER)
    source = torch.Generator().manual_seed(0)
    a, b = (torch.randn(500, widths[0], generator=source, dtype=torch.float64) for _ in range(2))
    quotients = torch.linalg.vector_norm(net.module(a) - net.module(b), dim=1) / torch.linalg.vector_norm(a - b, dim=1)
    assert float(quotients.max().detach()) <= net.constant.value


@pytest.mark.turns(2)
@pytest.mark.parametrize(("scale", "digits"), [(2.0, 1505.1499783), (0.5, -1505.1499783)])
def test_depth_five_thousand(scale: float, digits: float) -> None:
    """In the log domain; the network itself attains it, though its output is no float."""
    net = theorem_6([3] * 5001, scale)
    assert net.constant.log10 == pytest.approx(digits, rel=1e-9)
    attained = scaled_output(net.module, net.point).log  # type: ignore[arg-type]
    assert net.attained.log - 1e-8 <= attained <= net.constant.log + 1e-8
    with torch.no_grad():
        plain = float(net.module(net.point)[0])
        assert plain == 0.0 or not math.isfinite(plain)


def test_scales_as_the_type_holds_them() -> None:
    """In float32 a tenth is another number, and the constant is that of the network as it is."""
    net = theorem_6([2, 2], 0.1, dtype=torch.float32)
    held = float(torch.tensor(0.1, dtype=torch.float32))
    assert net.attained.value <= held <= net.constant.value
    assert net.constant.value != pytest.approx(0.1, rel=1e-10)
    assert next(net.module.parameters()).dtype == torch.float32


def test_a_zero_scale_kills_the_network() -> None:
    """The constant is zero, and the network constant."""
    net = theorem_6([2, 2, 2], [3.0, 0.0])
    assert (net.constant.value, net.attained.value) == (0.0, 0.0)
    assert not net.module(net.point).any()


def test_the_analysis_finds_the_constant() -> None:
    """The upper bound of the whole network is the product, and what it attains too: the bound is tight there."""
    net = theorem_6([4, 6, 3, 5], [2.0, 0.5, 3.0])
    result = analyze(net.module, net.point[None].repeat(4, 1), points=2, ascent=0)
    upper, lower = result.end_to_end["global"], result.end_to_end["lower"]
    assert upper is not None
    assert lower is not None
    assert net.attained.log <= upper.log == pytest.approx(math.log(3.0), abs=1e-9)
    assert lower.log <= net.constant.log


def test_no_random_number_is_drawn() -> None:
    """The global generator is where it was."""
    probe = torch.nn.Identity()
    before = fingerprint(probe)
    theorem_6([3, 3], 1.0)
    assert fingerprint(probe) == before


@pytest.mark.parametrize(
    ("widths", "scales", "text"),
    [
        ([3], 1.0, "at least two"),
        ([3, 0], 1.0, "at least two positive integers"),
        ([3, True], 1.0, "at least two positive integers"),
        ([3, 3], [1.0, 2.0], "one scale for each of the 1 layers, got 2"),
        ([3, 3], -1.0, ">= 0"),
        ([3, 3], math.nan, "finite"),
        ([3, 3], 1e39, "range of torch.float32"),
        ([3, 3], 1e-60, "range of torch.float32"),
    ],
)
def test_wrong_arguments(widths: list[int], scales: float, text: str) -> None:
    """Each says what holds and what came."""
    with pytest.raises(InputError, match=text):
        theorem_6(widths, scales, dtype=torch.float32)


def test_rates_enclose_the_product() -> None:
    """``K low <= log prod a <= K high``."""
    scales = [1.5, 3.0, 2.0]
    low, high = remark_7(scales)
    constant = theorem_6([2] * 4, scales).constant.log
    assert 3 * low <= constant <= 3 * high
    assert low == pytest.approx(math.log(1.5))


def test_scales_above_one_whose_product_stays_small() -> None:
    """``prod (1 + 2^-k)`` converges to 2.384..., so its rate goes to zero."""
    scales = [1 + 2.0**-k for k in range(1, 51)]
    assert min(scales) > 1
    assert theorem_6([1] * 51, scales).constant.value == pytest.approx(2.384231, rel=1e-6)
    assert remark_7(scales)[0] < 1e-14


@pytest.mark.parametrize("scales", [[], [0.0], [-1.0], [math.inf]])
def test_wrong_scales(scales: list[float]) -> None:
    """Positive numbers, at least one."""
    with pytest.raises(InputError, match="positive"):
        remark_7(scales)


def _norm(net: Extremal) -> float:
    jacobian = torch.autograd.functional.jacobian(net.module, net.point)
    return float(torch.linalg.matrix_norm(jacobian, 2))


@pytest.mark.parametrize(("depth", "known"), [(1, 306.1862), (2, 90773.05), (3, 2.691090e7), (4, 7.9781e9)])
def test_known_numbers(depth: int, known: float) -> None:
    """Width 16 and eps 1e-5; the un-normalized network has the constant one."""
    net = layer_norm_blow_up(16, depth)
    assert net.attained.value == pytest.approx(known, rel=1e-5)
    assert _norm(net) == pytest.approx(net.attained.value, rel=1e-8)
    assert _norm(net) <= net.constant.value
    assert net.constant.value == pytest.approx(1e-5 ** (-depth / 2), rel=1e-12)


@pytest.mark.parametrize("width", [2, 3, 7])
@pytest.mark.parametrize("eps", [1e-5, 1e-2, 1.0])
def test_any_width_and_eps(width: int, eps: float) -> None:
    """The closed form is approached."""
    net = layer_norm_blow_up(width, 3, eps)
    expected = (1 - 1 / width) ** 2.5 * eps**-1.5
    assert net.attained.value == pytest.approx(expected, rel=1e-12)
    assert _norm(net) == pytest.approx(expected, rel=1e-6)


def test_with_the_identity_it_is_exact() -> None:
    """At zero, ``eps^(-K/2)``."""
    net = layer_norm_blow_up(6, 3, activation="identity")
    assert _norm(net) == pytest.approx(net.constant.value, rel=1e-12)
    assert net.attained.log <= net.constant.log <= net.attained.log + 1e-12
    moved = torch.autograd.functional.jvp(net.module, net.point, net.direction)[1]
    assert float(torch.linalg.vector_norm(moved)) == pytest.approx(net.constant.value, rel=1e-9)


def test_far_past_the_range_of_floats() -> None:
    """Two thousand layers: logarithms, and the point is zero since no float is small enough."""
    net = layer_norm_blow_up(4, 2000)
    assert net.constant.log10 == pytest.approx(5000.0, rel=1e-12)
    assert net.attained.log10 == pytest.approx(5000.0 + 1999.5 * math.log10(0.75), rel=1e-12)
    assert not net.point.any()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"width": 1, "depth": 2}, "at least 2"),
        ({"width": 3, "depth": 0}, "at least 1"),
        ({"width": 3, "depth": 2, "eps": 0.0}, "eps > 0"),
        ({"width": 3, "depth": 2, "activation": "tanh"}, "relu or identity"),
    ],
)
def test_wrong_blow_ups(arguments: dict[str, int], text: str) -> None:
    """Each says what holds and what came."""
    with pytest.raises(InputError, match=text):
        layer_norm_blow_up(**arguments)  # type: ignore[arg-type]
