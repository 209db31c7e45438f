"""Findings: what the doctor reports about one place of a model, as plain data with a versioned JSON form."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from normscope.core.value import json_number

#: Version of the JSON form of findings.
FINDINGS_VERSION = 2


class Severity(Enum):
    """How much a finding matters, least first."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """Return its place in the order.

        >>> Severity.ERROR.rank > Severity.WARNING.rank > Severity.INFO.rank
        True
        """
        return list(Severity).index(self)


class Certainty(Enum):
    """How sure a finding is: it follows from graph and weights, was measured on data, or is likely by experience."""

    PROVED = "proved"
    MEASURED = "measured"
    LIKELY = "likely"


@dataclass(frozen=True)
class Finding:
    """One finding at one place.

    Attributes:
        code: the rule, e.g. ``NS101``.
        severity: how much it matters.
        place: module path; empty for the model itself.
        message: one line.
        evidence: the numbers behind it (and short words), by name.
        certainty: proved, measured or likely.
        statement: the statement behind it, in words or as ``paper number``.
        fix: what to do.
        cause: the cause in a few words; findings of one cause are grouped into one.
        effect: its effect on training or accuracy.
        places: every place of a group of findings; ``place`` is the first.
        explains: codes of findings that follow from it and are not listed separately.

    >>> Finding("NS101", Severity.WARNING, "conv", "a bias has no effect").key
    ('NS101', 'conv')
    """

    code: str
    severity: Severity
    place: str
    message: str
    evidence: Mapping[str, float | int | str] = field(default_factory=dict)
    certainty: Certainty = Certainty.LIKELY
    statement: str = ""
    fix: str = ""
    cause: str = ""
    effect: str = ""
    places: tuple[str, ...] = ()
    explains: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if "\n" in self.message:
            raise ValueError("Expected a finding's message to be one line.")

    @property
    def key(self) -> tuple[str, str]:
        """Return the key by which a baseline remembers it: code and place."""
        return self.code, self.place

    @property
    def everywhere(self) -> tuple[str, ...]:
        """Return every place of it.

        >>> Finding("NS101", Severity.WARNING, "conv", "a bias has no effect").everywhere
        ('conv',)
        """
        return self.places or (self.place,)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; infinities become strings."""
        return vars(self) | {
            "severity": self.severity.value,
            "evidence": {k: v if isinstance(v, str | int) else json_number(float(v)) for k, v in self.evidence.items()},
            "certainty": self.certainty.value,
            "places": list(self.everywhere),
            "explains": list(self.explains),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Finding:
        """Read the JSON form back.

        >>> one = Finding("NS1", Severity.INFO, "a", "b", {"c": 1.0}, Certainty.PROVED, "d", "e", places=("a", "f"))
        >>> Finding.from_dict(one.to_dict()) == one
        True
        """
        rest = {**data, "explains": tuple(data.get("explains", ()))}
        places = tuple(data.get("places", ()))
        rest["places"] = () if places == (data["place"],) else places
        severity, certainty = Severity(rest.pop("severity")), Certainty(rest.pop("certainty"))
        return cls(severity=severity, certainty=certainty, **rest)


def grouped(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings, those of one rule, severity and fix merged into one at the first of their places.

    >>> many = [Finding("NS1", Severity.INFO, place, f"{place} is odd") for place in "abc"]
    >>> (one,) = grouped(many)
    >>> one.message, one.places
    ('a is odd (also b, c)', ('a', 'b', 'c'))
    """
    groups: dict[tuple[str, Severity, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.code, finding.severity, finding.fix), []).append(finding)
    return [_as_one(group) for group in groups.values()]


#: How many further places a message lists.
LISTED = 6


def _as_one(group: list[Finding]) -> Finding:
    first = group[0]
    places = tuple(dict.fromkeys(place for f in group for place in f.everywhere))
    others = [place or "the model" for place in places if place != first.place]
    if not others:
        return first
    more = f" and {len(others) - LISTED} more" if len(others) > LISTED else ""
    return replace(first, message=f"{first.message} (also {', '.join(others[:LISTED])}{more})", places=places)


def order(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings, the most severe first, then by code and place.

    >>> low, high = Finding("NS2", Severity.INFO, "", "x"), Finding("NS3", Severity.ERROR, "", "y")
    >>> [f.code for f in order([low, high])]
    ['NS3', 'NS2']
    """
    return sorted(findings, key=lambda f: (-f.severity.rank, f.code, _natural(f.place)))


def _natural(place: str) -> tuple[tuple[bool, float, str], ...]:
    """Return a key by which ``layers.2`` comes before ``layers.10``.

    >>> _natural("layers.2") < _natural("layers.10")
    True
    """
    parts = place.replace("#", ".").split(".")
    return tuple((not p.isdigit(), float(p) if p.isdigit() else math.inf, p) for p in parts)
