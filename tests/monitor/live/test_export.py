"""The still copy: whole without a server, thinned where it must be, and readable without script."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from monitor.live.runs import written
from normscope.monitor.live import export as module
from normscope.monitor.live.export import export, still_page
from normscope.monitor.live.feed import LiveFeed
from normscope.report.embed import unpacked


def _feed(folder: Path, count: int = 30) -> LiveFeed:
    points = {s: {"norm/a": 0.5 + s, "norm/b": 2.0, "product/folded_log10": 3.0} for s in range(count)}
    feed = LiveFeed([written(folder / "<b>run", points, model="<script>alert(1)</script>")])
    feed.poll()
    return feed


def _inside(page: str) -> dict:
    found = re.search(r'id="normscope-watch"(?: data-encoding="([^"]*)")?>(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return unpacked(found[2], found[1] or "")


class _Text(HTMLParser):
    """The text a reader without script sees."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.tags, self._skip = "", [], False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append(tag)
        self._skip = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._skip = False

    def handle_data(self, data: str) -> None:
        if not self._skip:
            self.text += " ".join(data.split()) + " "


def test_it_holds_the_lines_and_the_last_numbers(tmp_path: Path) -> None:
    """Every point of a short run, and tables with words and kinds for who has no script."""
    page = export(_feed(tmp_path), tmp_path / "still.html").read_text()
    inside = _inside(page)
    assert inside["live"] is False
    assert inside["data"]["norm"]["runs"][0]["lines"]["norm/a"] == [0.5 + s for s in range(30)]
    text = _Text(page).text
    for part in ("Spectral norm of each layer", "29.5", "attained", "spectral norm of a layer", "1000", "step 29"):
        assert part in text
    assert "Pause" not in text
    assert "more points than this page shows" not in text


def test_nothing_in_a_run_becomes_markup(tmp_path: Path) -> None:
    """Names come from folders, models and training loops."""
    page = still_page(_feed(tmp_path))
    parsed = _Text(page)
    assert "<script>alert(1)</script>" in parsed.text
    assert parsed.tags.count("script") == 2
    assert "<b>run" in parsed.text
    assert 'src="' not in page
    assert "http://" not in page.split("<script")[0].replace("http://www.w3.org", "")


def test_a_long_run_is_thinned_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The peak stays."""
    monkeypatch.setattr(module, "PAGE", 300)
    page = still_page(_feed(tmp_path, 3000))
    block = _inside(page)["data"]["norm"]["runs"][0]
    assert not block["exact"]
    assert len(block["x"]) <= 120
    assert max(block["lines"]["norm/a"]) == 2999.5
    assert "more points than this page shows" in page


def test_it_holds_more_than_a_screen_shows(tmp_path: Path) -> None:
    """A still page cannot ask for detail, so a few lines are kept whole."""
    block = _inside(still_page(_feed(tmp_path, 6000)))["data"]["norm"]["runs"][0]
    assert block["exact"]
    assert len(block["x"]) == 6000


def test_it_is_not_half_written(tmp_path: Path) -> None:
    """A folder that cannot be written leaves no trace."""
    feed = _feed(tmp_path)
    (tmp_path / "file").write_text("")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OSError, match="file"):
        export(feed, tmp_path / "file" / "still.html")
    assert sorted(tmp_path.rglob("*")) == before


def test_the_data_is_strict_json(tmp_path: Path) -> None:
    """No NaN of Python's own."""
    feed = LiveFeed([written(tmp_path / "run", {1: {"train/loss": float("nan")}, 2: {"train/loss": float("-inf")}})])
    feed.poll()
    inside = _inside(still_page(feed))
    json.dumps(inside, allow_nan=False)
    assert inside["state"]["runs"][0]["last"] == {"train/loss": "-inf"}
