"""PowerNorm: by the running quadratic mean a diagonal map, by that of the batch a normalizer of the stacked batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from networks import Lambda, jacobian_norm, points, program_of, seeded, upper_of
from normscope.operators.normalizer import couples_samples, site_constants
from normscope.operators.normalizers.batch_norm import batch_norm_running
from operators.normalizers.published import PowerNorm


def test_with_the_running_mean() -> None:
    """The constant is the norm of the Jacobian, everywhere the same."""
    model = seeded(PowerNorm(6))
    model.running_phi.copy_(points(6).square() + 0.1)
    program = program_of(model, points(2, 3, 6))
    (site,) = program.sites
    assert site.kind == "power_norm"
    assert couples_samples(site.kind)
    assert site.running is not None
    assert torch.equal(site.running[1], model.running_phi)
    truth = jacobian_norm(model, points(1, 3, 6))
    assert upper_of(program) == pytest.approx(truth, rel=1e-9)
    proved = site_constants(site, None, "running").proved.value
    assert proved == pytest.approx(batch_norm_running(model.weight, model.running_phi, 1e-5), rel=1e-9)


SPELLINGS = {
    "rows": (lambda s, x: s.g * x / (x.pow(2).mean(0, keepdim=True) + 1e-2).sqrt(), (4,)),
    "maps": (lambda s, x: x * torch.rsqrt((x * x).mean((0, 2, 3), keepdim=True) + 1e-2), (4, 3, 3)),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_with_the_mean_of_the_batch(name: str) -> None:
    """The batch as one input; attained at zero."""
    function, shape = SPELLINGS[name]
    model = seeded(Lambda(function, g=nn.Parameter(torch.ones(4))))
    program = program_of(model, points(3, *shape), batch=3)
    (site,) = program.sites
    assert site.kind == "power_norm"
    upper = upper_of(program)
    assert jacobian_norm(model, points(3, *shape)) <= upper
    zero = torch.full((3, *shape), 1e-12, dtype=torch.float64)
    assert jacobian_norm(model, zero) == pytest.approx(upper, rel=1e-6)
