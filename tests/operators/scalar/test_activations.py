"""Slopes and images of activations against PyTorch on dense grids and against many-digit optima."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from normscope.core.errors import InputError
from normscope.operators.scalar.activations import (
    ACTIVATIONS,
    UnknownActivationError,
    curve_of,
    image,
    jump_is_rounding,
    power,
    slope,
)

mpmath.mp.dps = 50
Function = Callable[[Tensor], Tensor]

#: Activation, parameters, the same function in PyTorch, and the interval its arguments are drawn from.
CASES: list[tuple[str, dict[str, Any], Function, tuple[float, float]]] = [
    ("identity", {}, lambda x: x * 1.0, (-9, 9)),
    ("relu", {}, F.relu, (-9, 9)),
    ("leaky_relu", {"negative_slope": -1.7}, lambda x: F.leaky_relu(x, -1.7), (-9, 9)),
    ("prelu", {"weight": torch.tensor([0.25])}, lambda x: F.prelu(x, torch.tensor([0.25]).double()), (-9, 9)),
    ("elu", {}, F.elu, (-9, 9)),
    ("elu", {"alpha": 1.5, "scale": 2.0, "input_scale": 0.7}, lambda x: torch.ops.aten.elu(x, 1.5, 2.0, 0.7), (-9, 9)),
    ("elu", {"alpha": 1.5, "scale": 2.0, "input_scale": 3.0}, lambda x: torch.ops.aten.elu(x, 1.5, 2.0, 3.0), (-2, 2)),
    ("elu", {"alpha": 1.5, "scale": -2.0}, lambda x: torch.ops.aten.elu(x, 1.5, -2.0, 1.0), (-9, 9)),
    ("elu", {"alpha": -2.0}, lambda x: F.elu(x, -2.0), (-9, 9)),
    ("celu", {"alpha": 3.0}, lambda x: F.celu(x, 3.0), (-9, 9)),
    ("celu", {"alpha": -3.0}, lambda x: F.celu(x, -3.0), (-9, 9)),
    ("selu", {}, F.selu, (-9, 9)),
    ("gelu", {}, F.gelu, (-9, 9)),
    ("gelu", {"approximate": "tanh"}, lambda x: F.gelu(x, approximate="tanh"), (-9, 9)),
    ("silu", {}, F.silu, (-12, 12)),
    ("mish", {}, F.mish, (-12, 12)),
    ("sigmoid", {}, torch.sigmoid, (-12, 12)),
    ("log_sigmoid", {}, F.logsigmoid, (-12, 12)),
    # F.hardsigmoid multiplies by a float32 constant 1/6 even for float64; the definition is the reference
    ("hardsigmoid", {}, lambda x: F.relu6(x + 3.0) / 6.0, (-6, 6)),
    ("hardswish", {}, F.hardswish, (-6, 6)),
    ("hardtanh", {"min_val": -0.5, "max_val": 2.0}, lambda x: F.hardtanh(x, -0.5, 2.0), (-6, 6)),
    ("clamp", {"min": -1.0}, lambda x: x.clamp(min=-1.0), (-6, 6)),
    ("clamp", {"max": 1.0}, lambda x: x.clamp(max=1.0), (-6, 6)),
    ("clamp", {"min": 2.0, "max": 1.0}, lambda x: x.clamp(2.0, 1.0), (-6, 6)),
    ("relu6", {}, F.relu6, (-3, 9)),
    ("tanh", {}, torch.tanh, (-9, 9)),
    ("tanhshrink", {}, F.tanhshrink, (-9, 9)),
    ("softplus", {}, F.softplus, (-30, 30)),
    ("softplus", {"beta": 3.0, "threshold": 15.0}, lambda x: F.softplus(x, 3.0, 15.0), (-6, 6)),
    ("softsign", {}, F.softsign, (-9, 9)),
    ("softshrink", {"lambd": 0.8}, lambda x: F.softshrink(x, 0.8), (-4, 4)),
    ("threshold", {"threshold": 1.5, "value": 1.5}, lambda x: F.threshold(x, 1.5, 1.5), (-4, 4)),
    ("erf", {}, torch.erf, (-4, 4)),
    ("erfc", {}, torch.erfc, (-4, 4)),
    ("atan", {}, torch.atan, (-9, 9)),
    ("asinh", {}, torch.asinh, (-9, 9)),
    ("sinh", {}, torch.sinh, (-4, 4)),
    ("cosh", {}, torch.cosh, (-4, 4)),
    ("sin", {}, torch.sin, (-20, 20)),
    ("cos", {}, torch.cos, (-20, 20)),
    ("abs", {}, torch.abs, (-4, 4)),
    ("neg", {}, torch.neg, (-4, 4)),
    ("exp", {}, torch.exp, (-5, 3)),
    ("exp2", {}, torch.exp2, (-5, 3)),
    ("expm1", {}, torch.expm1, (-5, 3)),
    ("log", {}, torch.log, (0.2, 9)),
    ("log2", {}, torch.log2, (0.2, 9)),
    ("log10", {}, torch.log10, (0.2, 9)),
    ("log1p", {}, torch.log1p, (-0.8, 9)),
    ("asin", {}, torch.asin, (-0.9, 0.9)),
    ("acos", {}, torch.acos, (-0.9, 0.9)),
    ("atanh", {}, torch.atanh, (-0.9, 0.9)),
    ("acosh", {}, torch.acosh, (1.1, 9)),
    ("sqrt", {}, torch.sqrt, (0.2, 9)),
    ("rsqrt", {}, torch.rsqrt, (0.2, 9)),
    ("square", {}, torch.square, (-4, 4)),
    ("reciprocal", {}, torch.reciprocal, (0.2, 9)),
    ("reciprocal", {}, torch.reciprocal, (-9, -0.2)),
    ("pow", {"exponent": 3.0}, lambda x: x**3, (-3, 3)),
    ("pow", {"exponent": 4.0}, lambda x: x**4, (-3, 3)),
    ("pow", {"exponent": -3.0}, lambda x: x**-3, (-3, -0.5)),
    ("pow", {"exponent": 1.5}, lambda x: x**1.5, (0.1, 3)),
    ("pow", {"exponent": 0.0}, lambda x: x**0 + 0 * x, (-3, 3)),
    ("pow", {"exponent": 1.0}, lambda x: x**1.0, (-3, 3)),
]
NAMES = [f"{name}{index}" for index, (name, *_) in enumerate(CASES)]
POINTS = 4001


def grid(function: Function, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Return values and slopes by automatic differentiation at the midpoints of a dense grid, and at its ends."""
    edges = torch.linspace(low, high, POINTS, dtype=torch.float64)
    x = torch.cat([edges, (edges[1:] + edges[:-1]) / 2]).requires_grad_()
    y = function(x)
    return y.detach(), torch.autograd.grad(y.sum(), x)[0][POINTS:]


@pytest.mark.parametrize(("name", "params", "function", "span"), CASES, ids=NAMES)
def test_on_intervals(name: str, params: dict[str, Any], function: Function, span: tuple[float, float]) -> None:
    """On many intervals the slope and the image are never exceeded and are nearly reached."""
    generator = torch.Generator().manual_seed(hash_of(name))
    for _ in range(12):
        ends = span[0] + (span[1] - span[0]) * torch.rand(2, generator=generator, dtype=torch.float64)
        low, high = sorted(ends.tolist())
        values, slopes = grid(function, low, high)
        constant, (least, most) = slope(name, params, low, high), image(name, params, low, high)
        scale = 1.0 + slopes.abs().max().item()
        assert slopes.abs().max() <= constant * (1 + 1e-12) + 1e-14
        assert constant <= slopes.abs().max() + 5e-3 * scale
        assert least - 1e-14 * (1 + abs(least)) <= values.min()
        assert values.max() <= most + 1e-14 * (1 + abs(most))
        assert least >= values.min() - 1e-3 * scale
        assert most <= values.max() + 1e-3 * scale


@pytest.mark.parametrize(("name", "params", "function", "span"), CASES, ids=NAMES)
def test_pieces_leave_no_gap(name: str, params: dict[str, Any], function: Function, span: tuple[float, float]) -> None:
    """Each piece begins where the one before it ends or earlier, and together they cover the span."""
    pieces = curve_of(name, params).pieces
    assert all(after.low <= before.high for before, after in itertools.pairwise(pieces))
    assert pieces[0].low <= span[0] < span[1] <= pieces[-1].high


def hash_of(name: str) -> int:
    """Return a seed from a name, the same in every run."""
    return sum(ord(c) * (i + 1) for i, c in enumerate(name))


@pytest.mark.parametrize(("name", "params", "function", "span"), CASES, ids=NAMES)
def test_difference_quotients(name: str, params: dict[str, Any], function: Function, span: tuple[float, float]) -> None:
    """No pair of points of the interval has a larger difference quotient."""
    generator = torch.Generator().manual_seed(1 + hash_of(name))
    x, y = (span[0] + (span[1] - span[0]) * torch.rand(2, 4000, generator=generator, dtype=torch.float64)).unbind()
    keep = (x - y).abs() > 1e-3
    quotient = ((function(x) - function(y)).abs() / (x - y).abs())[keep].max().item()
    # softplus jumps by 2e-9 (or exp(-threshold)) at its threshold, the assumption stated in the documentation
    jump = math.exp(-params.get("threshold", 20.0)) / 1e-3 if name == "softplus" else 0.0
    assert quotient <= slope(name, params, *span) * (1 + 1e-11) + jump


def steepest(derivative: Callable[[Any], Any], start: float) -> Any:
    """Return the value of the derivative at the stationary point near ``start``, with fifty digits."""
    where = mpmath.findroot(lambda x: mpmath.diff(derivative, x), start)
    return abs(derivative(where))


K = mpmath.sqrt(2 / mpmath.pi)
GATED = {
    "gelu": (lambda x: x * mpmath.ncdf(x), {}, 1.41, -0.75),
    "gelu-tanh": (
        lambda x: x * (1 + mpmath.tanh(K * (x + mpmath.mpf(0.044715) * x**3))) / 2,
        {"approximate": "tanh"},
        1.4,
        -0.75,
    ),
    "silu": (lambda x: x / (1 + mpmath.exp(-x)), {}, 2.4, -1.28),
    "mish": (lambda x: x * mpmath.tanh(mpmath.log(1 + mpmath.exp(x))), {}, 1.5, -1.19),
}


@pytest.mark.parametrize("key", GATED)
def test_the_optimum_has_all_digits(key: str) -> None:
    """The largest slope and the smallest value agree with fifty-digit optima and lie on the safe side."""
    function, params, bend, turn = GATED[key]
    name = key.split("-")[0]
    truth = steepest(lambda x: mpmath.diff(function, x), bend)
    assert truth <= slope(name, params) <= truth * (1 + 1e-13)
    bottom = function(mpmath.findroot(lambda x: mpmath.diff(function, x), turn))
    least = image(name, params)[0]
    assert bottom * (1 + mpmath.mpf(1e-13)) <= least <= bottom


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("relu", 1.0), ("leaky_relu", 1.0), ("elu", 1.0), ("celu", 1.0), ("tanh", 1.0), ("softplus", 1.0),
        ("identity", 1.0), ("hardtanh", 1.0), ("relu6", 1.0), ("sigmoid", 0.25), ("log_sigmoid", 1.0),
        ("hardswish", 1.5), ("softsign", 1.0), ("tanhshrink", 1.0), ("softshrink", 1.0), ("atan", 1.0), ("sin", 1.0),
        ("cos", 1.0), ("abs", 1.0), ("neg", 1.0), ("prelu", 1.0), ("asinh", 1.0),
    ],
)  # fmt: skip
def test_exact_constants_are_exact(name: str, value: float) -> None:
    """Where the constant is a short number it is returned as that number."""
    assert slope(name) == value


@pytest.mark.parametrize(
    ("name", "params", "value"),
    [
        ("gelu", {}, 1.128904), ("gelu", {"approximate": "tanh"}, 1.128993), ("silu", {}, 1.099839),
        ("mish", {}, 1.088498), ("selu", {}, 1.758099), ("hardsigmoid", {}, 1 / 6), ("erf", {}, 1.128379),
    ],
)  # fmt: skip
def test_known_constants(name: str, params: dict[str, Any], value: float) -> None:
    """The constants of the literature, to six digits."""
    assert slope(name, params) == pytest.approx(value, abs=5e-7)


def test_selu_and_hardsigmoid_are_rounded_up() -> None:
    """Rational constants are at least the exact product or quotient."""
    alpha, scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
    assert Fraction(slope("selu")) >= Fraction(alpha) * Fraction(scale)
    assert Fraction(slope("hardsigmoid")) >= Fraction(1, 6)
    assert Fraction(-image("selu")[0]) >= Fraction(alpha) * Fraction(scale)


@pytest.mark.parametrize(
    "name", ["exp", "log", "sqrt", "rsqrt", "square", "reciprocal", "expm1", "log1p", "pow", "sinh"]
)
def test_unbounded_on_the_line(name: str) -> None:
    """Functions without a global constant say so."""
    assert slope(name) == math.inf


def test_jumps() -> None:
    """Hardshrink and threshold are not Lipschitz across their jump, and are on either side of it."""
    assert slope("hardshrink") == math.inf
    assert slope("hardshrink", {"lambd": 0.5}, -0.5, 0.5) == 0.0
    assert slope("hardshrink", {"lambd": 0.5}, 0.5, 0.6) == math.inf
    assert slope("hardshrink", {"lambd": 0.5}, 0.51, 7.0) == 1.0
    assert slope("hardshrink", {"lambd": 0.5}, -0.6, -0.5) == math.inf
    assert slope("hardshrink", {"lambd": 0.0}) == 1.0
    assert slope("threshold", {"threshold": 1.0, "value": 3.0}) == math.inf
    assert slope("threshold", {"threshold": 1.0, "value": 3.0}, -5.0, 1.0) == 0.0
    assert slope("threshold", {"threshold": 1.0, "value": 3.0}, 1.5, 2.0) == 1.0
    assert image("threshold", {"threshold": 1.0, "value": 3.0}, 0.0, 2.0) == (1.0, 3.0)
    assert image("hardshrink", {"lambd": 0.5}, -2.0, 1.0) == (-2.0, 1.0)


def test_poles_and_ends_of_domains() -> None:
    """Slopes are infinite at poles, at the ends of domains and outside them."""
    assert slope("sqrt", None, 0.0, 1.0) == math.inf
    assert slope("log", None, 0.0, 1.0) == math.inf
    assert slope("reciprocal", None, -1.0, 1.0) == math.inf
    assert slope("sqrt", None, -1.0, 1.0) == math.inf
    assert image("sqrt", None, -1.0, 1.0) == (-math.inf, math.inf)
    assert image("reciprocal", None, -1.0, 1.0) == (-math.inf, math.inf)
    assert image("log", None, 0.0, 1.0)[0] == -math.inf
    assert image("sqrt", None, 0.0, 4.0)[0] == 0.0
    assert slope("pow", {"exponent": 1.5}, 0.0, 4.0) == pytest.approx(3.0, rel=1e-12)


def test_kinks_are_seen_from_the_right_side_only() -> None:
    """An interval that touches a kink does not pay for the other side, a point at the kink does."""
    assert slope("leaky_relu", {"negative_slope": 3.0}, 0.0, 5.0) == 1.0
    assert slope("leaky_relu", {"negative_slope": 3.0}, -5.0, 0.0) == 3.0
    assert slope("leaky_relu", {"negative_slope": 3.0}, 0.0, 0.0) == 3.0
    assert slope("relu", None, -2.0, -1.0) == 0.0


def test_prelu_takes_every_channel() -> None:
    """Several slopes are bounded together."""
    weight = torch.tensor([0.5, -3.0, 0.0])
    assert slope("prelu", {"weight": weight}) == 3.0
    assert image("prelu", {"weight": weight}, -2.0, 1.0) == pytest.approx((-1.0, 6.0))
    assert slope("prelu", {"weight": [0.5, 0.25]}) == 1.0
    with pytest.raises(InputError, match="finite slopes"):
        slope("prelu", {"weight": [math.nan]})


def test_softplus_image_covers_the_linear_branch() -> None:
    """Beyond the threshold PyTorch returns x, which lies below the smooth function."""
    low, high = image("softplus", None, 21.0, 30.0)
    assert low <= 21.0
    assert high >= 30.0
    assert F.softplus(torch.tensor(21.0, dtype=torch.float64)).item() == 21.0
    with pytest.raises(InputError, match="beta"):
        slope("softplus", {"beta": 0.0})


@pytest.mark.parametrize(("beta", "threshold"), [(5.0, 1.0), (1.0, 13.0), (1.0, -3.0), (0.001, 5.0)])
def test_softplus_with_a_small_threshold_is_discontinuous(beta: float, threshold: float) -> None:
    """PyTorch's two branches differ where they meet; on one side of it there is a constant."""
    parameters, switch = {"beta": beta, "threshold": threshold}, threshold / beta
    ends = torch.tensor([switch * (1 - 1e-12), switch * (1 + 1e-12)], dtype=torch.float64).sort().values
    ratio = (F.softplus(ends, beta, threshold).diff() / ends.diff()).abs().item()
    assert ratio > 1e4
    assert slope("softplus", parameters) == slope("softplus", parameters, switch - 1.0, switch + 1.0) == math.inf
    assert slope("softplus", parameters, switch - 2.0, switch - 1.0) <= 1.0
    assert slope("softplus", parameters, switch + 1.0, switch + 2.0) == 1.0


def test_softplus_jumps_by_two_billionths() -> None:
    """The stated assumption is the true size of the jump."""
    x = torch.tensor([20.0, math.nextafter(20.0, 30.0)], dtype=torch.float64)
    jump = F.softplus(x).diff().abs().item()
    assert 2.0e-9 < jump < 2.1e-9


@pytest.mark.parametrize("name", ["sigmoid", "tanh", "gelu", "silu", "mish", "softplus", "exp", "erf", "elu"])
def test_far_out(name: str) -> None:
    """Far from zero the enclosures hold and nothing overflows."""
    for x in (-1e300, -800.0, -50.0, 50.0, 700.0):
        low, high = image(name, None, x, x)
        assert low <= high
        assert slope(name, None, x, x) >= 0
    assert image(name, None, -1e300, 1e300)[0] <= image(name, None, -1.0, 1.0)[0]


def test_beyond_the_float_range() -> None:
    """A finite value that no float can hold is enclosed, not replaced by infinity."""
    low, high = image("exp", None, 800.0, 900.0)
    assert low < math.inf
    assert high == math.inf
    assert image("exp", None, -900.0, -800.0)[1] > 0.0


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.sampled_from(range(len(CASES))), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_a_smaller_interval_has_a_smaller_slope_and_image(case: int, a: float, b: float, c: float, d: float) -> None:
    """Slope and image grow with the interval."""
    name, params, _, (start, stop) = CASES[case]
    ends = sorted(start + (stop - start) * t for t in (a, b, c, d))
    inner, outer = (ends[1], ends[2]), (ends[0], ends[3])
    assert slope(name, params, *inner) <= slope(name, params, *outer) * (1 + 1e-12) + 1e-13
    small, large = image(name, params, *inner), image(name, params, *outer)
    slack = 1e-12 * (1 + max(map(abs, large)))
    assert large[0] - slack <= small[0]
    assert small[1] <= large[1] + slack


def test_zero_is_kept_exactly() -> None:
    """Functions that vanish at zero have the image zero there."""
    for name in ("relu", "tanh", "gelu", "silu", "mish", "sin", "erf", "elu", "selu", "softsign", "hardswish", "sqrt"):
        assert image(name, None, 0.0, 0.0) == (0.0, 0.0)


def test_errors_say_what_is_known() -> None:
    """Unknown names and parameters are refused, with what there is."""
    with pytest.raises(UnknownActivationError, match=r"No rule for the activation 'swish9'\. Known activations: abs"):
        slope("swish9")
    with pytest.raises(KeyError):
        image("swish9")
    with pytest.raises(InputError, match="leaky_relu has"):
        slope("leaky_relu", {"alpha": 1.0})
    with pytest.raises(InputError, match="low <= high"):
        slope("relu", None, 2.0, 1.0)
    with pytest.raises(InputError, match="low <= high"):
        slope("relu", None, math.nan, 1.0)
    with pytest.raises(InputError, match="'none' or 'tanh'"):
        slope("gelu", {"approximate": "quick"})
    with pytest.raises(InputError, match="alpha != 0"):
        slope("celu", {"alpha": 0.0})
    with pytest.raises(InputError, match="lambd >= 0"):
        slope("softshrink", {"lambd": -1.0})


def test_every_entry_is_an_activation_with_a_case() -> None:
    """The table is complete and every entry is compared with PyTorch, or tested for its jump."""
    assert set(ACTIVATIONS) - {name for name, *_ in CASES} == {"hardshrink"}


ends = st.floats(-100, 100).map(lambda x: round(x, 3))


@settings(derandomize=True, deadline=None)
@given(st.integers(2, 7), ends, ends)
def test_natural_powers(p: int, a: float, b: float) -> None:
    """Slope and image enclose the exact rational ones, closely."""
    low, high = sorted((a, b))
    curve = power(float(p))
    steepest = p * max(abs(Fraction(low)), abs(Fraction(high))) ** (p - 1)
    slope = Fraction(curve.slope(low, high))
    assert steepest <= slope <= steepest * (1 + Fraction(1, 10**12)) + Fraction(1, 10**300)
    values = [Fraction(low) ** p, Fraction(high) ** p] + ([Fraction(0)] if low <= 0 <= high else [])
    least, most = curve.image(low, high)
    assert Fraction(least) <= min(values)
    assert Fraction(most) >= max(values)
    assert Fraction(least) >= min(values) - abs(min(values)) * Fraction(1, 10**12) - Fraction(1, 10**300)


@settings(derandomize=True, deadline=None)
@given(st.integers(-4, -1), st.floats(0.01, 100), st.floats(0.01, 100), st.booleans())
def test_negative_powers_on_one_side(p: int, a: float, b: float, mirrored: bool) -> None:
    """Away from the pole slope and image enclose the exact rational ones."""
    low, high = sorted((-a, -b) if mirrored else (a, b))
    curve = power(float(p))
    nearest = min(abs(Fraction(low)), abs(Fraction(high)))
    steepest = -p * nearest ** (p - 1)
    assert steepest <= Fraction(curve.slope(low, high)) <= steepest * (1 + Fraction(1, 10**12))
    least, most = curve.image(low, high)
    values = [Fraction(low) ** p, Fraction(high) ** p]
    assert Fraction(least) <= min(values)
    assert max(values) <= Fraction(most)


@pytest.mark.parametrize("p", [-1.0, -2.0, -3.0, -0.5, 0.5])
def test_the_pole_and_the_root_at_zero(p: float) -> None:
    """Zero is infinitely steep for every exponent below one."""
    curve = power(p)
    assert curve.slope(0.0, 1.0) == math.inf
    assert curve.slope(0.0, 0.0) == math.inf


def test_signs_around_a_pole() -> None:
    """An odd negative power runs to both infinities, an even one to one."""
    assert power(-1.0).image(-1.0, -0.5)[1] < 0
    assert power(-1.0).image(-1.0, 0.0)[0] == -math.inf
    assert power(-2.0).image(-1.0, 1.0)[0] == pytest.approx(1.0)


def test_trivial_exponents() -> None:
    """Exponents zero and one are a constant and the identity."""
    assert power(0.0).slope() == 0.0
    assert power(0.0).image() == (1.0, 1.0)
    assert power(1.0).slope() == 1.0
    assert power(2.5).slope(-1.0, 1.0) == math.inf  # not defined on the left
    with pytest.raises(InputError, match="finite exponent"):
        power(math.nan)


def test_overflow() -> None:
    """Values beyond the float range become bounds that hold."""
    assert power(9.0).image(0.0, 1e300)[1] == math.inf
    assert power(9.0).slope(0.0, 1e300) == math.inf
    assert power(3.0).image(-1e300, 0.0) == (-math.inf, 0.0)


LINE = [-700.0, -30.0, -2.0, -1e-9, 0.0, 0.3, 5.0, 30.0, 700.0]
UNIT_INTERVAL = [-1.0 + 1e-9, -0.5, 0.0, 0.1, 0.999]
#: Exact function, exact derivative, arguments.
EXACT: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], list[float]]] = {
    "exp": (mpmath.exp, mpmath.exp, LINE),
    "exp2": (lambda t: mpmath.mpf(2) ** t, lambda t: mpmath.log(2) * mpmath.mpf(2) ** t, LINE),
    "expm1": (mpmath.expm1, mpmath.exp, LINE),
    "log": (mpmath.log, lambda t: 1 / t, [1e-300, 0.2, 1.0, 1e300]),
    "log2": (lambda t: mpmath.log(t, 2), lambda t: 1 / t / mpmath.log(2), [1e-300, 0.2, 1.0, 1e300]),
    "log10": (mpmath.log10, lambda t: 1 / t / mpmath.log(10), [1e-300, 0.2, 1.0, 1e300]),
    "log1p": (mpmath.log1p, lambda t: 1 / (1 + t), [-1 + 1e-10, -0.5, 1e-12, 3.0, 1e10]),
    "sin": (mpmath.sin, mpmath.cos, [-1e5, -2.0, 0.0, 1e-5, 3.0, 1e15]),
    "cos": (mpmath.cos, lambda t: -mpmath.sin(t), [-1e5, -2.0, 0.0, 1e-5, 3.0, 1e15]),
    "sinh": (mpmath.sinh, mpmath.cosh, LINE),
    "cosh": (mpmath.cosh, mpmath.sinh, LINE),
    "asin": (mpmath.asin, lambda t: 1 / mpmath.sqrt(1 - t * t), UNIT_INTERVAL),
    "acos": (mpmath.acos, lambda t: -1 / mpmath.sqrt(1 - t * t), UNIT_INTERVAL),
    "atanh": (mpmath.atanh, lambda t: 1 / (1 - t * t), UNIT_INTERVAL),
    "atan": (mpmath.atan, lambda t: 1 / (1 + t * t), [-1e200, -3.0, 0.0, 0.5, 1e10]),
    "asinh": (mpmath.asinh, lambda t: 1 / mpmath.sqrt(1 + t * t), [-1e200, -3.0, 0.0, 0.5, 1e10]),
    "acosh": (mpmath.acosh, lambda t: 1 / mpmath.sqrt(t * t - 1), [1 + 1e-9, 2.0, 1e10]),
    "erf": (mpmath.erf, lambda t: 2 / mpmath.sqrt(mpmath.pi) * mpmath.exp(-t * t), [-30.0, -2.0, 0.0, 1e-8, 5.0]),
    "erfc": (mpmath.erfc, lambda t: -2 / mpmath.sqrt(mpmath.pi) * mpmath.exp(-t * t), [-30.0, -2.0, 0.0, 1e-8, 26.0]),
    "sigmoid": (lambda t: 1 / (1 + mpmath.exp(-t)), lambda t: 1 / (1 + mpmath.exp(-t)) / (1 + mpmath.exp(t)), LINE),
    "log_sigmoid": (lambda t: -mpmath.log1p(mpmath.exp(-t)), lambda t: 1 / (1 + mpmath.exp(t)), LINE),
    "tanh": (mpmath.tanh, lambda t: mpmath.sech(t) ** 2, LINE),
    "tanhshrink": (lambda t: t - mpmath.tanh(t), lambda t: mpmath.tanh(t) ** 2, LINE),
    "softsign": (lambda t: t / (1 + abs(t)), lambda t: 1 / (1 + abs(t)) ** 2, LINE),
    "silu": (GATED["silu"][0], lambda t: mpmath.diff(GATED["silu"][0], t), [-30.0, -2.0, 0.0, 0.3, 30.0]),
    "elu": (lambda t: mpmath.expm1(t), lambda t: mpmath.exp(t), [-700.0, -30.0, -2.0, -1e-9]),
}


@pytest.mark.parametrize("name", EXACT)
def test_points_enclose_the_truth(name: str) -> None:
    """Value and slope at a point lie between floats a unit or two apart, at all scales."""
    value_of, slope_of, arguments = EXACT[name]
    with mpmath.workdps(650):
        for x in arguments:
            for exact, (low, high) in ((value_of, image(name, None, x, x)), (slope_of, slopes(name, x))):
                truth = exact(mpmath.mpf(x))
                assert low <= truth <= high
                assert high - low <= 1e-15 * abs(truth) + mpmath.mpf(1e-36)


def slopes(name: str, x: float) -> tuple[float, float]:
    """Return the enclosure of a slope at a point."""
    return curve_of(name).slopes(x, x)


@pytest.mark.parametrize("name", ["exp", "exp2", "expm1", "sinh", "cosh"])
def test_overflow_is_infinite_and_has_the_right_sign(name: str) -> None:
    """Arguments beyond the float range give unbounded slopes and one-sided images."""
    curve = curve_of(name)
    assert curve.slope(0.0, 5000.0) == math.inf
    assert curve.image(0.0, 5000.0)[1] == math.inf
    low = curve.image(-5000.0, 0.0)[0]
    assert low == (-math.inf if name == "sinh" else curve.least)


@pytest.mark.parametrize(
    ("name", "end"), [("log", 0.0), ("log1p", -1.0), ("acosh", 1.0), ("asin", 1.0), ("atanh", -1.0)]
)
def test_ends_of_the_domain_are_infinitely_steep(name: str, end: float) -> None:
    """At the end of the domain the slope is infinite."""
    assert curve_of(name).slope(end, end) == math.inf


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (1.0, 2.0), (2.0, 5.0), (3.0, 3.3), (-4.6, -1.6), (100.0, 101.0)]
)
def test_waves_on_intervals(low: float, high: float) -> None:
    """Sine and cosine reach their extrema exactly when the interval holds them."""
    for name, function in (("sin", math.sin), ("cos", math.cos)):
        values = [function(low + (high - low) * k / 20000) for k in range(20001)]
        least, most = curve_of(name).image(low, high)
        assert least <= min(values)
        assert most >= max(values)
        assert least >= min(values) - 1e-7
        assert most <= max(values) + 1e-8


def test_a_jump_of_softplus_that_counts_as_rounding_is_at_most_one_unit() -> None:
    """One unit of float32 in the last place, and for some thresholds more than half of one."""
    thresholds = [14.0 + 0.01 * i for i in range(600)]
    counted = [math.log1p(math.exp(-t)) / float(np.spacing(np.float32(t))) for t in thresholds if jump_is_rounding(t)]
    assert 0.5 < max(counted) <= 1.0
