"""The verdict: right numbers in three sentences, also where nothing can be certified."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from normscope.core.around_data import Around, Neighbourhood
from normscope.core.errors import STOPPED
from normscope.core.finding import Finding, Severity
from normscope.core.value import Kind, Value
from normscope.report.verdict import sentence_text, verdict, verdict_lines
from report.samples import opaque, result, value


def test_bound_and_attained_of_one_domain_stand_together() -> None:
    """On all inputs the pair is global and lower_everywhere; on the floor variance_floor and lower."""
    found = verdict(result())
    assert sentence_text(found.input) == (
        "Moving the input by 1 moves the output by at most 3160 (certified), on all inputs, and by 6 (attained) at "
        "some input."
    )
    assert sentence_text(found.normalization) == (
        "The layer norm makes the certified bound 3 times larger than the same weights have without it; it "
        "stretches by at most 316 (certified)."
    )
    assert [sentence_text(m) for m in found.more] == [
        "On inputs with at least the standard deviation of the data before every normalizer, at most 30 (certified), "
        "and 4 (attained) at some of them."
    ]
    assert found.coverage == "All 5 operations were understood; 100 % of 40 parameters covered."
    assert found.complete


def test_a_bound_on_the_floor_that_is_no_smaller_is_not_repeated() -> None:
    values = result().end_to_end
    assert verdict(result(end_to_end=values | {"variance_floor": values["global"]})).more == ()


def test_every_view_opens_with_the_same_sentences() -> None:
    """JSON, text, the summary and a notebook hold the three sentences, first of all."""
    found = result()
    said = verdict_lines(found)
    assert tuple(found.to_dict()["verdict"].values()) == said
    assert list(found.to_dict())[2] == "verdict"
    start = " ".join(found.summary().split())
    assert start.startswith(f"small {' '.join(said)}")
    assert str(found) == found.summary()
    assert said[0].split(" and ")[0] in found._repr_html_()
    assert repr(found) == "<Result of small: attained 6, certified 3160>"


def test_what_holds_around_the_data_comes_first() -> None:
    """With its share and confidence, then on all inputs; without a bound there, that is said."""
    bound = value(5.0, Kind.PROBABILISTIC, delta=0.01)
    near = Around(0.95, 0.99, 100, 90, (Neighbourhood(0.0, (2.0,), bound), Neighbourhood(0.1, (2.0,), bound)))
    assert sentence_text(verdict(result(around=near)).input) == (
        "Within 0.1 of 95 % of inputs like the data (confidence 99 %, from 100 points), the output moves at most 5 "
        "times as far as the input; on all inputs at most 3160 (certified), and 6 (attained) at some input."
    )
    values = result().end_to_end | {"global": Value(math.inf, Kind.CERTIFIED)}
    text = sentence_text(verdict(result(around=near, end_to_end=values)).input)
    assert text.endswith("; on all inputs nothing can be certified, and 6 (attained) at some input.")


def test_too_few_points_for_a_share_of_inputs_speak_for_themselves() -> None:
    """At the largest radius at which all of them have a constant."""
    rows = [Neighbourhood(r, (2.0, c), None, value(c, domain=f"within {r:g} of each of the 2 data points"))
            for r, c in ((0.1, 5.0), (0.2, math.inf))]  # fmt: skip
    near = Around(0.95, 0.99, 2, 90, tuple(rows))
    assert sentence_text(verdict(result(around=near)).input) == (
        "Within 0.1 of each of the 2 data points, the output moves at most 5 (certified) times as far as the input; "
        "on all inputs at most 3160 (certified), and 6 (attained) at some input."
    )
    unknown = Around(0.95, 0.99, 2, 90, (Neighbourhood(0.0, (2.0, 5.0), None),))
    assert sentence_text(verdict(result(around=unknown)).input).startswith("Moving the input by 1")


def test_without_a_bound_on_all_inputs() -> None:
    """The floor takes its place, and its domain is said."""
    values = result().end_to_end | {"global": Value(math.inf, Kind.CERTIFIED)}
    text = sentence_text(verdict(result(end_to_end=values)).input)
    assert text.startswith("On all inputs nothing can be certified.")
    assert "at most 30 (certified), for inputs whose normalizer stds" in text
    assert "and by 4 (attained) at some input" in text


def test_without_any_bound() -> None:
    """What is attained is still said, and what was not understood."""
    infinite = Value(math.inf, Kind.CERTIFIED)
    values = {"global": infinite, "variance_floor": infinite, "lower": value(4.0, Kind.LOWER)}
    found = verdict(result(end_to_end=values, coverage=opaque()))
    assert sentence_text(found.input) == (
        "No bound on the network can be certified: aten.bessel in core.j0 and 1 more operation prevent it. "
        "Moving the input by 1 moves the output by 4 (attained) at some input."
    )
    assert sentence_text(found.next) == "Next: register a rule for aten.bessel in core.j0, see docs/rules.md."
    alone = replace(opaque(), opaque=opaque().opaque[1:], understood=9)
    assert sentence_text(verdict(result(end_to_end=values, coverage=alone)).input).startswith(
        "No bound on the network can be certified: aten.sign in core has no finite constant. Moving"
    )
    assert found.coverage == (
        "1 of 9 operations was not understood; 1 has no finite constant; 75 % of 40 parameters covered."
    )
    assert not found.complete
    assert sentence_text(verdict(result(end_to_end={})).input) == "No bound on the network can be certified."


def test_a_loose_bound_is_called_so() -> None:
    """A thousand times what is attained is worth a word; thirty times is not."""
    values = {"global": value(1e6), "lower": value(2.0, Kind.LOWER)}
    found = verdict(result(end_to_end=values))
    assert any("5e+05 times the attained value" in sentence_text(m) for m in found.more)
    assert not any("far from the truth" in sentence_text(m) for m in verdict(result()).more)


def test_networks_without_normalizers_and_unchanged_bounds() -> None:
    """Each has its own sentence."""
    assert sentence_text(verdict(result(normalizers=())).normalization) == "There are no normalizers."
    same = result(effect={"change_of_bound": {"log10": 0.001, "kind": "estimate", "note": ""}})
    assert "does not change the certified bound" in sentence_text(verdict(same).normalization)
    assert sentence_text(verdict(result(effect={})).normalization).startswith("There is 1 layer norm; it stretches")


def test_the_last_sentence_names_the_gravest_findings_and_a_command() -> None:
    """Errors before warnings; remarks are not urgent; what can be mended leads to fix, and is named alone there."""
    bias = Finding(
        "NS101",
        Severity.WARNING,
        "a",
        "a.bias has no effect (also b)",
        fix="`normscope fix --only drop-bias`",
        places=("a", "b"),
    )
    grave = Finding("NS210", Severity.ERROR, "bn", "a variance is negative")
    remark = Finding("NS503", Severity.INFO, "", "logits have no bound")
    dead = Finding("NS601", Severity.WARNING, "c", "4 of 16 units are constant")
    said = "Next: NS101, a.bias has no effect (and at 1 more place); 1 more below. "
    typed = {"name": "zoo:cnn[norm=none]", "origin": {}}
    many = (dead, bias, remark)
    assert _next(findings=many, model=typed) == said + "Run: `normscope fix 'zoo:cnn[norm=none]' --only drop-bias`."
    shaped = typed | {"origin": {"typed": "--input 1,8,8"}}
    assert (
        _next(findings=many, model=shaped)
        == said + "Run: `normscope fix 'zoo:cnn[norm=none]' --input 1,8,8 --only drop-bias`."
    )
    assert _next(findings=many) == said + 'Run: `normscope.fix(model, data, only="drop-bias")`.'
    both = _next(findings=(bias, grave), model=typed)
    assert both.startswith("Next: NS210 at bn, a variance is negative; NS101, a.bias has no effect (and")
    assert both.endswith("Run: `normscope explain NS210`.")
    assert _next(findings=(grave,), model=typed).endswith("Run: `normscope explain NS210`.")
    assert _next(findings=(grave,)).endswith('Run: `normscope.explain("NS210")`.')
    assert _next(findings=(remark,)).startswith("The doctor found nothing to fix.")
    assert "`normscope check 'zoo:cnn[norm=none]'`" in _next(model=typed)
    assert "`normscope.check(model, data)`" in _next()


def _next(**given: Any) -> str:
    return sentence_text(verdict(result(**given)).next)


def test_what_is_missing_is_asked_for() -> None:
    """Random weights and missing data are said, and how to give them."""
    random = result(findings=(), model={"name": "m", "origin": {"initialization": "random"}})
    assert "--weights" in sentence_text(verdict(random).next)
    assert "(--data)" in _next(findings=(), statistics={}, model={"name": "m", "origin": {}})
    assert "(data=)" in _next(findings=(), statistics={})
    stopped = result(messages=(STOPPED,), end_to_end={}, findings=())
    assert sentence_text(verdict(stopped).input) == "No bound on the network can be certified: it was stopped."
    assert "run it again" in sentence_text(verdict(stopped).next)
    assert "without --fast" in _next(model={"fast": True, "origin": {}})
    assert "without fast=True" in _next(model={"fast": True})
