"""The verdict on a network in a sentence, and the sentences a reader needs next."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from normscope.core.around import Around
from normscope.core.result import Coverage, Result
from normscope.core.value import ALL_INPUTS, Value
from normscope.report.wording import plural, power_text

#: A piece of a sentence: text, or a number that says what it is.
Piece = str | Value
#: An upper bound this many times what is attained says little about the network.
LOOSE = 3.0
#: Bounds closer than this, in decimal logarithms, are called equal.
EQUAL = 0.005


@dataclass(frozen=True)
class Verdict:
    """What a first-time reader should see.

    Attributes:
        headline: the verdict itself, one sentence.
        more: what the normalizers do, how far bound and attained lie apart; one sentence each.
        coverage: how much was understood, one sentence.
        complete: whether everything was.
    """

    headline: tuple[Piece, ...]
    more: tuple[tuple[Piece, ...], ...]
    coverage: str
    complete: bool


def verdict(result: Result) -> Verdict:
    """Return the verdict on a network.

    Args:
        result: what ``analyze`` returned.

    >>> from normscope.core.value import Kind
    >>> values = {"global": Value.of(8.0, Kind.CERTIFIED), "lower": Value.of(2.0, Kind.LOWER)}
    >>> found = verdict(Result({}, {}, Coverage(2, 2, 1.0, 6), (), (), values))
    >>> "".join(p if isinstance(p, str) else power_text(p.log10) for p in found.headline)
    'Moving the input by 1 moves the output by at most 8, on all inputs, and by 2 at some input.'
    """
    values = result.end_to_end
    near, everywhere = _around(result.around), _headline(values, result.coverage)
    more = [m for m in (everywhere if near else (), _floor(values), _normalizers(result), _gap(values)) if m]
    complete = result.coverage.understood == result.coverage.ops and not result.coverage.opaque
    return Verdict(near or everywhere, tuple(more), _coverage(result.coverage), complete)


def _around(around: Around | None) -> tuple[Piece, ...]:
    """Return what holds around the data, at the largest radius at which something does, and at the points."""
    best = None if around is None else around.best()
    if around is None or best is None or best.bound is None:
        return ()
    first = around.neighbourhoods[0]
    who = f"{100 * around.share:g} % of inputs like the data"
    sure = f"(confidence {100 * around.confidence:g} %, from {plural(around.points, 'point')})"
    if best.radius == 0:
        return ("Moving the input a little moves the output at most ", best.bound, f" times as far, at {who} {sure}.")
    start = f"Within {best.radius:g} of {who} {sure}, the output moves at most "
    if first.radius > 0 or first.bound is None:
        return (start, best.bound, " times as far as the input.")
    return (start, best.bound, " times as far as the input; at the points themselves at most ", first.bound, ".")


def is_finite(value: Value | None) -> bool:
    """Tell whether there is a bound, and it is one."""
    return value is not None and value.log < math.inf


def _domain(value: Value) -> str:
    """Return where a bound holds, as the end of a sentence."""
    return f"on {ALL_INPUTS}" if value.domain == ALL_INPUTS else f"for {value.domain}"


def _cause(coverage: Coverage) -> str:
    """Return what stands in the way of a bound, if an operation does."""
    if not coverage.opaque:
        return "."
    first = min(coverage.opaque, key=lambda o: o.known)
    more = len(coverage.opaque) - 1
    others = f" and {plural(more, 'more operation')}" if more else ""
    why = "has no finite constant" if first.known else "is not understood"
    return f": {first.op} in {first.module or first.name}{others} {why if not more else 'stand in the way'}."


def _headline(values: Mapping[str, Value | None], coverage: Coverage) -> tuple[Piece, ...]:
    """Return between which numbers the constant lies."""
    everywhere, floor = values.get("global"), values.get("variance_floor")
    upper = everywhere if is_finite(everywhere) else floor if is_finite(floor) else None
    lower = values.get("lower") or values.get("lower_everywhere")
    if upper is not floor:
        lower = values.get("lower_everywhere") or lower
    attained: tuple[Piece, ...] = () if lower is None else (", and by ", lower, " at some input")
    if upper is None:
        said: tuple[Piece, ...] = () if lower is None else (" Moving the input by 1 moves the output by ", lower)
        return (
            f"No bound on the network can be proved{_cause(coverage)}",
            *said,
            *((" at some input.",) if said else ()),
        )
    start = "" if upper is everywhere else "On all inputs nothing can be proved. "
    return (f"{start}Moving the input by 1 moves the output by at most ", upper, f", {_domain(upper)}", *attained, ".")


def _floor(values: Mapping[str, Value | None]) -> tuple[Piece, ...]:
    """Return how much smaller the bound is on inputs like the data."""
    everywhere, floor = values.get("global"), values.get("variance_floor")
    if everywhere is None or floor is None or not is_finite(everywhere) or not is_finite(floor):
        return ()
    if everywhere.log10 - floor.log10 < EQUAL:
        return ()
    lower = values.get("lower")
    attained: tuple[Piece, ...] = () if lower is None else (", and ", lower, " at some of them")
    return ("Where every normalizer sees at least the spread it saw in the data, at most ", floor, *attained, ".")


def _normalizers(result: Result) -> tuple[Piece, ...]:
    """Return what the normalizers do to the bound."""
    counts = Counter(n.kind.replace("_", " ") for n in result.normalizers)
    if not counts:
        return ("There are no normalizers.",)
    names = " and ".join(plural(count, kind) for kind, count in counts.items())
    effect = result.effect.get("change_of_bound")
    if effect is None:
        return (f"There {'is' if sum(counts.values()) == 1 else 'are'} {names}.",)
    change = effect["log10"]
    one = sum(counts.values()) == 1
    if abs(change) < EQUAL:
        return (f"Taking its {names} out of the same weights leaves the proved bound as it is.",)
    words = "larger" if change < 0 else "smaller"
    times = power_text(abs(change))
    what = "it" if one else "them"
    return (f"With {names} taken out, the same weights have a proved bound {times} times {words} than with {what}.",)


def _gap(values: Mapping[str, Value | None]) -> tuple[Piece, ...]:
    """Return how far the bound may be from the truth."""
    pairs = (("variance_floor", "lower"), ("global", "lower_everywhere"), ("global", "lower"))
    found = ((values.get(above), values.get(below)) for above, below in pairs)
    upper, lower = next(((u, x) for u, x in found if is_finite(u) and x is not None), (None, None))
    if lower is None or upper is None or math.isinf(lower.log) or upper.log10 - lower.log10 < LOOSE:
        return ()
    factor = power_text(upper.log10 - lower.log10)
    return (
        f"The truth lies between the two: the bound is {factor} times what was attained, so it may be far from it.",
    )


def _coverage(coverage: Coverage) -> str:
    """Return how much was understood."""
    unknown = coverage.ops - coverage.understood
    known = len(coverage.opaque) - unknown
    if not unknown:
        said = f"All {plural(coverage.ops, 'operation')} were understood"
    else:
        said = f"{unknown:,} of {plural(coverage.ops, 'operation')} {'was' if unknown == 1 else 'were'} not understood"
    if known > 0:
        said += f"; {known:,} {'has' if known == 1 else 'have'} no finite constant"
    share = 100 * coverage.parameters
    return f"{said}; {share:.4g} % of {plural(coverage.parameters_total, 'parameter')} covered."
