"""A static copy of the live page: one file that contains the lines of all charts."""

from pathlib import Path
from typing import Any

from normscope.core.files import write_text
from normscope.core.lazy import late
from normscope.monitor.live.feed import LiveFeed
from normscope.monitor.live.thinning import CHART, LEAST

#: Most numbers in a page; with more, lines are thinned.
PAGE = 1_500_000


def still_page(feed: LiveFeed, title: str = "") -> str:
    """Return a page of the current state of some runs, which needs no server; the default title is their names."""
    state = feed.state()
    lines = sum(len(group["lines"]) for group in state["groups"]) * len(state["runs"])
    room = CHART if feed.numbers() <= PAGE else PAGE // max(1, lines)
    data: dict[str, Any] = {}
    for group in state["groups"]:
        here = len(group["lines"]) * len(state["runs"])
        limit = max(LEAST, min(CHART // here, room))  # more than a screen shows, as the page cannot request details
        data[group["key"]] = feed.series(group["key"], limit=limit)
    page: str = late("normscope.report.live", "render_live")(state, data, title=title)
    return page


def export(feed: LiveFeed, path: str | Path, title: str = "") -> Path:
    """Write such a page atomically, and return its path."""
    return write_text(path, still_page(feed, title))
