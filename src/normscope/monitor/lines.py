"""The lines of a run: one point of a training run as one line of JSON that survives a crash.

A line is whole when it ends with a newline. Numbers that strict JSON cannot carry are strings: ``"nan"``, ``"inf"``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Point:
    """What was logged at one step.

    Attributes:
        step: number of updates so far.
        time: seconds since the start of the run.
        metrics: numbers by name.
        note: what a reader must know, if anything.
    """

    step: int
    time: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


def to_line(point: Point) -> bytes:
    r"""Return a point as one line.

    >>> to_line(Point(3, 0.5, {"probe/loss": math.inf}))
    b'{"step": 3, "time": 0.5, "metrics": {"probe/loss": "inf"}}\n'
    """
    body: dict[str, Any] = {"step": point.step, "time": round(point.time, 6)}
    body["metrics"] = {name: x if math.isfinite(x) else str(x) for name, x in point.metrics.items()}
    if point.note:
        body["note"] = point.note
    return json.dumps(body, allow_nan=False).encode() + b"\n"


def from_line(line: bytes) -> Point | None:
    """Return the point of a line, or ``None`` if it is no whole point.

    >>> from_line(b'{"step": 3, "ti') is None
    True
    """
    try:
        body = json.loads(line)
        metrics = {str(name): float(value) for name, value in body.get("metrics", {}).items()}
        return Point(int(body["step"]), float(body["time"]), metrics, str(body.get("note", "")))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None


def whole_lines(content: bytes) -> Iterator[bytes]:
    r"""Yield the lines that end with a newline; a torn last one is left out.

    >>> list(whole_lines(b"a\nb\nc"))
    [b'a\n', b'b\n']
    """
    yield from (line for line in content.splitlines(keepends=True) if line.endswith(b"\n"))
