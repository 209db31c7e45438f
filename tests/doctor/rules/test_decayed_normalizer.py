"""NS401: what decays."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from checking import found, noise
from networks import Lambda


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2))


def _split(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer in which only matrices decay."""
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups)


def test_everything_in_one_group() -> None:
    """Scale, shift and biases are told at once, those of the normalizer first."""
    model = _model()
    (told,) = found("NS401", model, noise(4, 4), optimizer=torch.optim.AdamW(model.parameters(), weight_decay=0.1))
    assert (told.place, told.places, told.evidence["parameters"]) == ("1", ("1", "0", "3"), 4)
    assert told.message == (
        "weight decay 0.1 acts on scales of normalizers (1.weight), shifts of normalizers (1.bias), "
        "biases (0.bias and 1 more)"
    )


def test_two_groups_or_no_decay() -> None:
    """Nothing is said."""
    model = _model()
    assert found("NS401", model, noise(4, 4), optimizer=_split(model)) == []
    assert found("NS401", model, noise(4, 4), optimizer=torch.optim.SGD(model.parameters(), lr=0.1)) == []


def test_the_scale_of_a_hand_written_normalizer() -> None:
    """Found by what it computes, whatever the class is called."""

    def forward(s: Lambda, x: Tensor) -> Tensor:
        return s.first(x) * torch.rsqrt(s.first(x).square().mean(-1, keepdim=True) + 1e-6) * s.gain

    model = Lambda(forward, first=nn.Linear(4, 4, bias=False), gain=nn.Parameter(torch.full((4,), 1.5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    (one,) = found("NS401", model, noise(3, 4), optimizer=optimizer)
    assert one.evidence["first"] == "gain"


def test_the_gate_of_a_branch() -> None:
    """One number, through a function or not, or one per channel; not a scale that is not added to anything."""
    gated = {
        "number": lambda s, x: x + s.gate * torch.relu(s.first(x)),
        "through tanh": lambda s, x: torch.tanh(s.gate) * torch.relu(s.first(x)) + x,
        "after a cast": lambda s, x: x + (s.gate * torch.relu(s.first(x))).contiguous(),
    }
    for gate in (torch.zeros(1), torch.full((4,), 1e-2)):
        for forward in gated.values():
            model = Lambda(forward, first=nn.Linear(4, 4, bias=False), gate=nn.Parameter(gate))
            optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
            (one,) = found("NS401", model, noise(3, 4), optimizer=optimizer)
            assert one.evidence["first"] == "gate"
            assert "gates of branches" in one.message
    alone = Lambda(lambda s, x: s.gate * s.first(x), first=nn.Linear(4, 4, bias=False), gate=nn.Parameter(gate))
    assert found("NS401", alone, noise(3, 4), optimizer=torch.optim.AdamW(alone.parameters(), weight_decay=0.1)) == []
