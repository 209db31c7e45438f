"""Symmetries as text and for notebooks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from normscope.analysis.stored_results import read_panel
from normscope.core.errors import InputError
from normscope.geometry.discover import Symmetries, symmetry
from normscope.report.html import report_html
from normscope.report.symmetry import plot_orbits, symmetry_sections


def test_groups_are_listed() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh())
    found = symmetry(model, torch.randn(8, 3), name="net")
    sections = symmetry_sections(found)
    assert sections[0].title == "symmetries of net"
    assert sections[1].table is not None
    assert [row[0] for row in sections[1].table.rows] == [g.kind for g in found.groups]
    assert "8 of 24 directions" in str(found)
    assert found._repr_html_().count("<tr>") == 1 + len(found.groups)


def test_no_symmetry() -> None:
    found = symmetry(nn.Sequential(nn.Linear(3, 1), nn.Tanh()), torch.randn(8, 3))
    assert "No symmetry found" in symmetry_sections(found)[0].lines[0]


def test_nothing_is_trained() -> None:
    found = symmetry(nn.Linear(3, 2).requires_grad_(requires_grad=False), torch.randn(8, 3))
    assert "No parameter is trainable" in symmetry_sections(found)[0].lines[0]


def test_eps_is_told_of_scales_only() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    assert "eps leaves" in str(symmetry(model, torch.randn(8, 3)))
    model[0].requires_grad_(requires_grad=False)
    assert "eps leaves" not in str(symmetry(model, torch.randn(8, 3)))


def test_orbits_on_the_page_and_from_a_file(tmp_path: Path) -> None:
    """What was read says what was written, and a page shows it as a chart."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    found = symmetry(model, torch.randn(8, 3), name="net", follow_orbits=True)
    read = read_panel(found.save(tmp_path / "symmetry.json"))
    assert isinstance(read, Symmetries)
    assert read.to_dict() == found.to_dict()
    assert str(read) == str(found)
    chart = symmetry_sections(read)[-1].chart
    assert chart is not None
    assert len(chart.lines) == 2 * len(found.orbits)
    page = report_html({}, panels=[read])
    assert "along orbits and across them" in page
    with pytest.raises(InputError, match="without the model"):
        _ = read.function


def test_figure_of_orbits() -> None:
    pytest.importorskip("matplotlib")
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    found = symmetry(model, torch.randn(8, 3), follow_orbits=True)
    assert len(plot_orbits(found).axes[0].lines) == 3 * len(found.orbits)
