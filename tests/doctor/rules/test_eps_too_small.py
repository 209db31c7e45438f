"""NS302: stabilizers and precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from checking import found, noise
from networks import Lambda
from normscope.core.finding import Certainty, Severity


@pytest.mark.parametrize(
    ("eps", "dtype", "told"),
    [
        (1e-12, torch.float16, True),
        (1e-5, torch.float16, False),
        (1e-12, torch.bfloat16, False),
        (1e-12, torch.float32, True),
        (1e-8, torch.float32, False),
        (0.0, torch.float32, True),
    ],
    ids=str,
)
def test_layer_norm(eps: float, dtype: torch.dtype, told: bool) -> None:
    """In half precision 1/sqrt(1e-12) is beyond the largest number; in float32 it is steep, which is a remark."""
    model = nn.LayerNorm(8, eps=eps).to(dtype)
    findings = found("NS302", model, noise(4, 8).to(dtype))
    assert bool(findings) is told
    if eps > 0 and dtype is torch.float32:
        assert all(f.severity is Severity.INFO for f in findings)


def test_the_slope_really_overflows() -> None:
    """The gradient of a nearly constant group in half precision."""

    def slope(eps: float) -> bool:
        x = torch.zeros(1, 8, dtype=torch.float16, requires_grad=True)
        out = nn.functional.layer_norm(x, (8,), eps=eps)
        return bool(torch.isfinite(torch.autograd.grad(out[0, 0], x)[0]).all())

    assert slope(1e-5)
    assert not slope(1e-12)


def test_eps_added_by_hand_vanishes_in_half_precision() -> None:
    """1e-8 is zero there; in float32 it is not."""

    def rms(s: Lambda, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-8)

    half = noise(4, 8).half()
    assert len(found("NS302", Lambda(rms, w=torch.ones(1).half()), half)) == 1
    assert not torch.isfinite(rms(Lambda(rms), torch.zeros(1, 8).half())).all()
    assert found("NS302", Lambda(rms, w=torch.ones(1)), noise(4, 8)) == []


def test_a_planned_precision_counts() -> None:
    """A float32 model that will be run in half precision."""
    (one,) = found("NS302", nn.LayerNorm(8, eps=1e-12), noise(4, 8), dtype=torch.float16)
    assert one.certainty is Certainty.LIKELY
    assert found("NS302", nn.LayerNorm(8), noise(4, 8), dtype=torch.float16) == []
