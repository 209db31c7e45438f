"""Several runs as one feed: state, lines, and what came since."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path

import pytest

from monitor.live.runs import begin, written
from normscope.core.errors import InputError
from normscope.monitor.live.export import still_page
from normscope.monitor.live.feed import LiveFeed, run_folders, run_names


@pytest.fixture
def feed(tmp_path: Path) -> LiveFeed:
    """Return the feed of two runs of other lengths."""
    for name, count in (("one", 20), ("two", 8)):
        written(tmp_path / name, {s: {"train/loss": 1 / (s + 1), "norm/a": float(s)} for s in range(count)})
    feed = LiveFeed([tmp_path / "one", tmp_path / "two"])
    feed.poll()
    return feed


def test_folders_of_runs(tmp_path: Path) -> None:
    """A folder that holds runs stands for them; one without is a mistake unless it is waited for."""
    for name in ("b", "a"):
        written(tmp_path / "all" / name, {1: {}})
    (tmp_path / "all" / "other").mkdir()
    assert [p.name for p in run_folders([tmp_path / "all"])] == ["a", "b"]
    assert [p.name for p in run_folders([tmp_path / "all" / "b", tmp_path / "all"])] == ["b", "a"]
    with pytest.raises(InputError, match=r"not found.*use wait=True or --wait\."):
        run_folders([tmp_path / "none"])
    with pytest.raises(InputError, match=r"no config\.json in it"):
        run_folders([tmp_path / "all" / "other"])
    with pytest.raises(InputError, match="Expected at least one run"):
        run_folders([])
    assert [p.name for p in run_folders([tmp_path / "none"], wait=True)] == ["none"]


def test_names_are_told_apart() -> None:
    """By as much of the path as is needed."""
    assert run_names([Path("/x/a/run"), Path("/y/a/run"), Path("/y/b")]) == ["x/a/run", "y/a/run", "b"]


def test_the_state_is_strict_json(tmp_path: Path) -> None:
    """Numbers that are none are words, and the page is told of them."""
    written(tmp_path, {1: {"train/loss": 1.0}, 2: {"train/loss": math.nan, "product/folded_log10": math.inf}})
    feed = LiveFeed([tmp_path])
    feed.poll()
    state = json.loads(json.dumps(feed.state(), allow_nan=False))
    (run,) = state["runs"]
    assert run["last"] == {"train/loss": "nan", "product/folded_log10": "inf"}
    assert run["broken"] == {"train/loss": [1, 2], "product/folded_log10": [1, 2]}
    assert run["notes"] == ["the probe is small"]
    assert [(g["key"], g["log10"]) for g in state["groups"]] == [("loss", False), ("product", True)]


def test_lines_of_a_chart(feed: LiveFeed) -> None:
    """Run by run, with how far they were read; a window holds its steps; an unknown chart is none."""
    found = feed.series("norm")
    assert found is not None
    assert [(b["generation"], b["count"], b["exact"], b["x"][-1]) for b in found["runs"]] == [
        (0, 20, True, 19),
        (0, 8, True, 7),
    ]
    assert found["runs"][1]["lines"] == {"norm/a": [float(s) for s in range(8)]}
    closer = feed.series("norm", 10, 12)
    assert closer is not None
    assert closer["runs"][0]["x"] == [9, 10, 11, 12, 13]
    assert feed.series("nothing") is None


def test_what_came_since(feed: LiveFeed, tmp_path: Path) -> None:
    """Points of the run that grew, nothing of the other; a position that is none resets all."""
    before = feed.position()
    assert before == "0.20-0.8"
    assert feed.since(before) == ([], before)
    begin(tmp_path / "two").log({"norm/a": 3.5, "train/loss": math.nan}, step=8)
    assert feed.poll()
    ((name, event),), now = feed.since(before)
    assert now == feed.position() == "0.20-0.9"
    assert (name, event["run"], event["first"]) == ("points", 1, 8)
    assert event["points"] == [[8, {"norm/a": 3.5, "train/loss": "nan"}]]
    for nonsense in ("", "0.1", "a.b-c.d", "0.20-0.8-0.1", "-1.0-0.0", "9" * 40, "0.٣-0.8"):
        assert [name for name, _ in feed.since(nonsense)[0]] == ["reset", "reset"]


def test_a_resumed_run_is_reset(feed: LiveFeed, tmp_path: Path) -> None:
    """What was sent of it before is stale; the other run is not touched."""
    before = feed.position()
    shape = feed.shape()
    begin(tmp_path / "one", step=5)
    assert feed.poll()
    assert feed.since(before)[0] == [("reset", {"run": 0, "generation": 1, "count": 6})]
    assert feed.shape() != shape


def test_waiting_wakes_when_there_is_news_and_when_it_ends(
    feed: LiveFeed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers wait without asking again and again."""
    version = feed.wait(-1, 0)
    assert feed.wait(version, 0.01) == version
    monkeypatch.setattr("normscope.monitor.live.feed.INTERVAL", 0.02)
    feed.start()
    woken: list[int] = []
    waiter = threading.Thread(target=lambda: woken.append(feed.wait(version, 20)))
    waiter.start()
    begin(tmp_path / "one").log({"norm/a": 1.0}, step=20)
    waiter.join(10)
    assert woken
    assert woken[0] > version
    last = threading.Thread(target=feed.wait, args=(feed.wait(-1, 0), 20))
    last.start()
    feed.close()
    last.join(10)
    assert not last.is_alive()


def test_new_metrics_make_new_charts(feed: LiveFeed, tmp_path: Path) -> None:
    """Certified bounds come late in a run."""
    shape = feed.shape()
    begin(tmp_path / "one").log({"certified/global_log10": 2.0}, step=21)
    feed.poll()
    assert feed.shape() != shape
    assert "certified" in [c.key for c in feed.charts()]


@pytest.mark.parametrize("value", [None, 7, [None], {"a": 1}, math.nan])
@pytest.mark.parametrize(
    "key", ["model", "parameters", "commit", "notes", "layers", "normalizers", "metrics", "resumed"]
)
def test_any_configuration_makes_a_page(tmp_path: Path, key: str, value: object) -> None:
    """What is null or of another kind is read as empty, and what is shown can be written."""
    folder = written(tmp_path / "run", {1: {"norm/a": 1.0}})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: value}))
    feed = LiveFeed([folder])
    assert feed.poll()
    json.dumps(feed.state(), allow_nan=False, ensure_ascii=False).encode()
    assert "norm/a" in still_page(feed)


def test_broken_runs_are_left_out(tmp_path: Path) -> None:
    """Unless they were asked for, or there is no other."""
    good = written(tmp_path / "good", {1: {"norm/a": 1.0}})
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "config.json").write_text("{")
    feed = LiveFeed([good, bad])
    (error,) = feed.open()
    assert "bad" in str(error)
    assert [run.name for run in feed.runs] == ["good"]
    assert feed.position() == "0.1"
    assert not feed.poll()
    with pytest.raises(InputError, match="bad"):
        LiveFeed([good, bad]).open(asked=[bad])
    with pytest.raises(InputError, match="bad"):
        LiveFeed([bad]).open()
