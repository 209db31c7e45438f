"""The first use in a process leaves the process as it was."""

from __future__ import annotations

import subprocess
import sys

import pytest

CALLS = {
    "analyze": "normscope.analyze(model, torch.randn(4, 4))",
    "check": "normscope.check(model, torch.randn(4, 4))",
    "fix": "normscope.fix(model, torch.randn(4, 4))",
    "weight_lipschitz": "normscope.weight_lipschitz(model, torch.randn(4, 4))",
}


@pytest.mark.parametrize("call", CALLS)
def test_environment_and_filters_of_warnings_stay(call: str) -> None:
    """Of which libraries change some when they are imported, or first used."""
    program = f"""
import os, warnings, torch, normscope
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).eval()
before, filters = dict(os.environ), list(warnings.filters)
{CALLS[call]}
assert dict(os.environ) == before, set(os.environ) ^ set(before)
assert warnings.filters == filters, [f for f in warnings.filters if f not in filters]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
