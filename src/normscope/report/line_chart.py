"""Small line charts: one line of blocks for a terminal, and a standalone SVG picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]

BLOCKS = "▁▂▃▄▅▆▇█"
#: For terminals that know no others.
PLAIN_BLOCKS = "_.-:=+*#"
_WIDTH, _HEIGHT = 760.0, 420.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 84.0, 20.0, 44.0, 56.0
#: Colours that stay apart for all kinds of sight, and dashes so that colour is not all.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
_DASHES = ("", "7 4", "2 3", "9 3 2 3")
_TICKS = 6


def sparkline(values: Sequence[float], width: int = 60, blocks: str = BLOCKS) -> str:
    """Return numbers as one line of blocks, the least low and the largest high.

    Args:
        values: finite numbers; others leave a gap.
        width: most characters; more numbers are thinned.
        blocks: characters from low to high.

    >>> sparkline([0.0, 1.0, 2.0, 3.0])
    '▁▃▆█'
    """
    step = max(1, math.ceil(len(values) / width))
    shown = list(values)[::step]
    finite = [v for v in shown if math.isfinite(v)]
    if not finite:
        return " " * len(shown)
    low, high = min(finite), max(finite)
    top = len(blocks) - 1

    def block(v: float) -> str:
        if not math.isfinite(v):
            return " "
        return blocks[round(top * (v - low) / (high - low)) if high > low else top // 2]

    return "".join(map(block, shown))


def blocks_for(encoding: str | None) -> str:
    """Return the blocks that an encoding can write.

    >>> blocks_for("ascii") == PLAIN_BLOCKS, blocks_for("utf-8") == BLOCKS
    (True, True)
    """
    try:
        BLOCKS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return PLAIN_BLOCKS
    return BLOCKS


def round_ticks(low: float, high: float) -> list[float]:
    """Return about six round numbers from ``low`` to ``high``.

    >>> round_ticks(0.0, 10.0)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    if not high > low:
        return [low]
    rough = (high - low) / (_TICKS - 1)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = min((m * unit for m in (1, 2, 5, 10)), key=lambda s: abs(s - rough))
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def svg_chart(title: str, x_label: str, y_label: str, series: Mapping[str, Points]) -> str:
    """Return a line chart as an SVG document.

    Args:
        title: above the chart.
        x_label: below it.
        y_label: beside it.
        series: points ``(x, y)`` of each line by its name; those that are not finite are left out.

    >>> svg_chart("t", "x", "y", {"a": [(0, 0), (1, 1)]}).startswith("<svg")
    True
    """
    kept = {name: [p for p in points if all(map(math.isfinite, p))] for name, points in series.items()}
    xs = [x for points in kept.values() for x, _ in points] or [0.0, 1.0]
    ys = [y for points in kept.values() for _, y in points] or [0.0, 1.0]
    (x0, x1), (y0, y1) = _span(xs), _span(ys)

    def at(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + (x - x0) / (x1 - x0) * (_WIDTH - _LEFT - _RIGHT)
        return across, _HEIGHT - _BOTTOM - (y - y0) / (y1 - y0) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" '
        f'font-family="sans-serif" font-size="13"><title>{escape(title)}</title>',
        f'<rect width="{_WIDTH:g}" height="{_HEIGHT:g}" fill="#ffffff"/>',
        _text(_LEFT, 20, title, "start", "bold"),
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12, x_label, "middle"),
        f'<g transform="translate(18 {_HEIGHT / 2:g}) rotate(-90)">{_text(0, 0, y_label, "middle")}</g>',
    ]
    for y in round_ticks(y0, y1):
        _, down = at(x0, y)
        parts.append(f'<path d="M{_LEFT:g} {down:.1f}H{_WIDTH - _RIGHT:g}" stroke="#dddddd"/>')
        parts.append(_text(_LEFT - 8, down + 4, f"{y:g}", "end"))
    for x in round_ticks(x0, x1):
        parts.append(_text(at(x, y0)[0], _HEIGHT - _BOTTOM + 18, f"{x:g}", "middle"))
    for i, (name, points) in enumerate(kept.items()):
        colour, dash = _COLOURS[i % len(_COLOURS)], _DASHES[i % len(_DASHES)]
        drawn = " ".join(f"{across:.1f},{down:.1f}" for across, down in (at(x, y) for x, y in points))
        stroke = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
        parts.append(f'<polyline points="{drawn}" {stroke}/>')
        left = _LEFT + i * (_WIDTH - _LEFT - _RIGHT) / max(1, len(kept))
        parts.append(f'<path d="M{left:g} 32h22" {stroke}/>')
        parts.append(_text(left + 28, 36, name, "start"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _span(values: Sequence[float]) -> tuple[float, float]:
    """Return the least and the largest of some numbers, apart."""
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _text(x: float, y: float, text: str, anchor: str, weight: str = "normal") -> str:
    """Return a text element."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text {place} fill="#222222">{escape(text)}</text>'
