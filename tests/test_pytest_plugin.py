"""The fixture for tests of users, in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

USER = """
from torch import nn

def test_good(assert_healthy):
    assert_healthy(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)))

def test_bad(assert_healthy):
    assert_healthy(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
"""


@pytest.mark.turns(3)
def test_a_healthy_model_passes_and_another_fails(tmp_path: Path) -> None:
    """With the finding as the reason; the fixture loads nothing before it is asked for."""
    (tmp_path / "test_user.py").write_text(USER)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "NS101 warning (proved) 0" in done.stdout
