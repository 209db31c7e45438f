"""The first use in a process leaves the process as it was."""

from __future__ import annotations

import subprocess
import sys

import pytest

CALLS = ("check", "fix", "analyze", "weight_lipschitz")


@pytest.mark.turns(3)
def test_environment_and_filters_of_warnings_stay() -> None:
    """Of which libraries change some when they are imported, or first used."""
    program = f"""
import os, warnings, torch, normscope
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).eval()
before, filters = dict(os.environ), list(warnings.filters)
for name in {CALLS}:
    getattr(normscope, name)(model, torch.randn(4, 4))
    assert dict(os.environ) == before, (name, set(os.environ) ^ set(before))
    assert warnings.filters == filters, (name, [f for f in warnings.filters if f not in filters])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
