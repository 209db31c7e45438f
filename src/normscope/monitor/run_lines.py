"""The lines of a run: one point of a training run as one line of JSON that survives a crash.

A line is whole when it ends with a newline. Numbers that strict JSON cannot carry are strings: ``"nan"``, ``"inf"``.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Point:
    """What was logged at one step."""

    step: int  #: number of updates so far
    time: float  #: seconds since the start of the run
    metrics: Mapping[str, float] = field(default_factory=dict)  #: numbers by name
    note: str = ""  #: what a reader must know, if anything


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
    """Return the point of a line, or ``None`` if it is no whole point: torn, damaged, or of a step that cannot be.

    >>> from_line(b'{"step": 3, "ti') is None
    True
    """
    try:
        body = json.loads(line)
        metrics = {name: float(value) for name, value in body.get("metrics", {}).items()}
        point = Point(int(body["step"]), float(body["time"]), metrics, str(body.get("note") or ""))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    return point if point.step >= 0 and math.isfinite(point.time) else None


def whole_lines(content: bytes) -> Iterator[bytes]:
    r"""Yield the lines that end with a newline; a torn last one is left out.

    >>> list(whole_lines(b"a\nb\nc"))
    [b'a\n', b'b\n']
    """
    yield from (line + b"\n" for line in content.split(b"\n")[:-1])  # splitlines() would end one at a carriage return
