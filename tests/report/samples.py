"""Results made by hand for the tests of the report: small ones, and one of a thousand layers."""

from __future__ import annotations

import random
from typing import Any

from normscope.core.depth_curve import Curve, Depth
from normscope.core.result import Coverage, LayerResult, NormalizerResult, OpaqueOperation, Result
from normscope.core.value import Kind, Value

FLOOR = "inputs whose normalizer stds stay above those seen in the data"


def value(x: float, kind: Kind = Kind.CERTIFIED, **rest: Any) -> Value:
    """Return a value as an analysis makes it."""
    return Value.of(x, kind, **({"statement": "normscope F10"} | rest))


def result(**changes: Any) -> Result:
    """Return the result of a small network, with some fields changed."""
    fields: dict[str, Any] = {
        "model": {"name": "small", "class": "Net", "parameters": 40, "mode": "running", "norm": "l2", "torch": "2"},
        "input": {"blocks": [{"name": "x", "shape": [1, 4], "kind": "input"}], "held_fixed": [], "data": True},
        "coverage": Coverage(5, 5, 1.0, 40),
        "normalizers": (
            NormalizerResult(
                "norm",
                "layer_norm",
                value(2.0, Kind.PRINTED, statement="than2025 Lemma 2"),
                False,
                value(316.0),
                value(3.0, domain=FLOOR),
                0.5,
                {
                    "eps": 1e-5,
                    "module": "norm",
                    "group_size": 4,
                    "seen_variance_min": 0.1,
                    "seen_variance_mean": 0.5,
                    "seen_variance_max": 20.0,
                    "hot_channels": [
                        {"channel": 3, "factor": 9.0, "factor_over_median": 4.5, "variance_over_median": 40.0}
                    ],
                },
            ),
        ),
        "layers": (
            LayerResult("fc", "matrix", (4, 4), value(2.0), value(1.9, Kind.LOWER), method="dense"),
            LayerResult("out", "matrix", (2, 4), value(5.0), value(4.0, Kind.LOWER), value(7.0), "dense"),
        ),
        "end_to_end": {
            "printed": value(20.0, Kind.PRINTED, statement="than2025 Theorem 9"),
            "global": value(3160.0),
            "variance_floor": value(30.0, domain=FLOOR),
            "without_normalizers": value(10.0),
            "lower": value(4.0, Kind.LOWER, domain=FLOOR),
            "lower_everywhere": value(6.0, Kind.LOWER),
        },
        "statistics": {"samples": 8},
        "effect": {"change_of_bound": {"log10": 0.4771, "kind": "estimate", "note": "a ratio"}},
        "messages": ("held fixed: mask",),
        "blocks": (_block("fc", "Linear", 20), _block("norm", "LayerNorm", 8), _block("out", "Linear", 12)),
        "depth": Depth(
            ("input", "fc", "norm", "out", "output"),
            ("input", "layer", "normalizer", "layer", "output"),
            {
                "global": Curve.of([0.0, 0.7, 6.4, 8.0, 8.06], Kind.CERTIFIED),
                "variance_floor": Curve.of([0.0, 0.7, 1.8, 3.4, 3.41], Kind.CERTIFIED, domain=FLOOR),
                "lower": Curve.of([0.0, 0.6, None, 1.2, 1.3], Kind.LOWER, domain=FLOOR),
            },
        ),
    }
    return Result(**(fields | changes))


def _block(name: str, type: str, parameters: int) -> dict[str, Any]:
    """Return a block without children."""
    return {"name": name, "type": type, "repeat": 1, "ops": ["aten.add"], "parameters": parameters, "children": []}


def opaque() -> Coverage:
    """Return a coverage with holes."""
    holes = (
        OpaqueOperation("n1", "aten.bessel", "core.j0", "no rule for aten.bessel", False),
        OpaqueOperation("n2", "aten.sign", "core", "it jumps", True),
    )
    return Coverage(9, 8, 0.75, 40, holes)


def deep(count: int = 1000) -> Result:
    """Return a result of many layers, each followed by a normalizer, numbers of full length everywhere."""
    draw = random.Random(0)

    def number(kind: Kind, **rest: Any) -> Value:
        return Value(draw.uniform(-2.0, 6.0), kind, **({"statement": "normscope norm", "mode": "running"} | rest))

    names = [f"stages.{i // 100}.blocks.{i % 100}" for i in range(count)]
    layers = tuple(
        LayerResult(
            f"{name}.convolution",
            "convolution",
            (64, 64, 3, 3),
            number(Kind.CERTIFIED),
            number(Kind.LOWER),
            number(Kind.CERTIFIED),
            "torus certificate",
        )
        for name in names
    )
    normalizers = tuple(_normalizer(f"{name}.normalizer", draw, number) for name in names)
    places = ["input", *(f"{name}.{end}" for name in names for end in ("convolution", "normalizer")), "output"]
    kinds = ["input", *(("layer", "normalizer") * count), "output"]
    curves = {
        name: Curve.of([draw.uniform(0, 9) for _ in places], kind)
        for name, kind in (
            ("global", Kind.CERTIFIED),
            ("variance_floor", Kind.CERTIFIED),
            ("without_normalizers", Kind.CERTIFIED),
            ("printed", Kind.PRINTED),
            ("lower", Kind.LOWER),
        )
    }
    children = [
        _block(f"{name}.{end}", kind, 36928)
        for name in names
        for end, kind in (("convolution", "Conv2d"), ("normalizer", "GroupNorm"))
    ]
    return result(
        layers=layers,
        normalizers=normalizers,
        depth=Depth(tuple(places), tuple(kinds), curves),
        blocks=tuple(
            {**_block(name, "Block", 2), "children": children[2 * i : 2 * i + 2]} for i, name in enumerate(names)
        ),
    )


def _normalizer(name: str, draw: random.Random, number: Any) -> NormalizerResult:
    """Return a normalizer with every detail one can have."""
    keys = ("seen_variance_min", "seen_variance_mean", "seen_variance_max", "seen_low", "seen_high", "largest_norm")
    hot = [
        {
            "channel": draw.randrange(64),
            "factor": draw.random(),
            "factor_over_median": 3 + draw.random(),
            "variance": draw.random(),
            "variance_over_median": draw.random(),
        }
        for _ in range(2)
    ]
    facts: dict[str, Any] = {"eps": 1e-5, "module": name, "group_size": 4096, "hot_channels": hot}
    facts |= {key: draw.random() for key in keys}
    printed = number(Kind.PRINTED, statement="than2025 Lemma 3")
    floor = number(Kind.CERTIFIED, domain=f"std before it >= {draw.random():.6g}")
    return NormalizerResult(name, "group_norm", printed, False, number(Kind.CERTIFIED), floor, draw.random(), facts)
