"""The page of runs: what it says about lines, numbers and trouble."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest

from normscope.monitor.run import Run
from normscope.monitor.sinks.folder import RunFolder
from normscope.report.live import last_text, line_descriptions, nonfinite_warnings, policy_of, render_live


def _line(name: str, **rest: str) -> dict[str, str]:
    return {"name": name, "label": name, "kind": "attained", "words": "w", "statement": "", "domain": "", **rest}


def _state(**run: Any) -> dict[str, Any]:
    status = {
        "state": "live",
        "age": 1.0,
        "first": 0,
        "step": 1234,
        "points": 7,
        "rate": 2.5,
        "share": 0.019,
        "trouble": "",
    }
    facts = {"model": "net", "parameters": 5, "preset": "full", "started": "now", "commit": None}
    base = {
        "name": "r",
        "facts": facts,
        "resumed": 2,
        "layers": 1,
        "normalizers": 1,
        "notes": ["mind this"],
        "more_notes": 3,
        "broken": {},
        "status": status,
        "last": {"a": 0.25},
    }
    groups = [{"key": "k", "title": "T & U", "scale": "log", "log10": False, "lines": [_line("a")]}]
    return {"runs": [base | run], "groups": groups, "position": "0.7", "shape": "s"}


def test_what_it_says_of_a_run() -> None:
    """Facts, notes and measures, each a word for what it is."""
    page = render_live(_state())
    for part in ("step 1,234", "7 points", "2.5 steps/s", "monitor 1.9 % of the time", "resumed 2 times", "mind this",
                 "and 3 more", "T &amp; U", "0.25", "attained", "Pause"):  # fmt: skip
        assert part in page
    assert "commit" not in re.sub(r"<script.*", "", page, flags=re.DOTALL)


def test_without_points_it_still_is_a_page() -> None:
    """A run that has not begun has no facts."""
    facts = dict.fromkeys(("model", "parameters", "preset", "started", "commit"))
    state = _state(facts=facts, notes=[], more_notes=0, last={}) | {"groups": []}
    assert "No points yet" in render_live(state)


@pytest.mark.parametrize("live", [True, False])
def test_the_policy_allows_the_script_and_the_style_of_the_page_alone(live: bool) -> None:
    """The hashes are of what stands in the page."""
    page = render_live(_state(), None if live else {})
    for tag in ("script", "style"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy_of(live=live)
    assert ("connect-src 'self'" in policy_of(live=live)) == live
    assert " style=" not in page.split("<script")[0]


def test_words_are_said_once_where_they_are_the_same() -> None:
    """And by line where they are not."""
    (one,) = line_descriptions({"lines": [_line("a"), _line("b")]})
    assert (one["label"], one["words"]) == ("", "w")
    lines = [_line("a"), *(_line(n, words="v") for n in "bcdef")]
    assert [s["label"] for s in line_descriptions({"lines": lines})] == ["a", "b, c, d and 2 more"]


def test_warnings_of_numbers_that_are_not_finite() -> None:
    """A few by name, the others counted."""
    group = {"lines": [_line(str(i)) for i in range(8)]}
    runs = [{"name": "r", "broken": {str(i): [i + 1, 1000] for i in range(7)}}]
    found = nonfinite_warnings(group, runs)
    assert found[0] == "r, 0: 1 number not finite, first at step 1,000"
    assert found[-1] == "and 2 lines more with numbers that are not finite"
    assert len(found) == 6
    assert nonfinite_warnings(group, [{"name": "r", "broken": {}}]) == []


@pytest.mark.parametrize(
    ("value", "log10", "text"),
    [
        (0.25, False, "0.25"),
        (-1.5, False, "-1.5"),
        (0.0, False, "0"),
        ("nan", False, "not a number"),
        ("inf", False, "inf"),
        ("inf", True, "no bound"),
        ("-inf", True, "0"),
        (3.0, True, "1000"),
        (-2.0, True, "0.01"),
        (120.0, True, "1.000×10¹²⁰"),
    ],
)
def test_last_numbers(value: float | str, log10: bool, text: str) -> None:
    """As everywhere on the page."""
    assert last_text({"last": {"a": value}}, "a", log10) == text


def test_a_run_shows_itself(tmp_path: Path) -> None:
    """The last number of each metric as text, one row per step as a table."""
    pandas = pytest.importorskip("pandas")
    folder = RunFolder(tmp_path / "run")
    folder.begin({}, None)
    folder.log_many({1: {"train/loss": 2.0}, 2: {"train/loss": 1.5, "norm/0": 3.0}})
    folder.close()
    run = Run.open(tmp_path / "run")
    assert "train/loss       2      2   1.5" in run.summary()
    assert "2 steps" in repr(run)
    table = run.to_frame()
    assert isinstance(table, pandas.DataFrame)
    assert list(table["step"]) == [1, 2]
    assert list(table["train/loss"]) == [2.0, 1.5]
