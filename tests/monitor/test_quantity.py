"""What a metric is."""

from __future__ import annotations

import math

import pytest

from normscope.core.errors import InputError
from normscope.core.value import Kind
from normscope.monitor.quantities import QUANTITIES, descriptions
from normscope.monitor.quantity import Description, Quantity


def test_patterns() -> None:
    layer = Description("weight/minimum_norm/*", Kind.ESTIMATE, "")
    assert layer.matches("weight/minimum_norm/a.b")
    assert not layer.matches("weight/minimum_norm")
    assert Description("probe/loss", Kind.ESTIMATE, "").matches("probe/loss")


def test_values_keep_their_side() -> None:
    lower = Description("a_log10", Kind.LOWER, "")
    upper = Description("a_log10", Kind.CERTIFIED, "")
    assert lower.value(0.3).log <= 0.3 * math.log(10) <= upper.value(0.3).log
    assert Description("a", Kind.ESTIMATE, "").value(4.0).value == pytest.approx(4.0)


def test_what_may_be_negative_is_no_value() -> None:
    with pytest.raises(InputError, match="a/b may be negative, so it has no Value"):
        Description("a/*", Kind.ESTIMATE, "", signed=True).value(1.0, "a/b")
    with pytest.raises(InputError, match=r"a is NaN, so it has no Value\. Read monitor\.latest\['a'\]\."):
        Description("a", Kind.ESTIMATE, "").value(math.nan)


def test_every_metric_is_described_once() -> None:
    patterns = [d.pattern for d in descriptions()]
    assert len(patterns) == len(set(patterns))
    assert all(d.words for d in descriptions())
    assert set(QUANTITIES) == {kind.name for kind in QUANTITIES.values()}


def test_every_quantity_is_in_the_file_of_its_name() -> None:
    assert all(kind.__module__ == f"normscope.monitor.quantities.{name}" for name, kind in QUANTITIES.items())


def test_a_quantity_says_how_it_measures() -> None:
    with pytest.raises(NotImplementedError):
        Quantity().measure(None)  # type: ignore[arg-type]
