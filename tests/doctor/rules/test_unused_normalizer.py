"""NS105: normalizers that are never called."""

from __future__ import annotations

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
