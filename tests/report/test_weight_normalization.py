"""The theory of weight normalization as a section: numbers of the guarantees, and why there is none."""

from __future__ import annotations

import pytest
import torch

from normscope.report.weight_normalization import weight_normalization_sections
from normscope.weight_normalization import WeightNormNetwork, verify


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_rows_and_chart_hold_the_guarantees(activation: str) -> None:
    net = WeightNormNetwork(3, width=8, depth=2, activation=activation, seed=0)
    found = verify(net, torch.eye(3), torch.ones(3, 1))
    section = weight_normalization_sections(found)[0]
    assert section.table is not None
    assert section.chart is not None
    assert (section.chart.x_title, section.chart.y_title) == ("quantity", "at most")
    assert [row[0] for row in section.table.rows] == [row.name for row in found.rows]
    drawn = {line.label: dict(zip(section.chart.places, line.log10, strict=True)) for line in section.chart.lines}
    for row in found.rows:
        assert drawn["bound"][row.name] == row.bound.log10
        assert drawn["measured"][row.name] == (None if row.measured is None else row.measured.log10)
    notes = [row[4] for row in section.table.rows]
    assert any("not smooth" in note for note in notes) == (activation == "relu")
    assert any("No step size is certified" in line for line in section.lines) == (activation == "relu")
