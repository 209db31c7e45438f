"""Consistency of results: an upper bound below its own attained value is removed and reported."""

import math
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from normscope.analysis.end_to_end import EndToEndConstants
from normscope.core.result import LayerResult
from normscope.core.value import Value
from normscope.graph.capture import Captured
from normscope.lipschitz.weights.result import WeightRow

#: Upper bounds of the whole network, and the lower bounds attained inside the domain of each.
PAIRS = {
    "global": ("lower_everywhere", "lower", "jacobian"),
    "global_probabilistic": ("lower_everywhere", "lower", "jacobian"),
    "variance_floor": ("lower",),
    "variance_floor_probabilistic": ("lower",),
    "stacked_batch": ("stacked_batch_lower",),
}
#: Most that the logarithm of an attained value may exceed that of its bound, by rounding.
ROUNDING = 1e-6


def contradicts(upper: Value | None, lower: Value | None) -> bool:
    """Return whether a lower bound lies above an upper one by more than rounding.

    >>> from normscope.core.value import Kind
    >>> contradicts(Value.of(2.0, Kind.CERTIFIED), Value.of(3.0, Kind.LOWER))
    True
    """
    return upper is not None and lower is not None and lower.log > upper.log + ROUNDING


def uncontradicted(whole: EndToEndConstants, messages: list[str]) -> EndToEndConstants:
    """Replace all upper bounds by "no bound" if one of them lies below an attained value, and add a message.

    They all come from the same rules: where one is wrong, none can be trusted.
    """
    constants = whole.constants
    wrong = {}
    for name, partners in PAIRS.items():
        upper = constants.get(name)
        found = [v for p in partners if (v := constants.get(p)) is not None and contradicts(upper, v)]
        if upper is not None and found:
            wrong[name] = _message(f"end to end, {name}", upper, found)
    if not wrong:
        return whole
    messages.extend(wrong.values())
    return _without_bounds(whole)


def where_defined(
    whole: EndToEndConstants, captured: Captured, inputs: list[Tensor], messages: list[str]
) -> EndToEndConstants:
    """Replace all upper bounds by "no bound", with a message, if the model returns NaN on its example.

    A product with zero or a constant behind an operation that is not a number has a constant of its own, which says
    nothing. What only overflows is a number in float64, or a search that scales it has attained a value.
    """
    attained = any(v is not None and v.log > -math.inf for v in map(whole.constants.get, PAIRS["global"]))
    if attained or not _has_nan(captured.run(inputs)) or not _has_nan(captured.run(inputs, torch.float64)):
        return whole
    messages.append("the model returns NaN on the example input, so nothing holds on all inputs; pass data of your own")
    return _without_bounds(whole)


def _has_nan(outputs: Iterable[Tensor]) -> bool:
    return any(bool(t.isnan().any()) for t in outputs)


def _without_bounds(whole: EndToEndConstants) -> EndToEndConstants:
    """Return the constants with every upper bound "no bound"; curves along depth end there."""
    no_bound = {name: (v := whole.constants.get(name)) and replace(v, log=math.inf) for name in PAIRS}
    kept = {name: c for name, c in whole.compositions.items() if name not in PAIRS}
    return replace(whole, constants=whole.constants | no_bound, compositions=kept)


def uncontradicted_row(row: LayerResult, messages: list[str]) -> LayerResult:
    """Return a layer, its upper bound replaced by "no bound" if it lies below what is attained."""
    if not contradicts(row.upper, row.lower):
        return row
    messages.append(_message(row.name, row.upper, [row.lower]))
    return replace(row, upper=replace(row.upper, log=math.inf), folded=None, probable=None)


def uncontradicted_weight(row: WeightRow, messages: list[str]) -> WeightRow:
    """Return a weight, every constant of it that lies below what is attained replaced by "no bound"."""
    stacked = {key: value for key, value in row.stacked.items() if key == "certified"}
    parts = (
        (row.name, row.constants, row.attained),
        (f"the result of {row.name}", row.outputs, row.attained_output),
        (f"{row.name}, stacked", stacked, row.stacked.get("attained")),
    )
    kept: list[dict[str, Value]] = []
    for name, values, lower in parts:
        kept.append(dict(values))
        for key, value in values.items():
            if lower is not None and contradicts(value, lower):
                messages.append(_message(f"{name}, {key}", value, [lower]))
                kept[-1][key] = replace(value, log=math.inf)
    return replace(row, constants=kept[0], outputs=kept[1], stacked={**row.stacked, **kept[2]})


def _message(what: str, upper: Value, lower: Iterable[Value]) -> str:
    most = max(lower, key=lambda v: v.log)
    return (
        f"contradiction ({what}): the {upper.kind.value} bound, log10 {upper.log10:.6g} on {upper.domain}, is below "
        f"the attained log10 {most.log10:.6g}. A rule for this network is wrong, so no bound is shown. Please report "
        "this with the model"
    )
