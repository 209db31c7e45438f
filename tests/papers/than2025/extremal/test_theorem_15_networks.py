"""Theorem 15: the gradient of the training loss as prescribed, to 1e-10 of differentiation off the kinks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from normscope.core.errors import InputError, NonFiniteError
from normscope.papers.than2025.extremal import GradientExtremal, theorem_15

LOSSES = {
    "square": lambda p, y: (p - y) ** 2,
    "logistic": lambda p, y: nn.functional.softplus(-(2 * y - 1) * p),
    "linear": lambda p, y: p * (1 + y),
}


def _data(m: int, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    return (
        torch.randn(m, n, generator=source, dtype=torch.float64) + 0.3,
        torch.randint(0, 2, (m,), generator=source).double(),
    )


def _weight(rows: int, columns: int, seed: int = 1) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _autograd(net: GradientExtremal, x: Tensor, y: Tensor, loss: str) -> Tensor:
    weight = dict(net.module.named_parameters())[net.parameter]
    (gradient,) = torch.autograd.grad(LOSSES[loss](net.module(x), y).mean(), weight)
    return gradient


@pytest.mark.parametrize("loss", sorted(LOSSES))
@pytest.mark.parametrize("activation", [None, nn.Tanh(), nn.Softplus()], ids=str)
@pytest.mark.parametrize(("widths", "layer"), [([4, 3, 5, 2], 1), ([4, 3, 5, 2], 2), ([2, 6, 3, 3], 1), ([3, 3, 4], 2)])
def test_equals_differentiation(widths: list[int], layer: int, activation: nn.Module | None, loss: str) -> None:
    """Every entry, rows that do not reach the output included."""
    x, y = _data(9, widths[0])
    net = theorem_15(
        widths, 1.3, _weight(widths[layer], widths[layer - 1]), x, y, LOSSES[loss],
        layer=layer, output=0.7, activation=activation,
    )  # fmt: skip
    exact = _autograd(net, x, y, loss)
    scale = max(1.0, float(exact.abs().max()))
    assert float((net.gradient - exact).abs().max()) <= 1e-10 * scale
    assert float(exact.abs().max()) > 1e-6
    norm = float(torch.linalg.matrix_norm(exact))
    assert net.log_norm == pytest.approx(math.log(norm), abs=1e-10)
    rows = min(widths[layer:])
    assert not net.gradient[rows:].any()
    assert net.factor.value == pytest.approx(0.7 * 1.3 ** (len(widths) - 1 - layer), rel=1e-12)


def test_the_indicator_at_a_kink() -> None:
    """A row of zeros gives no gradient: the indicator is of ``> 0``, not of ``>= 0`` as printed."""
    x, y = _data(5, 3)
    weight = _weight(3, 3).abs()
    weight[1] = 0.0
    net = theorem_15([3, 3, 3], 2.0, weight, x, y, LOSSES["linear"])
    exact = _autograd(net, x, y, "linear")
    assert torch.allclose(net.gradient, exact, rtol=1e-12, atol=0.0)
    assert not exact[1].any()
    assert exact[0].all()


def test_explosion_past_the_range_of_floats() -> None:
    """Depth 1200: the factor is a logarithm; a loss with a bounded slope still has its gradient."""
    x, y = _data(4, 2)
    net = theorem_15([2] * 1201, 2.0, torch.eye(2, dtype=torch.float64), x, torch.zeros_like(y), LOSSES["logistic"])
    assert net.factor.log == pytest.approx(1199 * math.log(2), rel=1e-12)
    assert net.log_norm == pytest.approx(net.factor.log + math.log(float(torch.linalg.matrix_norm(net.relative))))
    assert float(net.gradient[0, 0]) == math.inf
    small = theorem_15([2] * 1201, 0.5, torch.eye(2, dtype=torch.float64), x, y, LOSSES["square"])
    assert float(small.gradient.abs().max()) == 0.0
    assert small.log_norm == pytest.approx(-1199 * math.log(2), rel=1e-2)


def test_saturation_turns_explosion_into_vanishing() -> None:
    """Remark 16 needs a slope bounded below: with tanh and squares the gradient falls as the scales grow."""
    x, y = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    sizes = {
        name: [
            float(theorem_15([1, 1, 1], a, one, x, y, LOSSES[loss], activation=g).gradient.abs()) for a in (1, 10, 100)
        ]
        for name, loss, g in (("tanh", "square", nn.Tanh()), ("square", "square", None), ("logistic", "logistic", None))
    }
    assert sizes["tanh"][0] > 100 * sizes["tanh"][1] > sizes["tanh"][2]
    assert sizes["square"] == pytest.approx([2.0, 200.0, 20000.0], rel=1e-12)  # of order a^2
    assert sizes["logistic"][2] == pytest.approx(100.0, rel=1e-6)  # of order a


def test_nothing_of_the_user_is_touched() -> None:
    """The weight is copied; the data has no graph."""
    x, y = _data(3, 2)
    weight = _weight(2, 2)
    kept = weight.clone()
    net = theorem_15([2, 2, 2], 2.0, weight, x, y, LOSSES["square"])
    with torch.no_grad():
        for parameter in net.module.parameters():
            parameter.zero_()
    assert torch.equal(weight, kept)
    assert not x.requires_grad


def test_wrong_arguments() -> None:
    """Each says what holds and what came."""
    x, y = _data(3, 2)
    good = torch.eye(2, dtype=torch.float64)
    with pytest.raises(InputError, match="a layer from 1 to 1"):
        theorem_15([2, 2], 1.0, good, x, y, LOSSES["square"], layer=2)
    with pytest.raises(InputError, match=r"of shape \(2, 2\) for layer 1, got \(3, 2\)"):
        theorem_15([2, 2], 1.0, torch.ones(3, 2), x, y, LOSSES["square"])
    with pytest.raises(InputError, match="rows of 2 numbers"):
        theorem_15([2, 2], 1.0, good, x[0], y, LOSSES["square"])
    with pytest.raises(InputError, match="positive"):
        theorem_15([2, 2, 2], [1.0, 0.0], good, x, y, LOSSES["square"])
    with pytest.raises(InputError, match="positive"):
        theorem_15([2, 2, 2], 1.0, good, x, y, LOSSES["square"], output=-1.0)
    with pytest.raises(NonFiniteError, match="no finite derivative at the output inf"):
        theorem_15([2] * 1201, 2.0, good, x, y, LOSSES["square"])
    with pytest.raises(NonFiniteError, match="input of layer 1200"):
        theorem_15([2] * 1201, 2.0, good, x, y, LOSSES["logistic"], layer=1200)
