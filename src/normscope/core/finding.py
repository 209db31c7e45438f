"""Findings: what the doctor has to say about one place of a model, as plain data with a versioned JSON form."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from normscope.core.value import json_number

#: Version of the JSON form of findings.
FINDINGS_VERSION = 1


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
    """What stands behind a finding: a proof from graph and weights, a measurement on data, or a rule of thumb."""

    PROVED = "proved"
    ESTIMATED = "estimated"
    HEURISTIC = "heuristic"


@dataclass(frozen=True)
class Finding:
    """One thing found at one place.

    Attributes:
        code: the rule, e.g. ``NS101``.
        severity: how much it matters.
        place: module path; empty for the model itself.
        message: one line.
        evidence: the numbers behind it (and short words), by name.
        certainty: proved, estimated or heuristic.
        statement: the statement behind it, in words or as ``paper number``.
        fix: what to do.

    >>> Finding("NS101", Severity.WARNING, "conv", "a bias has no effect").key
    ('NS101', 'conv')
    """

    code: str
    severity: Severity
    place: str
    message: str
    evidence: Mapping[str, float | int | str] = field(default_factory=dict)
    certainty: Certainty = Certainty.HEURISTIC
    statement: str = ""
    fix: str = ""

    def __post_init__(self) -> None:
        if "\n" in self.message:
            raise ValueError("the message of a finding is one line")

    @property
    def key(self) -> tuple[str, str]:
        """Return what a baseline remembers it by: code and place."""
        return self.code, self.place

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; infinities become strings."""
        return {
            "code": self.code,
            "severity": self.severity.value,
            "place": self.place,
            "message": self.message,
            "evidence": {k: _plain(v) for k, v in self.evidence.items()},
            "certainty": self.certainty.value,
            "statement": self.statement,
            "fix": self.fix,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Finding:
        """Read the JSON form back.

        >>> one = Finding("NS1", Severity.INFO, "a", "b", {"c": 1.0}, Certainty.PROVED, "d", "e")
        >>> Finding.from_dict(one.to_dict()) == one
        True
        """
        rest = dict(data)
        severity, certainty = Severity(rest.pop("severity")), Certainty(rest.pop("certainty"))
        return cls(severity=severity, certainty=certainty, **rest)


def _plain(value: float | int | str) -> float | int | str:
    """Return a number as strict JSON can carry it."""
    return value if isinstance(value, str | int) and not isinstance(value, float) else json_number(float(value))


def order(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings, the gravest first, then by code and place.

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
