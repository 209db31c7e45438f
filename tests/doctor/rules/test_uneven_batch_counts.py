"""NS206: numbers of batches."""

from __future__ import annotations

from torch import nn

from checking import places
from normscope.doctor.rules.uneven_batch_counts import between


def _counted(*counts: int) -> nn.Sequential:
    model = nn.Sequential(*(nn.BatchNorm1d(4) for _ in counts))
    for bn, n in zip(model, counts, strict=True):
        bn.num_batches_tracked.fill_(n)
    return model


def test_only_what_lies_between_equal_counts() -> None:
    """A backbone with a younger head, unused layers and equal counts say nothing."""
    assert places("NS206", _counted(90, 90, 30, 90)) == ["2"]
    assert places("NS206", _counted(90, 90, 30, 30)) == []
    assert places("NS206", _counted(90, 0, 90)) == []
    assert places("NS206", _counted(90, 90)) == []
    assert between([1, 2, 3]) == []
    assert between([]) == []
