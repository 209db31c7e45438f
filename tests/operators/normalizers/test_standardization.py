"""Standardization by buffers: seen with its statistics and its constant."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, jacobian_norm, points, program_of, upper_of
from normscope.operators.normalizer import site_constants


class _Standardize(nn.Module):
    """``(x - mean)/std`` of images, deviations perhaps kept away from zero, under some name."""

    def __init__(self, name: str = "std", eps: float = 0.0) -> None:
        super().__init__()
        self.name, self.eps = name, eps
        self.register_buffer("mean", torch.tensor([0.5, 0.4, 0.3]).double())
        self.register_buffer(name, torch.tensor([0.2, 0.1, 0.25]).double())

    def forward(self, x: Tensor) -> Tensor:
        divisor = getattr(self, self.name)[None, :, None, None]
        divisor = divisor.clamp_min(self.eps) if self.eps else divisor
        return (x - self.mean[None, :, None, None]) / divisor


@pytest.mark.parametrize("eps", [0.0, 0.15])
def test_it_has_its_statistics_and_its_constant(eps: float) -> None:
    """The mean and the deviation are those of the buffers; the constant is the norm of the Jacobian."""
    model = _Standardize(eps=eps)
    program = program_of(model, points(2, 3, 4, 4))
    (site,) = program.sites
    assert site.kind == "standardization"
    assert site.running is not None
    assert torch.equal(site.running[0], model.mean)
    assert torch.allclose(site.running[1].sqrt(), model.std.clamp_min(eps))
    assert site.details["axis"] == 1
    truth = jacobian_norm(model, points(1, 3, 4, 4))
    assert upper_of(program) == pytest.approx(truth, rel=1e-9)
    assert site_constants(site, None, "running").proved.value == pytest.approx(truth, rel=1e-9)


def test_however_it_is_kept_and_written() -> None:
    """As frozen parameters or plain tensors, by a product with the inverse."""
    mean, std = torch.tensor([0.5, 0.4, 0.3]).double(), torch.tensor([0.2, 0.1, 0.25]).double()
    frozen = {"mean": nn.Parameter(mean, requires_grad=False), "std": nn.Parameter(std, requires_grad=False)}
    for model in (
        Lambda(lambda s, x: (x - s.mean) / s.std, **frozen),
        Lambda(lambda s, x: (x - s.mean) * (1 / s.std), **frozen),
        Lambda(lambda s, x: (x - s.mean) / (s.std + 1e-9), **frozen),
    ):
        (site,) = program_of(model, points(2, 3)).sites
        assert site.running is not None
        assert torch.allclose(site.running[1].sqrt(), std)


def test_a_range_is_no_deviation() -> None:
    """What is divided by the range of the data has another variance than one, and that is meant."""
    assert program_of(_Standardize("spread"), points(2, 3, 4, 4)).sites == []
