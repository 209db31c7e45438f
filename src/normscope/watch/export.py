"""A still copy of the page: one file with the lines of all charts inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from normscope.core.result import write_text
from normscope.report.live import render_live
from normscope.watch.feed import Feed
from normscope.watch.thinning import limit_for

#: Numbers in a whole page; where there are more, lines are thinned.
PAGE = 1_500_000


def still_page(feed: Feed, title: str = "") -> str:
    """Return the page of some runs as they are now, which needs no server.

    Args:
        feed: the runs, read.
        title: of the page; by default the names of the runs.
    """
    state = feed.state()
    lines = sum(len(group["lines"]) for group in state["groups"]) * max(1, len(state["runs"]))
    data: dict[str, Any] = {}
    for group in state["groups"]:
        here = len(group["lines"]) * len(state["runs"])
        data[group["key"]] = feed.series(group["key"], limit=min(limit_for(here), max(100, PAGE // max(1, lines))))
    return render_live(state, data, title=title)


def export(feed: Feed, path: str | Path, title: str = "") -> Path:
    """Write the page of some runs as they are now, whole or not at all.

    Args:
        feed: the runs, read.
        path: the file.
        title: of the page.

    Returns:
        The file.
    """
    return write_text(path, still_page(feed, title))
