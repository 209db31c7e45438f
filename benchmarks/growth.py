"""How the cost of an analysis grows with depth and width."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.fresh import fresh, here
from benchmarks.machine import environment

Say = Callable[[str], None]
DEPTHS = (2, 4, 8, 16, 32, 64)
WIDTHS = (64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Settings:
    """Which sizes to measure, and the fixed ones beside them."""

    depths: tuple[int, ...] = DEPTHS
    widths: tuple[int, ...] = WIDTHS
    fixed_width: int = 64
    fixed_depth: int = 4
    data: int = 8
    isolated: bool = True


QUICK = Settings(depths=(1, 2), widths=(4, 8), fixed_width=4, fixed_depth=1, data=2, isolated=False)


def mlp(depth: int, width: int) -> tuple[str, dict[str, Any]]:
    """Return the papers' network with BatchNorm, of some depth and width."""
    return "relu10", {"norm": "bn", "depth": depth, "width": width, "in_features": 3 * 16 * 16}


def transformer(depth: int, width: int) -> tuple[str, dict[str, Any]]:
    """Return a pre-norm encoder of some depth and width on 16 vectors."""
    return "transformer_encoder", {"depth": depth, "width": width, "heads": 4, "norm_first": True}


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Return the slope of the line through the logarithms, by least squares.

    >>> round(exponent([1, 2, 4], [3, 12, 48]), 9)
    2.0
    """
    if len(sizes) < 2:
        return math.nan
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(costs, 1e-9)), 1)[0])


def run(settings: Settings, say: Say) -> Iterator[dict[str, Any]]:
    """Measure both families along both axes; yield after each."""
    ask = fresh if settings.isolated else here
    series = []
    for label, family in (("MLP with BatchNorm", mlp), ("pre-norm transformer", transformer)):
        depths = [(d, family(d, settings.fixed_width)) for d in settings.depths]
        widths = [(w, family(settings.fixed_depth, w)) for w in settings.widths]
        for axis, fixed, cases in (
            ("depth", f"width {settings.fixed_width}", depths),
            ("width", f"depth {settings.fixed_depth}", widths),
        ):
            points = []
            for size, (name, arguments) in cases:
                found = ask("analyze", name=name, arguments=arguments, batch=settings.data, length=None)
                points.append({"size": size, "cpu": found["cpu"], "wall": found["wall"], "memory": found["memory_mib"]})
                say(f"{label}, {axis} {size}: {found['cpu']:.2f} CPU s")
            sizes, costs = [p["size"] for p in points], [p["cpu"] for p in points]
            series.append(
                {
                    "network": label,
                    "axis": axis,
                    "fixed": fixed,
                    "points": points,
                    "exponent": exponent(sizes, costs),
                    "last_exponent": exponent(sizes[-2:], costs[-2:]),
                }
            )
            yield {"environment": environment(), "series": series}
