"""NS208: purposes that forbid coupled samples."""

from __future__ import annotations

from torch import nn

from checking import found
from normscope import check
from normscope.core.finding import Severity


def test_each_purpose_has_its_own() -> None:
    """Privacy is an error, the others are warnings, and training or nothing says nothing."""
    model = nn.Sequential(nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5))
    for purpose, severity in (
        ("private", Severity.ERROR),
        ("gan", Severity.WARNING),
        ("contrastive", Severity.WARNING),
    ):
        (one,) = found("NS208", model, purpose=purpose)
        assert (one.place, one.severity, one.evidence["purpose"]) == ("1", severity, purpose)
    assert found("NS208", model, purpose="train") == []
    assert "NS208" in check(model).skipped


def test_layers_that_do_not_couple() -> None:
    """SyncBatchNorm in contrastive learning, frozen layers, normalizers of single samples."""
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.SyncBatchNorm(4)).train()
    assert found("NS208", model, purpose="contrastive") == []
    assert len(found("NS208", model, purpose="private")) == 1
    model[1].eval()
    assert found("NS208", model, purpose="private") == []
    assert found("NS208", nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5)), purpose="gan") == []
