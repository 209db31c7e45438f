"""NS105: normalizers that are never called."""

from __future__ import annotations

import torch
from torch import nn

from checking import noise, places
from networks import Lambda


def test_never_called() -> None:
    """Unless its parameters are used by something else, or nothing of its module runs."""
    parts = {"fc": nn.Linear(6, 6), "norm": nn.LayerNorm(6)}
    assert places("NS105", Lambda(lambda s, x: s.fc(x), **parts), noise(4, 6)) == ["norm"]
    assert places("NS105", Lambda(lambda s, x: s.norm(s.fc(x)), **parts), noise(4, 6)) == []
    by_hand = Lambda(lambda s, x: s.fc(x) * s.norm.weight + s.norm.bias, **parts)
    assert places("NS105", by_hand, noise(4, 6)) == []
    aside = Lambda(lambda s, x: s.fc(x), fc=nn.Linear(6, 6), aside=nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)))
    assert places("NS105", aside, noise(4, 6)) == []


class _Scaled(nn.Module):
    """Divides by the norm, with a scale that may be forgotten."""

    def __init__(self, *, used: bool, name: str) -> None:
        super().__init__()
        self.fc, self.used, self.name = nn.Linear(6, 6), used, name
        self.register_parameter(name, nn.Parameter(torch.ones(6)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize."""
        y = nn.functional.normalize(self.fc(x), dim=-1)
        return y * getattr(self, self.name) if self.used else y


def test_a_scale_that_is_never_used() -> None:
    """At the module that normalizes without it; other parameters may serve another purpose."""
    for used, name, told in ((False, "q_scale", ["0"]), (True, "q_scale", []), (False, "mask_token", [])):
        model = nn.Sequential(_Scaled(used=used, name=name), nn.Linear(6, 2))
        assert places("NS105", model, noise(4, 6)) == told
