"""Entrywise functions in the graph: parameters reach the curve, ranges narrow the slope."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from networks import points, upper_of
from normscope.core.errors import CaptureError
from operators.refute import Case, nonlinear, program, refuted, without_constant

CURVES: dict[str, Case] = {
    "relu": (torch.relu, (4,), 1.0),
    "leaky relu": (lambda x: F.leaky_relu(x, 0.3), (4,), 1.0),
    "leaky relu that grows": (lambda x: F.leaky_relu(x, -2.5), (4,), 2.5),
    "sigmoid": (torch.sigmoid, (4,), 0.25),
    "tanh": (torch.tanh, (4,), 1.0),
    "gelu": (F.gelu, (4,), 1.1289041766),
    "gelu by tanh": (lambda x: F.gelu(x, approximate="tanh"), (4,), 1.1289930225),
    "silu": (F.silu, (4,), 1.0998393194),
    "mish": (F.mish, (4,), 1.0884980),
    "elu": (lambda x: F.elu(x, 2.0), (4,), 2.0),
    "selu": (F.selu, (4,), 1.7580993408),
    "softplus": (lambda x: F.softplus(x, beta=3.0), (4,), 1.0),
    "hardtanh": (lambda x: F.hardtanh(x, -0.5, 2.0), (4,), 1.0),
    "hardswish": (F.hardswish, (4,), 1.5),
    "hardsigmoid": (F.hardsigmoid, (4,), 1 / 6.0),
    "relu6": (F.relu6, (4,), 1.0),
    "softshrink": (lambda x: F.softshrink(x, 0.3), (4,), 1.0),
    "logsigmoid": (F.logsigmoid, (4,), 1.0),
    "absolute value": (torch.abs, (4,), 1.0),
    "sine": (torch.sin, (4,), 1.0),
    "arc tangent": (torch.atan, (4,), 1.0),
    "error function": (torch.erf, (4,), 2 / math.sqrt(math.pi)),
    "rrelu in evaluation": (lambda x: F.rrelu(x, 0.1, 0.5), (4,), 1.0),
    "first power": (lambda x: x**1.0, (4,), 1.0),
    "prelu per channel": (lambda x: F.prelu(x, torch.tensor([0.1, -3.0]).double()), (2, 3), 3.0),
}  # fmt: skip


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", CURVES)
def test_slopes_on_the_whole_line(name: str) -> None:
    """The largest slope, as the paper and the tables have it, and a point comes close to it."""
    function, shape, constant = CURVES[name]
    checked = refuted(function, *shape, ascent=25)
    upper = math.exp(checked.upper["everywhere"])
    if constant is not None:
        assert upper == pytest.approx(constant, rel=1e-6)
        assert math.exp(checked.attained["everywhere"]) >= 0.98 * constant


@pytest.mark.parametrize(
    ("function", "on_range", "positive"),
    [
        (torch.exp, True, False),
        (torch.log, True, True),
        (torch.sqrt, True, True),
        (torch.rsqrt, True, True),
        (torch.reciprocal, True, True),
        (lambda x: x**3, True, False),
        (lambda x: x**-2, True, True),
        (lambda x: 2.0**x, True, False),
        (torch.sinh, True, False),
        (torch.log, False, False),
        (lambda x: F.hardshrink(x, 0.1), False, False),
        (lambda x: F.threshold(x, 0.0, -1.0), False, False),
    ],
)
def test_slopes_that_need_a_range(function: object, on_range: bool, positive: bool) -> None:
    """No constant on all inputs; one on the range of the data, unless it holds a jump or a pole."""
    data = points(3, 4).abs() + 0.5 if positive else points(3, 4)
    if not positive and function is torch.log:
        checked = refuted(lambda x: torch.log(x.clamp(min=0.0) + 0.0), 4, data=data)
        assert checked.upper["everywhere"] == checked.upper["range"] == math.inf
        return
    without_constant(function, 4, on_range=on_range, data=data)  # type: ignore[arg-type]


def test_a_range_narrows_the_slope() -> None:
    """A sigmoid on [2, 3] is flatter than at zero."""
    data = points(3, 4).clamp(-0.5, 0.5) + 2.5
    checked = refuted(torch.sigmoid, 4, data=data)
    assert math.exp(checked.upper["everywhere"]) == pytest.approx(0.25, rel=1e-9)
    assert checked.upper["range"] <= checked.upper["everywhere"]


def test_gates() -> None:
    """GLU is a product: no constant alone, one on a range."""
    without_constant(lambda x: F.glu(x, 1), 4)
    nonlinear((lambda x: F.glu(x.tanh(), 1), (4,), None))


def test_functions_torch_writes_out() -> None:
    """``x - tanh x`` is a sum of two 1-Lipschitz functions; ``x / (1 + |x|)`` one function, steepest at zero."""
    nonlinear((F.tanhshrink, (4,), 2.0))
    assert math.exp(refuted(F.softsign, 4).upper["everywhere"]) == pytest.approx(1.0, rel=1e-7)


def test_random_slopes_are_refused() -> None:
    """A network that draws anew each time is no depend on the input only."""
    torch.manual_seed(0)
    with pytest.raises(CaptureError, match="depend on the input only"):
        program(lambda x: F.rrelu(x, 0.1, 0.5, training=True), 3)


def test_functions_that_vanish_at_zero_keep_norms() -> None:
    """|g(t)| <= L |t| bounds rows and norms after a normalizer, where entries alone would not."""
    checked = refuted(lambda x: torch.relu(F.layer_norm(x, (6,))).square(), 6)
    assert checked.upper["everywhere"] < math.inf


def test_modules_and_functions_are_the_same() -> None:
    """nn.GELU and F.gelu give one operation."""
    assert refuted(nn.GELU(), 4).upper == refuted(F.gelu, 4).upper


@pytest.mark.parametrize("function", [F.hardsigmoid, F.hardswish])
def test_no_derivative_of_torch_exceeds_the_constant(function: Callable[[Tensor], Tensor]) -> None:
    """Not even where torch takes 1/6 in float32, which is a little larger."""
    x = torch.linspace(-4, 4, 8001, dtype=torch.float64).requires_grad_()
    (slopes,) = torch.autograd.grad(function(x).sum(), x)
    assert float(slopes.abs().max()) <= upper_of(program(function, 2)) <= float(slopes.abs().max()) * (1 + 1e-3)


def _with_unusual_parameters() -> list[tuple[str, float, float]]:
    """Return activations with parameters beyond their usual ones."""
    numbers = (-4.0, -1.0, 0.0, 0.3, 1.0, 5.0)
    cases = [(name, p, 0.0) for name in ("leaky_relu", "prelu", "elu", "celu", "hardshrink") for p in numbers]
    cases += [("softshrink", p, 0.0) for p in numbers if p >= 0]
    cases += [(name, p, q) for name in ("threshold", "rrelu", "clamp") for p in numbers[1:4] for q in numbers[1:5:2]]
    cases += [("softplus", beta, cut) for beta in (0.1, 1.0, 7.0, -1.0) for cut in (-3.0, 0.0, 1.0, 12.0, 20.0, 40.0)]
    return [c for c in cases if c[:2] not in (("celu", 0.0),) and not (c[0] == "rrelu" and c[1] > c[2])]


_FUNCTIONS = {
    "leaky_relu": lambda x, p, q: F.leaky_relu(x, p),
    "prelu": lambda x, p, q: F.prelu(x, torch.tensor([p], dtype=x.dtype)),
    "elu": lambda x, p, q: F.elu(x, p),
    "celu": lambda x, p, q: F.celu(x, p),
    "hardshrink": lambda x, p, q: F.hardshrink(x, p),
    "softshrink": lambda x, p, q: F.softshrink(x, p),
    "threshold": lambda x, p, q: F.threshold(x, p, q),
    "rrelu": lambda x, p, q: F.rrelu(x, p, q, training=False),
    "clamp": lambda x, p, q: x.clamp(torch.tensor([p, q], dtype=x.dtype), torch.tensor([q, p], dtype=x.dtype)),
    "softplus": lambda x, p, q: F.softplus(x, p, q),
}


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", _FUNCTIONS)
def test_unusual_parameters(name: str) -> None:
    """No pair of near points, at branches and elsewhere, has a larger ratio than the constant."""
    grid = torch.linspace(-40, 40, 16001, dtype=torch.float64)  # meets every switch of the parameters above
    for case, p, q in _with_unusual_parameters():
        if case != name:
            continue
        switch = torch.tensor([q / p if name == "softplus" else p, -p], dtype=torch.float64)
        x = torch.cat((grid, switch)).unsqueeze(1).expand(-1, 2)
        upper = upper_of(program(lambda x, p=p, q=q: _FUNCTIONS[name](x, p, q), 2))
        worst = 0.0
        for step in (1e-5, 1e-2):
            for start in (x, x - step, x - step / 2):
                low, high = _FUNCTIONS[name](start, p, q), _FUNCTIONS[name](start + step, p, q)
                gap = ((high - low).abs() - 1e-14 * (1 + start.abs() + low.abs())) / step
                worst = max(worst, gap[gap.isfinite()].max().item())
        # from threshold 20 on the jump of softplus is taken for rounding
        room = math.log1p(math.exp(-q)) / abs(p) / 1e-5 if name == "softplus" and q >= 20 else 0.0
        assert worst <= upper * (1 + 1e-9) + room, (p, q, upper, worst)
