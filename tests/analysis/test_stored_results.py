"""Stored results: read back as they were, refused when they are something else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from networks import points
from normscope import analyze
from normscope.analysis.checkpoint import analyze_checkpoint
from normscope.analysis.stored_results import read_result
from normscope.core.errors import InputError


def test_a_model_and_a_checkpoint_come_back_equal(tmp_path: Path) -> None:
    """Every number to the last bit."""
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU()).eval()
    result = analyze(model, points(2, 2, 6, 6).float())
    assert read_result(result.save(tmp_path / "model.json")).to_dict() == result.to_dict()
    torch.save(model.state_dict(), tmp_path / "m.pt")
    weights = analyze_checkpoint(tmp_path / "m.pt")
    assert read_result(weights.save(tmp_path / "weights.json")) == weights


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "other"}', '{"kind": "capacity", "schema_version": 99}'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    """With what was expected."""
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match="JSON that analyze writes"):
        read_result(tmp_path / "x.json")


def test_no_file(tmp_path: Path) -> None:
    """Missing, or a folder."""
    with pytest.raises(InputError, match="there is no"):
        read_result(tmp_path / "x.json")
    with pytest.raises(InputError, match="directory"):
        read_result(tmp_path)
