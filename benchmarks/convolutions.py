"""Norms of convolutions: width and time of Normscope, error and time of the peers on the same layers."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from benchmarks.layers import Layer, convolutions_of
from benchmarks.machine import Failure, environment, stream, timed, version
from benchmarks.peers import ONE_SIDED, PEERS, Peer
from benchmarks.truth import Interval, true_norm
from normscope.linalg.convolution import convolution_norm

Say = Callable[[str], None]
NETWORKS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("resnet18", {}),
    ("resnet50", {}),
    ("mobilenet_v2", {}),
    ("convnext_tiny", {}),
)
SMALL_NETWORKS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("resnet18", {"width": 2, "image_size": 16, "classes": 2}),
    ("cnn", {}),
)
#: CPU seconds all convolutions of a network may take.
TARGET_SECONDS = {"resnet18": 30.0}
#: A layer on which every method is run once before it is timed.
WARM_UP = Layer((4, 4, 3, 3), 8, 1, 1, 1)
#: A peer may use this many times the CPU time of Normscope on a layer, and at least so many seconds.
PATIENCE, LEAST_SECONDS = 5.0, 2.0


@dataclass(frozen=True)
class Settings:
    """How long to measure.

    Attributes:
        networks: names and arguments.
        most_layers: the most layers to measure.
        truth_steps: Lanczos steps of the truth.
        patience: CPU time a peer may use, over that of Normscope.
        least_seconds: CPU seconds a peer may always use.
        only: measure layers of these networks alone, if there are any.
        known: layers not to measure.
    """

    networks: tuple[tuple[str, dict[str, Any]], ...] = NETWORKS
    most_layers: int | None = None
    truth_steps: int = 250
    patience: float = PATIENCE
    least_seconds: float = LEAST_SECONDS
    only: tuple[str, ...] = ()
    known: tuple[str, ...] = ()


QUICK = Settings(SMALL_NETWORKS, most_layers=2, truth_steps=30, patience=1.0, least_seconds=20.0)


def target(layer: Layer) -> float:
    """Return the width aimed at: by the side of the map and the stride."""
    if layer.is_matrix:
        return 1e-3
    if layer.size <= 8:
        return 1e-2
    return 1e-3 if layer.stride == 1 and layer.size >= 28 else 5e-3


def run(settings: Settings, say: Say) -> Iterator[dict[str, Any]]:
    """Measure every layer; yield what is known after each."""
    every = convolutions_of(settings.networks)
    names = [name for name, _ in settings.networks]
    layers = [
        layer
        for layer in every
        if layer.name not in settings.known and (not settings.only or set(settings.only) & set(layer.uses))
    ]
    rows = []
    whole = in_one_process(every, tuple(n for n in names if n in TARGET_SECONDS and settings.most_layers is None))
    for layer in layers[: settings.most_layers]:
        row = measure(layer, settings)
        rows.append(row)
        ours = row["normscope"]
        say(
            f"{layer.name:<32} width {100 * ours['width']:.3g} %, probable {100 * ours['probable_width']:.3g} %, "
            f"{ours['cpu']:.2f} CPU s"
        )
        yield {
            "environment": environment(),
            "peers": [_facts(peer) for peer in PEERS],
            "convolutions": {name: sum(layer.uses.get(name, 0) for layer in every) for name in names},
            "in_one_process": whole,
            "rows": rows,
        }


def in_one_process(layers: list[Layer], networks: tuple[str, ...] = tuple(TARGET_SECONDS)) -> dict[str, float]:
    """Return the CPU seconds of all convolutions of a network one after another, as an analysis makes them."""

    def produce(network: str) -> Iterator[float]:
        _norm(WARM_UP, WARM_UP.weight())
        spent = 0.0
        for layer in layers:
            weight = layer.weight()
            for _ in range(layer.uses.get(network, 0)):
                spent += timed(lambda layer=layer, weight=weight: _norm(layer, weight), once=True)[1].cpu
        yield spent

    found: dict[str, float] = {}
    for network in networks:
        (spent,) = stream(lambda network=network: produce(network))
        if isinstance(spent, Failure):
            raise RuntimeError(f"the norms of {network} failed: {spent.reason}")
        found[network] = spent
    return found


def _facts(peer: Peer) -> dict[str, Any]:
    """Return what a reader must know of a peer."""
    installed = "" if peer.distribution is None else version(peer.distribution) or "not installed"
    return {
        "name": peer.name,
        "origin": peer.origin,
        "version": installed,
        "claim": peer.claim,
        "usual": peer.usual,
        "times": "of all stages" if peer.cumulative else "of the last stage",
    }


def measure(layer: Layer, settings: Settings) -> dict[str, Any]:
    """Measure one layer: Normscope, the truth, every peer, Normscope again."""
    weight = layer.weight()
    first = _ours(layer, weight)
    truth = _truth(layer, weight, settings.truth_steps, first)
    width = min(first["width"], first["probable_width"])
    limit = max(settings.least_seconds, settings.patience * first["cpu"])
    peers = {p.name: _peer(p, layer, weight, truth, width, limit) for p in PEERS}
    second = _ours(layer, weight)
    for key in ("cpu", "wall"):
        first[key] = (first[key] + second[key]) / 2
    for found in peers.values():
        if found.get("equal"):
            found["equal"]["cpu_ratio"] = found["equal"]["cpu"] / first["cpu"]
    return {
        "name": layer.name,
        "uses": dict(layer.uses),
        "is_matrix": layer.is_matrix,
        "map": layer.size,
        "stride": layer.stride,
        "target": target(layer),
        "load": round(os.getloadavg()[0], 1),
        "truth": {"lower": truth.lower, "upper": truth.upper},
        "normscope": first | {"lower_error": first["lower"] / truth.lower - 1, "error": _error(first["upper"], truth)},
        "peers": peers,
    }


def _ours(layer: Layer, weight: Tensor) -> dict[str, Any]:
    """Return the bounds of Normscope with default settings, and their time."""

    def produce() -> Iterator[dict[str, Any]]:
        _norm(WARM_UP, WARM_UP.weight())
        bounds, spent = timed(lambda: _norm(layer, weight))
        yield {
            "lower": bounds.lower,
            "upper": bounds.upper,
            "probable": bounds.probable,
            "width": bounds.width,
            "probable_width": bounds.probable_width,
            "delta": bounds.delta,
            "method": bounds.method,
            "cpu": spent.cpu,
            "wall": spent.wall,
        }

    (found,) = stream(produce)
    if isinstance(found, Failure):
        raise RuntimeError(f"the norm of {layer.name} failed: {found.reason}")
    return found


def _norm(layer: Layer, weight: Tensor) -> Any:
    """Return the bounds with default settings."""
    size = [layer.size, layer.size]
    return convolution_norm(weight, size, stride=layer.stride, padding=layer.padding, groups=layer.groups)


def _truth(layer: Layer, weight: Tensor, steps: int, ours: dict[str, Any]) -> Interval:
    """Return the tightest interval known; the long run and Normscope's own bounds must overlap."""
    (found,) = stream(lambda: iter([true_norm(layer, weight, steps=steps)]))
    if isinstance(found, Failure):
        raise RuntimeError(f"the truth of {layer.name} failed: {found.reason}")
    interval = Interval(max(found.lower, ours["lower"]), min(found.upper, ours["probable"]))
    if found.lower > ours["upper"] or interval.lower > interval.upper:
        raise RuntimeError(f"the bounds of {layer.name} do not hold: {ours['upper']} < {found.lower} is attained")
    return interval


def _error(value: float, truth: Interval) -> float:
    """Return the relative error against the attained end of the true interval: negative is certainly no bound."""
    return value / truth.lower - 1.0 if math.isfinite(value) else math.inf


def _peer(peer: Peer, layer: Layer, weight: Tensor, truth: Interval, width: float, limit: float) -> dict[str, Any]:
    """Return a peer's values by effort, the one at its usual effort, and the first as accurate as Normscope."""
    if peer.distribution is not None and version(peer.distribution) is None:
        return {"none": "not installed"}
    reason = peer.refuses(layer)
    if reason:
        return {"none": reason}
    if layer.is_matrix and peer.name not in (ONE_SIDED[0], "matrix norm", "torch spectral_norm"):
        return {"none": "a matrix norm"}
    found: dict[str, Any] = {"claim": peer.claim}
    cpu = wall = 0.0
    for item in stream(lambda: _run_stages(peer, layer, weight), limit):
        if isinstance(item, Failure):
            found["stopped"] = item.reason
            break
        cpu, wall = (cpu + item["cpu"], wall + item["wall"]) if peer.cumulative else (item["cpu"], item["wall"])
        error = _error(item["value"], truth)
        point = {"effort": item["effort"], "error": error, "cpu": cpu, "wall": wall}
        found["last"] = point
        if item["effort"] == peer.usual:
            found["usual"] = point
        if "equal" not in found and abs(error) <= max(width, 1e-6):
            found["equal"] = point
        if "usual" in found and "equal" in found:
            break
    return found


def _run_stages(peer: Peer, layer: Layer, weight: Tensor) -> Iterator[dict[str, Any]]:
    """Yield the value and time of every stage, after one on a small layer that is not timed."""
    if not peer.refuses(WARM_UP):
        next(iter(peer.stages(WARM_UP, WARM_UP.weight()))).run()
    for stage in peer.stages(layer, weight):
        value, spent = timed(stage.run, once=peer.cumulative)
        yield {"effort": stage.effort, "value": value, "cpu": spent.cpu, "wall": spent.wall}


def totals(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the seconds of each network: every shape times its count."""
    names = sorted({name for row in rows for name in row["uses"]})
    return {
        name: {
            "convolutions": sum(row["uses"].get(name, 0) for row in rows),
            "shapes": sum(name in row["uses"] for row in rows),
            "cpu": sum(row["uses"].get(name, 0) * row["normscope"]["cpu"] for row in rows),
            "wall": sum(row["uses"].get(name, 0) * row["normscope"]["wall"] for row in rows),
            "cpu_distinct": sum(row["normscope"]["cpu"] for row in rows if name in row["uses"]),
        }
        for name in names
    }


def missed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the layers whose certificate is wider than their target."""
    return [
        {
            "layer": row["name"],
            "width": row["normscope"]["width"],
            "target": row["target"],
            "probable_width": row["normscope"]["probable_width"],
        }
        for row in rows
        if row["normscope"]["width"] > row["target"]
    ]


def faster(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return where a peer needs less CPU time for a value as accurate as Normscope's width.

    ``cpu_ratio`` is over the time of the whole interval, ``kind_ratio`` over that of our quickest value which says as
    much as the peer's: an upper bound stands against the interval, any other value against our own from below too.
    """
    return [
        {
            "layer": row["name"],
            "peer": name,
            "claim": found["claim"],
            "kind_ratio": found["equal"]["cpu"] / _of_kind(row, found["claim"]),
            **found["equal"],
        }
        for row in rows
        for name, found in row["peers"].items()
        if name != ONE_SIDED[0] and found.get("equal") and found["equal"]["cpu_ratio"] < 1.0
    ]


def _of_kind(row: dict[str, Any], claim: str) -> float:
    """Return the CPU time of our quickest value that is as accurate as our width and says as much as a peer's."""
    from_below = row["peers"].get(ONE_SIDED[0], {}).get("equal")
    both = float(row["normscope"]["cpu"])
    return both if claim == "upper" or from_below is None else min(both, from_below["cpu"])


def one_sided(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return per layer what each method from below spends until its error is within Normscope's width.

    Only these do equal work: one value, attained, and no word on how far the norm may lie above it.
    """
    return [
        {
            "layer": row["name"],
            "width": min(row["normscope"]["width"], row["normscope"]["probable_width"]),
            "methods": {name: row["peers"][name] for name in ONE_SIDED if name in row["peers"]},
        }
        for row in rows
        if not row["is_matrix"]
    ]
