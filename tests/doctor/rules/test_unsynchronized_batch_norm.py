"""NS209: several devices."""

from __future__ import annotations

from torch import nn

from checking import found
from normscope.core.finding import Severity


def test_a_small_share_is_a_warning_and_an_unknown_one_a_remark() -> None:
    """Paths are those inside the wrapper; a large share, one device and SyncBatchNorm say nothing."""
    inner = nn.Sequential(nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5))
    (one,) = found("NS209", nn.DataParallel(inner), batch_size=2)
    assert (one.place, one.severity) == ("1", Severity.WARNING)
    assert found("NS209", nn.DataParallel(inner))[0].severity is Severity.INFO
    assert found("NS209", nn.DataParallel(inner), batch_size=32) == []
    assert found("NS209", inner, batch_size=2) == []
    synchronized = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)))
    assert found("NS209", nn.DataParallel(synchronized), batch_size=2) == []
