"""Rules over a run: each speaks of the right layer and step, and is silent where nothing is wrong."""

from __future__ import annotations

import math

import pytest

from normscope.core.errors import NormscopeError
from normscope.core.finding import Finding, Severity
from normscope.doctor.catalogue import RULES
from normscope.doctor.run import check_history
from normscope.doctor.run_history import MetricHistory, RunHistory
from normscope.doctor.settings import Settings

STEPS = [10, 20, 30, 40, 100]


def _found(**groups: dict[str, list[float]]) -> list[Finding]:
    """Return what is found in a run of five probes of 64 samples."""
    series = {f"{group}/{place}": (STEPS, v) for group, of in groups.items() for place, v in of.items()}
    return list(check_history(RunHistory(series, samples=64)).findings)


def test_every_rule_of_the_list_looks_at_runs() -> None:
    """Those whose question has an answer over time."""
    assert [code for code, rule in RULES.items() if rule.check_history is not None] == [
        "NS002",
        "NS203",
        "NS206",
        "NS217",
        "NS404",
        "NS507",
    ]


def test_statistics_that_stay_behind() -> None:
    """Three probes in a row beyond the limit of 64 samples, log 2 + 4 sqrt(2/64) = 1.40; once is not enough."""
    (one,) = _found(drift={"bn": [0.1, 3.0, 3.0, 3.0, 2.0], "other": [3.0, 3.0, 3.0, 3.0, 1.3]})
    assert (one.code, one.place, one.evidence["step"]) == ("NS203", "bn", 100)
    assert one.evidence["limit"] == pytest.approx(math.log(2) + 4 * math.sqrt(2 / 64))
    assert "since step 20" in one.message


def test_a_model_left_in_evaluation() -> None:
    """Since the first probe after the last in train mode; one that never trained was frozen on purpose."""
    (one,) = _found(training={"bn": [1, 1, 0, 0, 0], "frozen": [0, 0, 0, 0, 0], "good": [1, 0, 1, 1, 1]})
    assert (one.code, one.place, one.evidence["since"], one.severity) == ("NS217", "bn", 30, Severity.WARNING)


def test_batches_per_step() -> None:
    """One layer apart is a warning, several batches per step a remark; a layer in evaluation counts none."""
    (one,) = _found(tracked={"a": [1] * 5, "b": [1] * 5, "c": [3] * 5, "off": [0] * 5})
    assert (one.code, one.place, one.severity) == ("NS206", "c", Severity.WARNING)
    (two,) = _found(tracked={"a": [2] * 5, "b": [2] * 5})
    assert (two.code, two.place, two.severity) == ("NS206", "a", Severity.INFO)
    assert _found(tracked={"a": [1] * 5, "b": [1] * 5}) == []


def test_logits_scales_and_numbers() -> None:
    """Logits since when, scales that stand still while others move, the first layer and step with NaN."""
    (one,) = _found(logit={"attn": [5.0, 120.0, 150.0, 130.0, 200.0], "calm": [5.0, 200.0, 9.0, 9.0, 9.0]})
    assert (one.code, one.place, one.evidence["since"]) == ("NS507", "attn", 20)
    assert one.message.startswith("since step 20 ")
    assert "at step 100 it is 200:" in one.message
    (two,) = _found(scale_moved={"stuck": [0.0] * 5, "moves": [0.0, 0.1, 0.2, 0.3, 0.4]})
    assert (two.code, two.place, two.evidence["steps"]) == ("NS404", "stuck", 90)
    assert _found(scale_moved={"a": [0.0] * 5, "b": [0.0] * 5}) == []  # nothing is trained
    (three,) = _found(not_finite={"late": [0, 0, 0, 0, 1], "early": [0, 0, 0, 2, 2]}, train={"loss": [math.nan] * 5})
    assert (three.code, three.place, three.evidence["step"], three.severity) == ("NS002", "early", 40, Severity.ERROR)
    (four,) = _found(train={"loss": [1.0, 1.0, math.inf, math.nan, 1.0]})
    assert (four.code, four.place, four.evidence["step"]) == ("NS002", "train/loss", 30)


def test_settings_hold() -> None:
    """Selection, severity and unknown codes as for a model."""
    bad = RunHistory({"logit/attn": (STEPS, [200.0] * 5)})
    assert check_history(bad).failed
    assert not check_history(bad, ignore=["NS5"]).findings
    assert not check_history(bad, settings=Settings(fail_on="error")).failed
    with pytest.raises(NormscopeError):
        check_history(bad, select=["NS999"])
    assert check_history(RunHistory()).findings == ()


def test_since() -> None:
    """The step of the first of the last ones in a row."""
    metric = MetricHistory("a", (1, 2, 3, 4), (9.0, 1.0, 9.0, 9.0))
    assert (metric.since(5.0), metric.since(10.0), metric.since(0.0)) == (3, None, 1)
