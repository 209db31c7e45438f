"""Symmetries as text and for notebooks."""

from __future__ import annotations

import torch
from torch import nn

from normscope.geometry.discover import symmetry
from normscope.report.symmetry import symmetry_sections


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
