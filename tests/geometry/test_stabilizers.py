"""The radial gradient that eps leaves is predicted for every normalizer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from normscope.geometry.candidates.scales import Scales
from normscope.geometry.certificate import coefficients_of
from normscope.geometry.discover import symmetry
from normscope.geometry.labelling import Labelling
from normscope.geometry.stabilizers import stabilizer_breaking
from symmetric_networks import mlp, randomized


@pytest.mark.parametrize(
    "norm",
    [
        lambda h: nn.BatchNorm1d(h, eps=0.05),
        lambda h: nn.LayerNorm(h, eps=0.05),
        lambda h: nn.RMSNorm(h, eps=0.05),
        lambda h: nn.GroupNorm(2, h, eps=0.05),
    ],
)
def test_breaking_is_predicted(norm: Callable[[int], nn.Module]) -> None:
    torch.manual_seed(0)
    model = randomized(mlp(lambda h: [norm(h)], nn.Tanh, 8))
    found = symmetry(model, torch.randn(32, 3).double(), batch=32)
    family = found.scale_invariant[0].family
    assert isinstance(family, Scales)
    walk = Labelling(found.function)
    walk.run()
    ((predicted, measured),) = stabilizer_breaking(found.function, walk, [(family, coefficients_of(family))])
    assert abs(measured) > 1e-4
    # The bias before BatchNorm, LayerNorm and GroupNorm is scaled, too, and centred away: the formula is exact.
    assert predicted == pytest.approx(measured, rel=1e-6)


class WrittenOut(nn.Module):
    """An RMSNorm as transformers writes it, its scale stored as the distance from one."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalize."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1.0 + self.weight)


def test_normalizers_that_are_written_out_count() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6, bias=False), WrittenOut(6, 0.01), nn.Tanh(), nn.Linear(6, 2)).double()
    (scale,) = symmetry(model, torch.randn(32, 3).double(), batch=32).scale_invariant
    assert scale.certificate is not None
    assert scale.certificate.broken is not None
    assert abs(scale.certificate.broken) > 1e-4
    assert scale.certificate.predicted == pytest.approx(scale.certificate.broken, rel=1e-9)
