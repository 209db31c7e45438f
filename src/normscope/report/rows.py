"""The rows of the page's tables: every layer and normalizer in the order of the network, and the hot channels."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from normscope.core.result import LayerResult, NormalizerResult, Result
from normscope.core.value import Value
from normscope.core.words import KINDS
from normscope.report.numbers import page_float

#: Most hot channels the page lists.
HOTTEST = 20


@dataclass(frozen=True)
class Row:
    """One layer or normalizer, the ``place``-th of the network."""

    place: int
    name: str
    role: str  #: ``layer`` or ``normalizer``
    what: str  #: kind of layer or normalizer
    size: str  #: shape of the weight, or size of a normalizer's group
    note: str  #: how it was found, or facts
    proved: Value
    attained: Value | None = None
    folded: Value | None = None  #: norm together with the normalizer after it
    floor: Value | None = None  #: the bound where the data's spread is the least
    printed: Value | None = None  #: what the paper prints, and whether that is a bound, if it is known
    is_bound: bool | None = None


def layer_rows(result: Result) -> list[Row]:
    """Return every layer and normalizer, in the order of the network."""
    order = {name: place for place, name in enumerate(result.depth.names)}
    items: list[LayerResult | NormalizerResult] = [*result.layers, *result.normalizers]
    items.sort(key=lambda item: order.get(item.name, len(order)))
    return [
        _layer(i, item) if isinstance(item, LayerResult) else _normalizer(i, item) for i, item in enumerate(items, 1)
    ]


def _layer(place: int, x: LayerResult) -> Row:
    """Return the row of a linear layer; the paper's factor of a layer is its norm."""
    shape = "×".join(map(str, x.shape))
    note = f"certificate: {x.method}" if x.method else ""
    return Row(place, x.name, "layer", x.kind, shape, note, x.upper, x.attained, x.folded)


def _normalizer(place: int, n: NormalizerResult) -> Row:
    group = n.details.get("group_size") or n.details.get("channels")
    size = "" if group is None else f"{group:,} per group" if "group_size" in n.details else f"{group:,} channels"
    facts = [f"eps {page_float(n.details['eps'])}"] if "eps" in n.details else []
    if n.floor is not None:
        facts.append(f"least std seen {page_float(n.floor)}")
    elif "std_min" in n.details:
        facts.append(f"least running std {page_float(n.details['std_min'])}")
    if n.details.get("written_out"):
        facts.append("written in plain arithmetic")
    said = (n.kind.replace("_", " "), size, ", ".join(facts))
    return Row(place, n.name, "normalizer", *said, n.proved, None, None, n.on_floor, n.printed, n.printed_is_bound)


def hot_rows(result: Result) -> tuple[list[dict[str, Any]], int]:
    """Return the hottest channels of the network, hottest first, as the page shows them, and how many there are."""
    found = [(n, item) for n in result.normalizers for item in n.details.get("hot_channels", ())]
    found.sort(key=lambda pair: -_heat(pair[1]))
    keys = ("factor", "factor_over_median", "variance", "variance_over_median")
    rows = [
        {"name": n.name, "kind": n.kind.replace("_", " "), "channel": int(item["channel"]), "heat": _heat(item)}
        | {key: page_float(item.get(key)) for key in keys}
        for n, item in found[:HOTTEST]
    ]
    return rows, len(found)


def _heat(item: Mapping[str, Any]) -> float:
    """Return the larger of a channel's factor and variance over their medians."""
    return max(item.get("factor_over_median") or 0.0, item.get("variance_over_median") or 0.0)


#: The words beside numbers, and what they mean.
GLOSSARY: tuple[tuple[str, str], ...] = tuple((word, KINDS[word]) for word in KINDS if word != "measured")
