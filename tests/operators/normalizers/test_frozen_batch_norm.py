"""BatchNorm with its statistics in buffers, written out: seen with its statistics and its constant."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, jacobian_norm, points, program_of, seeded, upper_of
from normscope.operators.normalizer import site_constants
from normscope.operators.normalizers.batch_norm import batch_norm_running
from operators.normalizers.published import FrozenBatchNorm


class _Divided(nn.Module):
    """``(x - mean)/sqrt(var + eps) * gamma + beta`` with buffers, of vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(4))
        self.register_buffer("running_mean", torch.zeros(4))
        self.register_buffer("running_var", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.running_mean) / torch.sqrt(self.running_var + 1e-3) * self.weight + self.bias  # type: ignore[operator]


MODELS: dict[str, tuple[nn.Module, tuple[int, ...], float]] = {
    "detection libraries": (FrozenBatchNorm(4), (4, 3, 3), 1e-5),
    "written as a quotient": (_Divided(), (4,), 1e-3),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_has_its_statistics_and_its_constant(name: str) -> None:
    """The mean and the variance are those of the buffers; the constant is the norm of the Jacobian."""
    model, shape, eps = MODELS[name]
    model = seeded(model)
    program = program_of(model, points(2, *shape))
    (site,) = program.sites
    assert (site.kind, site.eps) == ("frozen_batch_norm", pytest.approx(eps))
    assert site.running is not None
    assert torch.allclose(site.running[0], model.running_mean)
    assert torch.allclose(site.running[1], model.running_var)
    truth = jacobian_norm(model, points(1, *shape))
    proved = site_constants(site, None, "running").proved.value
    assert upper_of(program) == pytest.approx(truth, rel=1e-9)
    assert proved == pytest.approx(truth, rel=1e-9)
    assert proved == pytest.approx(batch_norm_running(model.weight, model.running_var, eps), rel=1e-9)


def test_a_constant_root_is_not_a_statistic() -> None:
    """Neither a number nor a learned factor is."""
    model = Lambda(lambda s, x: x / torch.sqrt(s.g.square() + 1.0) / 8**0.5, g=nn.Parameter(torch.ones(4)))
    assert program_of(seeded(model), points(2, 4)).sites == []
