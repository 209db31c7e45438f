"""The l1 loss of Corollary 14: the root of the rows that reach the output, by differentiation."""

from __future__ import annotations

import pytest
import torch

from normscope.core.errors import InputError
from normscope.papers.than2025.extremal import l1_loss


@pytest.mark.parametrize("layer", [1, 2, 3])
@pytest.mark.parametrize("widths", [[3, 4, 5, 6], [2, 3, 1, 4], [5, 5, 5, 5]], ids=str)
def test_gradient_of_the_loss(widths: list[int], layer: int) -> None:
    """``||dL/dW_i||_F`` is the constant, and its direction the one given."""
    x = torch.randn(widths[0], generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    x[0] = 1.5
    net = l1_loss(widths, [1.5, 2.0, 3.0], layer, x)
    weight = dict(net.module.named_parameters())[f"{2 * (layer - 1)}.weight"]
    (gradient,) = torch.autograd.grad((net.module(x) + 1).abs().sum(), weight)
    assert float(torch.linalg.matrix_norm(gradient)) == pytest.approx(net.constant.value, rel=1e-12)
    assert float((gradient * net.direction).sum()) == pytest.approx(net.constant.value, rel=1e-12)
    rows = min(widths[layer:])
    assert net.printed is not None
    if min((*widths[:layer], *widths[layer + 1 :])) == min(widths[:layer]):  # nothing printed is cut
        assert net.constant.value == pytest.approx(rows**0.5 * net.printed.value, rel=1e-12)
    assert net.attained.value <= net.constant.value


def test_thirty_six_not_eighteen() -> None:
    """Widths 3-4-5-6, scales two and three, an input of norm three."""
    net = l1_loss([3, 4, 5, 6], [1.0, 2.0, 3.0], 1, torch.tensor([3.0, 0.0, 0.0]))
    assert net.printed is not None
    assert (net.constant.value, net.printed.value) == (pytest.approx(36.0, rel=1e-12), pytest.approx(18.0, rel=1e-12))


def test_zero_scales_are_refused() -> None:
    """After the layer nothing may vanish."""
    with pytest.raises(InputError, match="positive"):
        l1_loss([2, 2, 2], [1.0, 0.0])
