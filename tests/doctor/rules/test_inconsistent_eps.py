"""NS304: an eps of its own."""

from __future__ import annotations

from torch import nn

from checking import found, noise
from normscope.core.finding import Severity


def _stack(*eps: float) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6, eps=e)) for e in eps))


def test_the_odd_one_among_equals() -> None:
    """One of four is told, two of four have no majority, three layers are enough."""
    (one,) = found("NS304", _stack(1e-6, 1e-6, 1e-5, 1e-6), noise(4, 6))
    assert (one.place, one.severity, one.evidence["usual"]) == ("2.1", Severity.WARNING, 1e-6)
    assert found("NS304", _stack(1e-6, 1e-6, 1e-5, 1e-5), noise(4, 6)) == []
    assert found("NS304", _stack(1e-6, 1e-6, 1e-6), noise(4, 6)) == []
    assert found("NS304", _stack(1e-6, 1e-5), noise(4, 6)) == []


def test_another_place_may_have_another_eps() -> None:
    """A final normalizer with its own is a remark."""
    model = nn.Sequential(_stack(1e-6, 1e-6, 1e-6), nn.LayerNorm(6, eps=1e-12))
    (one,) = found("NS304", model, noise(4, 6))
    assert (one.place, one.severity) == ("1", Severity.INFO)
