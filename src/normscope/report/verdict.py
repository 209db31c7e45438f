"""The verdict: the three sentences at the top of every report.

How far the output moves with the input, what the normalizers do, and what to do next.
"""

import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from normscope.core.around_data import Around
from normscope.core.errors import STOPPED
from normscope.core.finding import Finding, Severity, order
from normscope.core.number_text import number_text
from normscope.core.result import Coverage, Result
from normscope.core.value import ALL_INPUTS, Value
from normscope.report.numbers import kind_text, plural, value_text

#: A piece of a sentence: text, or a number that says what it is.
Piece = str | Value
Sentence = tuple[Piece, ...]
#: A bound this many decades above the attained value is reported as possibly far from the truth.
LOOSE = 3.0
#: Bounds closer than this, in decimal logarithms, are called equal.
EQUAL = 0.005
#: How many findings the last sentence names.
NAMED = 2
#: The command in the fix of a finding that changes the weights only.
_MENDS = re.compile(r"`normscope fix --only ([\w-]+)`")


@dataclass(frozen=True)
class Verdict:
    """The three sentences of the verdict and the details behind them."""

    input: Sentence  #: what moving the input does to the output
    normalization: Sentence  #: what the normalizers do in this network
    next: Sentence  #: what to do next
    more: tuple[Sentence, ...]  #: details of the first sentence: other domains, how far bound and attained lie apart
    coverage: str  #: how much was understood, one sentence
    complete: bool  #: whether everything was

    @property
    def sentences(self) -> tuple[Sentence, Sentence, Sentence]:
        """Return the three sentences."""
        return self.input, self.normalization, self.next

    def to_dict(self) -> dict[str, str]:
        """Return the three sentences as plain text, for JSON."""
        return {key: sentence_text(getattr(self, key)) for key in ("input", "normalization", "next")}


def verdict(result: Result) -> Verdict:
    """Return the verdict on a network.

    >>> from normscope.core.value import Kind
    >>> values = {"global": Value.of(8.0, Kind.CERTIFIED), "lower": Value.of(2.0, Kind.LOWER)}
    >>> found = verdict(Result({}, {}, Coverage(2, 2, 1.0, 6), (), (), values))
    >>> sentence_text(found.input)
    'Moving the input by 1 moves the output by at most 8 (certified), on all inputs, and by 2 (attained) at some input.'
    """
    values = result.end_to_end
    near = _around(result.around, values)
    more = tuple(m for m in (_floor(values), _gap(values)) if m)
    complete = result.coverage.understood == result.coverage.ops and not result.coverage.opaque
    first = near or _everywhere(values, ": it was stopped." if STOPPED in result.messages else _cause(result.coverage))
    return Verdict(first, _normalization(result), _next(result), more, _coverage(result.coverage), complete)


def sentence_text(pieces: Iterable[Piece]) -> str:
    """Return a sentence as plain text; each number is followed by what it guarantees.

    >>> from normscope.core.value import Kind
    >>> sentence_text(("at most ", Value.of(8.0, Kind.CERTIFIED), "."))
    'at most 8 (certified).'
    """
    return "".join(p if isinstance(p, str) else f"{value_text(p)} ({kind_text(p)})" for p in pieces)


def verdict_lines(result: Result) -> tuple[str, ...]:
    """Return the three sentences as lines of text."""
    return tuple(sentence_text(s) for s in verdict(result).sentences)


def has_urgent(result: Result) -> bool:
    """Return whether the doctor found something to act on."""
    return bool(_urgent(result))


def is_finite(value: Value | None) -> bool:
    """Return whether a value exists and is finite."""
    return value is not None and value.log < math.inf


def _around(around: Around | None, values: Mapping[str, Value | None]) -> Sentence:
    """Return the bound around the data at the largest radius that has one, and the bound on all inputs."""
    best = None if around is None else around.best()
    upper, lower = values.get("global"), values.get("lower_everywhere") or values.get("lower")
    attained: Sentence = () if lower is None else (", and ", lower, " at some input")
    rest: Sentence = ("; on all inputs nothing can be certified", *attained, ".")
    if upper is not None and is_finite(upper):
        rest = (f"; {_domain(upper)} at most ", upper, *attained, ".")
    if around is None or best is None or best.bound is None:
        best = None if around is None else around.best_of_points()
        if best is None or best.every_point is None:
            return ()
        where = best.every_point.domain
        start = f"{where[:1].upper()}{where[1:]}, the output moves at most "
        return (start, best.every_point, " times as far as the input", *rest)
    who = f"{100 * around.share:g} % of inputs like the data"
    sure = f"(confidence {100 * around.confidence:g} %, from {plural(around.points, 'point')})"
    if best.radius == 0:
        bound = value_text(best.bound)
        start = f"Moving the input a little moves the output at most {bound} times as far, at {who} {sure}"
    else:
        bound = f"{value_text(best.bound)} times as far as the input"
        start = f"Within {best.radius:g} of {who} {sure}, the output moves at most {bound}"
    return (start, *rest)


def _domain(value: Value) -> str:
    return f"on {ALL_INPUTS}" if value.domain == ALL_INPUTS else f"for {value.domain}"


def _cause(coverage: Coverage) -> str:
    """Return the operation that prevents a bound, if there is one."""
    if not coverage.opaque:
        return "."
    first = min(coverage.opaque, key=lambda o: o.known)
    more = len(coverage.opaque) - 1
    others = f" and {plural(more, 'more operation')}" if more else ""
    why = "has no finite constant" if first.known else "is not understood"
    return f": {first.op} in {first.module or first.name}{others} {why if not more else 'prevent it'}."


def _everywhere(values: Mapping[str, Value | None], cause: str) -> Sentence:
    """Return the bound and the attained value on the widest domain with a bound, or the cause if there is none."""
    everywhere, floor = values.get("global"), values.get("variance_floor")
    upper = everywhere if is_finite(everywhere) else floor if is_finite(floor) else None
    lower = values.get("lower") or values.get("lower_everywhere")
    if upper is not floor:
        lower = values.get("lower_everywhere") or lower
    if upper is None:
        start = f"No bound on the network can be certified{cause}"
        if lower is None:
            return (start,)
        return (f"{start} Moving the input by 1 moves the output by ", lower, " at some input.")
    attained: Sentence = () if lower is None else (", and by ", lower, " at some input")
    start = "" if upper is everywhere else "On all inputs nothing can be certified. "
    return (f"{start}Moving the input by 1 moves the output by at most ", upper, f", {_domain(upper)}", *attained, ".")


def _floor(values: Mapping[str, Value | None]) -> Sentence:
    """Return how much smaller the bound is on inputs like the data."""
    everywhere, floor = values.get("global"), values.get("variance_floor")
    if everywhere is None or floor is None or not is_finite(everywhere) or not is_finite(floor):
        return ()
    if everywhere.log10 - floor.log10 < EQUAL:
        return ()
    lower = values.get("lower")
    attained: Sentence = () if lower is None else (", and ", lower, " at some of them")
    return (
        "On inputs with at least the standard deviation of the data before every normalizer, at most ",
        floor,
        *attained,
        ".",
    )


def _gap(values: Mapping[str, Value | None]) -> Sentence:
    """Return the ratio of the bound to the attained value, if it is large."""
    pairs = (("variance_floor", "lower"), ("global", "lower_everywhere"), ("global", "lower"))
    found = ((values.get(above), values.get(below)) for above, below in pairs)
    upper, lower = next(((u, x) for u, x in found if is_finite(u) and x is not None), (None, None))
    if lower is None or upper is None or math.isinf(lower.log) or upper.log10 - lower.log10 < LOOSE:
        return ()
    factor = number_text(upper.log10 - lower.log10)
    start = "The truth lies between certified and attained"
    return (f"{start}: the bound is {factor} times the attained value and may be far from the truth.",)


def _normalization(result: Result) -> Sentence:
    """Return the effect of the normalizers on the bound, and the largest of their constants."""
    counts = Counter(n.kind.replace("_", " ") for n in result.normalizers)
    if not counts:
        return ("There are no normalizers.",)
    names = " and ".join(plural(count, kind) for kind, count in counts.items())
    finite = [n for n in result.normalizers if math.isfinite(n.proved.log)]
    strongest = max(finite, key=lambda n: n.proved.log, default=None)
    effect = result.effect.get("change_of_bound")
    one = sum(counts.values()) == 1
    them = next(iter(counts)) if one else names
    if effect is None:
        start = f"There {'is' if one else 'are'} {names}"
    elif abs(effect["log10"]) < EQUAL:
        start = f"The {them} {'does' if one else 'do'} not change the certified bound"
    else:
        words = "smaller" if effect["log10"] < 0 else "larger"
        times = number_text(abs(effect["log10"]))
        start = (
            f"The {them} make{'s' if one else ''} the certified bound {times} times {words} than the same weights "
            f"have without {'it' if one else 'them'}"
        )
    if strongest is None:
        return (f"{start}.",)
    which = "it" if one else f"the strongest, {strongest.name},"
    return (f"{start}; {which} stretches by at most ", strongest.proved, ".")


def _next(result: Result) -> Sentence:
    """Return what to do next, the most useful thing first."""
    typed = "origin" in result.model  # on the command line; otherwise in Python
    words = shlex.quote(str(result.model.get("name") or "MODEL")), result.model.get("origin", {}).get("typed", "")
    name = " ".join(filter(None, words))
    urgent = _urgent(result)
    if urgent:
        return (f"Next: {_findings(urgent, name if typed else None)}.",)
    unknown = [o for o in result.coverage.opaque if not o.known]
    if unknown:
        where = unknown[0].module or unknown[0].name
        return (f"Next: register a rule for {unknown[0].op} in {where}, see docs/rules.md.",)
    if STOPPED in result.messages:
        return ("Next: run it again and let it finish; it was stopped before the end.",)
    if result.model.get("fast"):
        return (f"Next: run again without {'--fast' if typed else 'fast=True'} for tighter bounds.",)
    start = "" if result.findings is None else "The doctor found nothing to fix. "
    if result.model.get("origin", {}).get("initialization") == "random":
        return (f"{start}Next: the weights are random; pass those of a trained model with --weights.",)
    if not result.statistics:
        return (f"{start}Next: pass data ({'--data' if typed else 'data='}) for bounds around your own inputs.",)
    if result.findings is None:
        command = f"normscope check {name}" if typed else "normscope.check(model, data)"
        return (f"Next: check what to fix: `{command}`.",)
    command = "normscope compare" if typed else "normscope.compare"
    return (f"{start}Next: compare it with another model or checkpoint: `{command}`.",)


def _urgent(result: Result) -> list[Finding]:
    return [f for f in result.findings or () if f.severity is not Severity.INFO]


def _findings(findings: Iterable[Finding], name: str | None) -> str:
    """Return the most severe findings and a command to act on them, in Python if the model has no name to type."""
    found = order(findings)
    mended = _MENDS.search(found[0].fix)
    named = [f for f in found if mended is None or _MENDS.search(f.fix)][:NAMED]
    said = "; ".join(map(_named, named))
    more = len(found) - len(named)
    rest = f"; {more} more below" if more > 0 else ""
    if mended is None:
        code = found[0].code
        command = f'normscope.explain("{code}")' if name is None else f"normscope explain {code}"
    else:
        only = mended[1]
        command = f"normscope fix {name} --only {only}" if name else f'normscope.fix(model, data, only="{only}")'
    return f"{said}{rest}. Run: `{command}`"


def _named(finding: Finding) -> str:
    """Return a finding in a clause."""
    others = len(finding.everywhere) - 1
    message = finding.message.partition(" (also ")[0].rstrip(".")
    where = "" if not finding.place or finding.place in message else f" at {finding.place}"
    return f"{finding.code}{where}, {message}" + (f" (and at {plural(others, 'more place')})" if others else "")


def _coverage(coverage: Coverage) -> str:
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
