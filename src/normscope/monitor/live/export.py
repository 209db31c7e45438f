"""A still copy of the page: one file with the lines of all charts inside."""

from pathlib import Path
from typing import Any

from normscope.core.files import write_text
from normscope.core.lazy import late
from normscope.monitor.live.feed import Feed
from normscope.monitor.live.thinning import CHART, LEAST

#: Numbers in a whole page; where there are more, lines are thinned.
PAGE = 1_500_000


def still_page(feed: Feed, title: str = "") -> str:
    """Return the page of some runs as they are now, which needs no server; its title is by default their names."""
    state = feed.state()
    lines = sum(len(group["lines"]) for group in state["groups"]) * len(state["runs"])
    room = CHART if feed.numbers() <= PAGE else PAGE // max(1, lines)
    data: dict[str, Any] = {}
    for group in state["groups"]:
        here = len(group["lines"]) * len(state["runs"])
        limit = max(LEAST, min(CHART // here, room))  # more than a screen shows: a still page cannot ask for detail
        data[group["key"]] = feed.series(group["key"], limit=limit)
    page: str = late("normscope.report.live", "render_live")(state, data, title=title)
    return page


def export(feed: Feed, path: str | Path, title: str = "") -> Path:
    """Write the page of some runs as they are now, whole or not at all, and return its path."""
    return write_text(path, still_page(feed, title))
