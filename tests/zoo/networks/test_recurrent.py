"""Cells written out against the library's layers with the same weights."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from normscope.zoo.catalogue import build

gru, gru_cell, lstm, lstm_cell = (partial(build, name) for name in ("gru", "gru_cell", "lstm", "lstm_cell"))


@pytest.mark.parametrize(("layer", "cell"), [(lstm, lstm_cell), (gru, gru_cell)])
def test_written_cell_equals_the_library(layer, cell) -> None:
    """Same gates in the same order."""
    torch.manual_seed(0)
    reference, own = layer().double(), cell().double()
    with torch.no_grad():
        own.cell.input.weight.copy_(reference.recurrent.weight_ih_l0)
        own.cell.input.bias.copy_(reference.recurrent.bias_ih_l0)
        own.cell.recurrent.weight.copy_(reference.recurrent.weight_hh_l0)
        own.cell.recurrent.bias.copy_(reference.recurrent.bias_hh_l0)
        own.head.load_state_dict(reference.head.state_dict())
    x = torch.randn(3, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(own(x), reference(x))


@pytest.mark.parametrize("cell", [lstm_cell, gru_cell])
def test_normalized_gates_forget_the_scale_of_the_input(cell) -> None:
    """With LayerNorm and no bias, twice the input gives the same state, up to the norm's eps."""
    torch.manual_seed(0)
    x = torch.randn(3, 8, 8, dtype=torch.float64)
    for norm, invariant in (("ln", True), ("none", False)):
        model = cell(norm=norm).double()
        torch.nn.init.zeros_(model.cell.input.bias)
        difference = (model(1e3 * x) - model(2e3 * x)).abs().max()
        assert (difference < 1e-6) == invariant
