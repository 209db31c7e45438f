"""The peak of memory is announced before it is reached, and an analysis that does not fit is refused."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch
from torch import nn

from normscope import analyze
from normscope.analysis.memory import additional_peak
from normscope.core import memory
from normscope.core.errors import NotEnoughMemoryError

MEASURED = """
import resource, torch
from torch import nn
from normscope import analyze
torch.set_num_threads(1)
model, shape = {model}
said = []
analyze(model.eval(), torch.randn(2, *shape), progress=said.append)
print(said[0])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read as Linux tells it")
@pytest.mark.parametrize(
    "model",
    [
        "nn.Sequential(nn.Linear(8, 8), nn.ReLU()), (8,)",
        "nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU()), (2048,)",
    ],
)
def test_the_peak_is_announced_within_30_per_cent(model: str) -> None:
    """Against what the system measured, in a process of its own."""
    code = MEASURED.format(model=model)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said, peak = done.stdout.splitlines()
    number, unit = re.search(r"([\d.]+) (GB|MB)", said).groups()  # type: ignore[union-attr]
    announced = float(number) * {"GB": 1e9, "MB": 1e6}[unit]
    assert 0.7 < announced / float(peak) < 1.3


def test_an_analysis_that_does_not_fit_is_refused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the model is run even once."""
    model = nn.Linear(300, 300)
    model.register_forward_pre_hook(lambda *given: pytest.fail("the model was run"))
    monkeypatch.setattr(memory, "available", lambda: 1e6)
    with pytest.raises(NotEnoughMemoryError, match="This analysis needs about"):
        analyze(model, torch.ones(2, 300))


def test_the_largest_gram_matrix_decides_for_a_large_layer() -> None:
    """A layer 27648 -> 20000 needs more than 12 GB besides itself: four matrices of side 20000."""
    layer = torch.empty(20_000, 27_648, device="meta")
    assert 12.8e9 < additional_peak([layer]) < 14e9
