"""Certified constants as metrics."""

from __future__ import annotations

import torch

from monitor.moments import batch, small
from normscope import analyze
from normscope.monitor.quantities import descriptions
from normscope.monitor.quantities.certified import certified_metrics


def test_they_are_those_of_the_analysis_and_described() -> None:
    result = analyze(small(), batch()[0], stacked=False)
    found = certified_metrics(result)
    assert found["certified/global_log10"] == result.end_to_end["global"].log10
    assert found["certified/lower_log10"] <= found["certified/floor_log10"] <= found["certified/global_log10"]
    truth = torch.linalg.matrix_norm(small().head.weight.detach().double(), 2).log10()
    assert found["certified/norm_log10/head"] >= float(truth)
    kinds = {name: [d.kind.value for d in descriptions() if d.matches(name)] for name in found}
    assert kinds.pop("certified/lower_log10") == ["lower"]
    assert set(map(tuple, kinds.values())) == {("certified",)}
