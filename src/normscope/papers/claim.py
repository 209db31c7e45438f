"""Claims of the papers, the checks that decide them, and helpers to turn numbers into verdicts."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from normscope.core.statement import PAPERS
from normscope.core.value import json_number

Number = float | int | bool | str
Measured = dict[str, Number]


class Verdict(Enum):
    """The verdict on a claim."""

    HOLDS = "holds"
    LOOSE = "loose"
    FALSE = "false"
    ASSUMPTION = "needs an assumption"
    UNSUPPORTED = "unsupported"
    NOT_CHECKABLE = "not checkable"


@dataclass(frozen=True)
class Outcome:
    """What a check found, with the numbers it measured.

    >>> Outcome(Verdict.LOOSE, {"printed": 0.4167, "true": 0.3333}, "a diagonal has its maximum as norm", 1.25).factor
    1.25
    """

    verdict: Verdict  #: what follows from the numbers; a check computes it, it is never written down beforehand
    #: the numbers, by a short name each, in the order in which they are read
    measured: Mapping[str, Number] = field(default_factory=dict)
    because: str = ""  #: one sentence that ties the numbers to the verdict
    factor: float | None = None  #: for a loose claim, by how much it is loose

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        plain = {key: json_number(x) if isinstance(x, float) else x for key, x in self.measured.items()}
        factor = None if self.factor is None else json_number(self.factor)
        return {"verdict": self.verdict.value, "measured": plain, "because": self.because, "factor": factor}


@dataclass(frozen=True)
class Claim:
    """One claim of one paper."""

    id: str  #: its name here, e.g. ``001-L1``: the paper's number, then a short name.
    paper: str  #: a key of :data:`normscope.core.statement.PAPERS`
    place: str  #: where it stands in the paper, e.g. ``Lemma 1``.
    says: str  #: what it claims, in our words
    corrected: str  #: the statement that is true, or the tight one; empty where the claim stands as it is
    check: Callable[[], Outcome]  #: decides it now; deterministic, a few seconds at most
    code: tuple[str, ...] = ()  #: the functions that compute what the claim is about, by their dotted names

    def __post_init__(self) -> None:
        if self.paper not in PAPERS:
            raise KeyError(f"Unknown paper {self.paper!r}. Known papers: {', '.join(sorted(PAPERS))}.")


Check = Callable[[], Outcome]


class Claims(dict[str, Claim]):
    """The claims of one paper, filled by decorating their checks.

    The docstring of a check is what the paper says; what is true instead follows after ``Corrected:``.

    >>> claims = Claims("than2025")
    >>> @claims.add("001-X", "Lemma 0")
    ... def _one() -> Outcome:
    ...     '''One is two.
    ...
    ...     Corrected: One is one.
    ...     '''
    ...     return Outcome(Verdict.FALSE, {"one": 1.0, "two": 2.0}, "they differ")
    >>> claims["001-X"].check().verdict.value, claims["001-X"].says, claims["001-X"].corrected
    ('false', 'One is two.', 'One is one.')
    """

    def __init__(self, paper: str) -> None:
        super().__init__()
        self.paper = paper

    def add(self, id: str, place: str, *code: Callable[..., object]) -> Callable[[Check], Check]:
        """Register a check under an id, with the functions that compute what the claim is about.

        Raises:
            KeyError: if the id is taken.
        """
        if id in self:
            raise KeyError(f"Duplicate claim: {id}.")
        names = tuple(f"{function.__module__}.{function.__qualname__}" for function in code)

        def register(check: Check) -> Check:
            says, _, corrected = (inspect.getdoc(check) or "").partition("\n\nCorrected: ")
            said, true = (" ".join(text.split()) for text in (says, corrected))
            self[id] = Claim(id, self.paper, place, said, true, check, names)
            return check

        return register


def close(a: float, b: float, relative: float = 1e-9) -> bool:
    """Return whether two numbers agree up to a tolerance, relative or absolute.

    >>> close(1e-12, 0.0), close(1e9, 1e9 + 1), close(1.0, 1.1)
    (True, True, False)
    """
    return math.isclose(a, b, rel_tol=relative, abs_tol=relative)


def bound(printed: float, true: float) -> Verdict:
    """Return the verdict on ``constant <= printed``: false if below, loose if above, and holds if attained.

    >>> bound(1.0, 1.0).name, bound(2.0, 1.0).name, bound(0.5, 1.0).name
    ('HOLDS', 'LOOSE', 'FALSE')
    """
    if close(printed, true):
        return Verdict.HOLDS
    return Verdict.LOOSE if printed > true else Verdict.FALSE


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of several verdicts: false, then loose, then holds.

    >>> worst([Verdict.HOLDS, Verdict.LOOSE]).name
    'LOOSE'
    """
    found = set(verdicts)
    return next((v for v in (Verdict.FALSE, Verdict.LOOSE) if v in found), Verdict.HOLDS)


def outcome_if(
    verdict: Verdict, condition: bool, measured: Mapping[str, Number], because: str, otherwise: Verdict = Verdict.HOLDS
) -> Outcome:
    """Return a verdict if the condition on the numbers is true, and another one otherwise.

    >>> holds(1 < 2, {}, "one is less than two").verdict.name, refuted(1 < 2, {}, "one is not two").verdict.name
    ('HOLDS', 'FALSE')
    >>> assumes(True, {}, "it needs one").verdict.name, unsupported(False, {}, "it follows").verdict.name
    ('ASSUMPTION', 'HOLDS')
    """
    return Outcome(verdict if condition else otherwise, measured, because)


#: A claim holds if the numbers show it, and is false otherwise.
holds = partial(outcome_if, Verdict.HOLDS, otherwise=Verdict.FALSE)
#: A claim is false, unsupported or in need of an assumption if the numbers show it, and holds otherwise.
refuted = partial(outcome_if, Verdict.FALSE)
unsupported = partial(outcome_if, Verdict.UNSUPPORTED)
assumes = partial(outcome_if, Verdict.ASSUMPTION)
