"""NS219: statistics over time."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from checking import noise, places


class _Causal(nn.Conv1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.pad(x, (self.kernel_size[0] - 1, 0)))


def _network(*norms: nn.Module, padding: bool = False) -> nn.Sequential:
    conv = (lambda i, o: nn.Conv1d(i, o, 3, padding=1)) if padding else (lambda i, o: _Causal(i, o, 3))
    layers = [m for norm in norms for m in (conv(4, 4), norm, nn.ReLU())]
    return nn.Sequential(*layers, nn.Conv1d(4, 2, 1)).eval()


def test_each_normalizer_for_its_own_sake() -> None:
    """Those over time, in a causal network; not where other layers look ahead, nor where nothing mixes times."""
    x = noise(4, 4, 20)
    assert places("NS219", _network(nn.GroupNorm(1, 4), nn.BatchNorm1d(4), nn.InstanceNorm1d(4)), x) == ["1", "7"]
    assert places("NS219", _network(nn.BatchNorm1d(4)), x) == []
    assert places("NS219", _network(nn.GroupNorm(1, 4), padding=True), x) == []
    assert places("NS219", nn.Sequential(nn.Conv1d(4, 4, 1), nn.GroupNorm(1, 4), nn.Conv1d(4, 2, 1)), x) == []


class _Recurrent(nn.Module):
    """A recurrent layer, and a LayerNorm over features or over time as well."""

    def __init__(self, shape: tuple[int, ...], *, both: bool = False) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 6 // (1 + both), batch_first=True, bidirectional=both)
        self.norm, self.head = nn.LayerNorm(shape), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.rnn(x)[0]))


@pytest.mark.turns(3)
def test_recurrent_layers() -> None:
    """One way; a bidirectional one looks ahead anyway."""
    x = noise(4, 20, 4)
    assert places("NS219", _Recurrent((20, 6)), x) == ["norm"]
    assert places("NS219", _Recurrent((6,)), x) == []
    assert places("NS219", _Recurrent((20, 6), both=True), x) == []


def test_one_output_for_all_times() -> None:
    """Which may see all of them."""
    model = nn.Sequential(_Causal(4, 4, 3), nn.GroupNorm(1, 4), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 2))
    assert places("NS219", model, noise(4, 4, 20)) == []
