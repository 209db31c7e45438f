"""NS213: shared normalizers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

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


def test_different_layers_read_it() -> None:
    """One normalizer before two parts of a block, or [norm] * n; a block that is called twice is one layer."""
    parts = {"a": nn.Linear(6, 6), "b": nn.Linear(6, 6), "norm": nn.LayerNorm(6)}

    def block(s: nn.Module, x: Tensor) -> Tensor:
        x = x + s.a(s.norm(x))
        return x + s.b(s.norm(x))

    (one,) = found("NS213", nn.Sequential(nn.Linear(6, 6), Lambda(block, **parts)), noise(4, 6))
    assert one.place == "1.norm"
    assert "before 1.a and before 1.b" in one.message
    again = Lambda(lambda s, x: s.out(s.block(s.block(x))), block=Lambda(
        lambda s, x: x + s.a(s.norm(x)), a=nn.Linear(6, 6), norm=nn.LayerNorm(6)), out=nn.Linear(6, 2))  # fmt: skip
    assert found("NS213", again, noise(4, 6)) == []


def test_a_block_that_is_called_again_and_then_read_by_a_head() -> None:
    """The last call of a shared post-norm block has another reader than the first, and the same layers before it."""
    block = Lambda(lambda s, x: s.norm(x + s.a(x)), a=nn.Linear(6, 6), norm=nn.LayerNorm(6))
    model = Lambda(lambda s, x: s.head(s.block(s.block(s.embed(x)))), embed=nn.Linear(6, 6), block=block,
                   head=nn.Linear(6, 2))  # fmt: skip
    assert found("NS213", model, noise(4, 6)) == []


def test_a_function_has_nothing_to_share() -> None:
    """Queries and keys of one attention, both divided by their lengths."""
    model = Lambda(lambda s, x: normalize(s.q(x), dim=-1) * normalize(s.k(x), dim=-1), q=nn.Linear(6, 6),
                   k=nn.Linear(6, 6))  # fmt: skip
    assert found("NS213", nn.Sequential(model), noise(4, 6)) == []


class QKNorm(nn.Module):
    """Attention called after what it does to queries and keys, each with a scale of its own."""

    def __init__(self, *, shared: bool) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(6, 6), nn.Linear(6, 6)
        self.q_scale, self.k_scale = nn.Parameter(torch.ones(6)), nn.Parameter(torch.ones(6))
        self.shared = shared

    def forward(self, x: Tensor) -> Tensor:
        """Normalize both."""
        q = normalize(self.q(x), dim=-1) * self.q_scale
        return q * (normalize(self.k(x), dim=-1) * (self.q_scale if self.shared else self.k_scale))


def test_a_block_that_normalizes_at_two_places() -> None:
    """By its name a normalizer, with layers of its own: two scales are two normalizers."""
    assert found("NS213", nn.Sequential(QKNorm(shared=False)), noise(4, 6)) == []
