"""NS305: reductions in half precision."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from checking import found, noise
from networks import Lambda
from normscope.core.finding import Severity


def _rms(s: Lambda, x: Tensor) -> Tensor:
    y = s.fc(x)
    return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)


def test_in_float16_it_overflows_indeed() -> None:
    """bfloat16 is a remark; torch's own is computed in float32; a planned precision counts."""
    model = Lambda(_rms, fc=nn.Linear(8, 8)).half()
    (one,) = found("NS305", model, noise(8, 8).half())
    assert one.severity is Severity.WARNING
    big = torch.full((1, 8), 300.0).half()
    assert bool((big.pow(2).mean(-1) == torch.inf).all())
    assert found("NS305", Lambda(_rms, fc=nn.Linear(8, 8)).bfloat16(), noise(8, 8))[0].severity is Severity.INFO
    assert found("NS305", nn.Sequential(nn.Linear(8, 8), nn.RMSNorm(8)).half(), noise(8, 8).half()) == []
    assert found("NS305", Lambda(_rms, fc=nn.Linear(8, 8)), noise(8, 8)) == []
    assert len(found("NS305", Lambda(_rms, fc=nn.Linear(8, 8)), noise(8, 8), dtype=torch.float16)) == 1
