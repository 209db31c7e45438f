"""NS213: shared normalizers."""

from __future__ import annotations

from torch import nn

from checking import found, noise
from networks import Lambda


def test_layers_with_nothing_in_common() -> None:
    """Told once, under the first name; a whole block that is shared is one layer called twice."""
    norm = nn.LayerNorm(6)
    two = Lambda(lambda s, x: s.other(s.b(s.norm(s.a(x)))), a=nn.Linear(6, 6), b=nn.Linear(6, 6), norm=norm, other=norm)
    (one,) = found("NS213", two, noise(4, 6))
    assert (one.place, one.evidence["calls"]) == ("norm", 2)
    block = Lambda(lambda s, x: s.norm(s.a(s.norm(s.a(x)))), a=nn.Linear(6, 6), norm=nn.LayerNorm(6))
    assert found("NS213", block, noise(4, 6)) == []


def test_equal_places_of_equal_blocks_may_share() -> None:
    """As a decoder that normalizes what every layer gives."""
    layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
    model = Lambda(lambda s, x: sum(s.norm(layer(x)) for layer in s.layers), layers=layers, norm=nn.LayerNorm(6))
    assert found("NS213", model, noise(4, 6)) == []
