"""What is a symmetry satisfies the identities of gradient and Hessian; what eps leaves of them is predicted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from normscope.geometry.candidates.rows import RowShifts
from normscope.geometry.candidates.scales import ChannelScales
from normscope.geometry.certificate import coefficients_of
from normscope.geometry.channels.labelling import label_channels
from normscope.geometry.discover import symmetry
from normscope.geometry.identities import identities, stabilizer_breaking
from symmetric_networks import Attention, Residual, mlp, randomized


def test_hessian_of_scales_is_minus_the_gradient() -> None:
    torch.manual_seed(0)
    model = randomized(Residual(nn.BatchNorm1d, before=False))
    found = symmetry(model, torch.randn(32, 3).double(), loss="cross_entropy", batch=32)
    families = [g.family for g in found.groups if isinstance(g.family, ChannelScales | RowShifts)]
    assert len(families) == 6
    for gradient, hessian in identities(found.function.exact(), families):
        assert gradient <= 1e-12
        assert hessian <= 1e-9


def test_eps_breaks_the_identities_and_is_seen() -> None:
    torch.manual_seed(0)
    model = mlp(lambda h: [nn.BatchNorm1d(h, eps=0.1)], nn.Tanh).double()
    found = symmetry(model, torch.randn(32, 3).double(), batch=32)
    family = found.scale_invariant[0].family
    assert isinstance(family, ChannelScales)
    assert identities(found.function, [family])[0][1] > 1e-3


def test_certificates_hold_them() -> None:
    """For every group of a network with heads and rotations; eps moves scales as predicted."""
    torch.manual_seed(0)
    model = randomized(Attention(nn.RMSNorm, bias=False, gated=True))
    found = symmetry(model, torch.randn(8, 4, 8).double())
    certificates = [group.certificate for group in found.groups if group.family is not None]
    assert len(certificates) > 3
    for proof in certificates:
        assert proof is not None
        assert proof.gradient is not None
        assert proof.gradient <= 1e-12
        assert proof.hessian is not None
        assert proof.hessian <= 1e-9


def test_what_eps_leaves_is_measured_and_predicted() -> None:
    torch.manual_seed(0)
    model = randomized(mlp(lambda h: [nn.BatchNorm1d(h, eps=0.05)], nn.Tanh, 8))
    x = torch.randn(32, 3).double()
    (scale,) = symmetry(model, x, batch=32).scale_invariant
    assert scale.certificate is not None
    assert scale.certificate.broken is not None
    assert abs(scale.certificate.broken) > 1e-4
    assert scale.certificate.predicted == pytest.approx(scale.certificate.broken, rel=1e-6)


def test_without_second_derivatives_the_rest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object) -> tuple[float, float]:
        raise RuntimeError("derivative for aten::some_backward is not implemented")

    monkeypatch.setattr("normscope.geometry.identities._identity", fails)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Tanh())
    found = symmetry(model, torch.randn(8, 3))
    assert found.dimension == 6
    assert all(g.certificate.hessian is None for g in found.groups if g.certificate is not None)


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
    assert isinstance(family, ChannelScales)
    net = label_channels(found.function)
    field = family.field(found.function.point, coefficients_of(family))
    chosen = [(family, coefficients_of(family))]
    ((predicted, measured),) = stabilizer_breaking(found.function, net, chosen, [field])
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
