"""Recurrent layers, unrolled: every tensor inside obeys its bounds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from networks import Lambda, points, program_of, seeded, spectral_norm, upper_of, value_of
from normscope.operators import recurrent
from normscope.testing.upper_bound import check_upper_bound

LAYERS: dict[str, dict[str, Any]] = {
    "rnn": {"layer": nn.RNN},
    "rnn with relu": {"layer": nn.RNN, "nonlinearity": "relu"},
    "gru": {"layer": nn.GRU},
    "lstm": {"layer": nn.LSTM},
    "two layers": {"layer": nn.GRU, "num_layers": 2},
    "both directions": {"layer": nn.RNN, "bidirectional": True},
    "without bias": {"layer": nn.LSTM, "bias": False},
    "projected": {"layer": nn.LSTM, "proj_size": 1},
    "projected both ways, without bias": {"layer": nn.LSTM, "proj_size": 1, "bias": False, "bidirectional": True},
    "projected twice": {"layer": nn.LSTM, "proj_size": 1, "num_layers": 2},
}


def _model(name: str) -> nn.Module:
    settings = dict(LAYERS[name])
    layer = settings.pop("layer")(3, 2, batch_first=True, **settings)
    return seeded(Lambda(lambda s, x: s.r(x)[0], r=layer), scale=0.5)


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", LAYERS)
def test_unrolled_layers_are_bounded(name: str) -> None:
    """On all inputs: gates and states are bounded after any number of steps."""
    checked = check_upper_bound(_model(name), [points(2, 4, 3)], ascent=5)
    assert checked.violations == []
    assert checked.opaque == []
    assert checked.upper["range"] <= checked.upper["everywhere"] < math.inf


@pytest.mark.parametrize("name", ["gru", "projected twice", "both directions"])
def test_unrolled_layers_compute_what_torch_computes(name: str) -> None:
    """Each gate is the one of its name: swapped ones have bounds that few inputs exceed."""
    model, x = _model(name), points(1, 2, 3)
    torch.testing.assert_close(value_of(program_of(model, x), x), model(x).detach(), rtol=1e-12, atol=1e-12)


def test_one_step_of_a_plain_layer() -> None:
    """H' = tanh(W x) from zero: the norm of the input weight."""
    model = seeded(Lambda(lambda s, x: s.r(x)[0], r=nn.RNN(3, 2, batch_first=True)))
    expected = spectral_norm(model.r.weight_ih_l0.detach())
    assert upper_of(program_of(model, points(2, 1, 3))) == pytest.approx(expected, rel=1e-9)


def test_last_states_are_results_too() -> None:
    """The second output of a layer is its last state."""
    model = seeded(Lambda(lambda s, x: s.r(x)[1].squeeze(0), r=nn.GRU(3, 2, batch_first=True)))
    checked = check_upper_bound(model, [points(2, 3, 3)], ascent=5)
    assert checked.violations == []
    assert checked.upper["everywhere"] < math.inf


def test_a_cell_called_by_hand() -> None:
    """The same rule step by step."""

    def steps(s: Lambda, x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(x.shape[0], 2)
        for t in range(x.shape[1]):
            h = s.c(x[:, t], h)
        return h

    checked = check_upper_bound(seeded(Lambda(steps, c=nn.GRUCell(3, 2)), scale=0.5), [points(2, 3, 3)], ascent=5)
    assert checked.violations == []
    assert checked.upper["everywhere"] < math.inf


def test_long_sequences_are_not_unrolled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit the layer is listed, with the reason."""
    monkeypatch.setattr(recurrent, "LONGEST", 3)
    program = program_of(_model("gru"), points(2, 4, 3))
    assert all("not unrolled" in e.atom.reason for e in program.opaque)
    assert program.opaque
