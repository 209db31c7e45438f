"""The audit: every claim of every paper, checked now."""

import difflib
import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from normscope.core.display import Shown
from normscope.core.errors import InputError, listed
from normscope.core.files import Saved
from normscope.core.statement import PAPERS
from normscope.papers.claim import Claim, Claims, Outcome, Verdict

#: The papers in the order of their numbers: number, key, and the module (or folder of modules) with their claims.
SOURCES = (
    ("000", "than2025summary", "normscope.papers.than2025.summary"),
    ("001", "than2025", "normscope.papers.than2025.claims"),
    ("002", "than2025slides", "normscope.papers.than2025.slides"),
    ("003", "akbar2025", "normscope.papers.akbar2025.claims"),
    ("004", "cisneros2025", "normscope.papers.cisneros2025.claims"),
    ("extensions", "normscope", "normscope.papers.extensions"),
)
SCHEMA_VERSION = 1
_CLOSE_NAMES = 4


@dataclass(frozen=True)
class CheckedClaim:
    """A claim with the outcome of its check, or the error that the check raised."""

    claim: Claim  #: what was checked
    outcome: Outcome | None  #: the outcome; ``None`` if the check raised an exception
    error: str = ""  #: the exception, as one line

    @property
    def verdict(self) -> str:
        """Return the verdict in words, ``error`` where the check raised."""
        return "error" if self.outcome is None else self.outcome.verdict.value

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        nothing: dict[str, Any] = {"verdict": "error", "measured": {}, "because": "", "factor": None}
        return {
            **{key: getattr(self.claim, key) for key in ("id", "paper", "place", "says")},
            **(nothing if self.outcome is None else self.outcome.to_dict()),
            "corrected": self.claim.corrected,
            "code": list(self.claim.code),
            "error": self.error or None,
        }


@dataclass(frozen=True, repr=False)
class Audit(Saved, Shown):
    """The claims that were checked, in the order of the papers."""

    _layout = ("normscope.report.audit", "audit_sections")
    _rows = "verdicts"

    entries: tuple[CheckedClaim, ...]

    @property
    def verdicts(self) -> list[dict[str, str]]:
        """Return each claim with what was found, in one row."""
        return [
            {key: getattr(e.claim, key) for key in ("id", "paper", "place")}
            | {"verdict": e.verdict, "found": e.error if e.outcome is None else e.outcome.because}
            for e in self.entries
        ]

    def __getitem__(self, id: str) -> CheckedClaim:
        return {entry.claim.id: entry for entry in self.entries}[id]

    @property
    def totals(self) -> dict[str, int]:
        """Return how often each verdict was found; errors last."""
        count = Counter(entry.verdict for entry in self.entries)
        return {word: count[word] for word in (*(v.value for v in Verdict), "error")}

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        keys = dict.fromkeys(entry.claim.paper for entry in self.entries)
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "audit",
            "papers": {key: PAPERS[key] for key in keys},
            "totals": self.totals,
            "claims": [entry.to_dict() for entry in self.entries],
        }


def audit(
    paper: str | None = None,
    *,
    only: str | Sequence[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Audit:
    """Check claims of the papers now; nothing is stored, every verdict follows from numbers measured in this call.

    Args:
        paper: its number (``000`` to ``004``), its key (``than2025``), or ``extensions``; all of them if none is given.
        only: ids of claims, e.g. ``["001-L1"]``, or one id; all of the paper's if none are given.
        progress: called with a line of text before each check.

    Returns:
        One entry per claim. A check that raises is an entry with its error.

    Raises:
        InputError: if there is no such paper or claim; the message lists similar names.

    >>> found = audit(only=["001-L1"])
    >>> found["001-L1"].verdict
    'false'
    """
    chosen = chosen_claims(paper, [only] if isinstance(only, str) else only)
    entries = []
    for i, claim in enumerate(chosen, 1):
        if progress is not None:
            progress(f"checking claims: {i} of {len(chosen)}, {claim.id} ({claim.place})")
        entries.append(check_claim(claim))
    return Audit(tuple(entries))


def check_claim(claim: Claim) -> CheckedClaim:
    """Run the check of one claim: deterministic, and without changes to the caller's random state.

    >>> check_claim(Claim("001-X", "than2025", "Lemma 0", "", "", lambda: 1 / 0)).error
    'ZeroDivisionError: division by zero'
    """
    # No accelerator is touched, whatever the caller's defaults are.
    with torch.device("cpu"), torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        try:
            return CheckedClaim(claim, claim.check())
        except Exception as error:  # whatever a check raises is shown, and the others still run
            return CheckedClaim(claim, None, " ".join(f"{type(error).__name__}: {error}".split()))


def every_claim() -> dict[str, Claim]:
    """Return the claims of all papers by id, in the order of the papers.

    >>> every_claim()["001-L1"].place
    'Lemma 1'
    """
    return {claim.id: claim for source in SOURCES for claim in claims_of(source[2])}


def claims_of(module: str) -> Iterator[Claim]:
    """Yield the claims of one paper: those of every :class:`Claims` in its module, or in the modules of its folder."""
    found: dict[str, Claim] = {}
    for part in _modules(module):
        for claims in vars(part).values():
            for claim in claims.values() if isinstance(claims, Claims) else ():
                if found.setdefault(claim.id, claim) is not claim:
                    raise KeyError(f"Duplicate claim: {claim.id}.")
    yield from found.values()


def _modules(name: str) -> Iterator[ModuleType]:
    """Yield a module and, if it is a package, its modules by name, which is the order of the paper."""
    module = importlib.import_module(name)
    yield module
    for part in pkgutil.iter_modules(getattr(module, "__path__", ())):
        yield importlib.import_module(f"{name}.{part.name}")


def chosen_claims(paper: str | None, only: Sequence[str] | None) -> list[Claim]:
    """Return the claims a user asks for."""
    sources = [source for source in SOURCES if paper is None or paper in source[:2]]
    if not sources:
        known = (f"{number} ({key})" for number, key, _ in SOURCES)
        raise InputError(f"Unknown paper {paper!r}. Known papers: {', '.join(known)}.")
    claims = {claim.id: claim for source in sources for claim in claims_of(source[2])}
    if only is None:
        return list(claims.values())
    if not only:
        raise InputError("Expected at least one claim, got an empty list.")
    missing = [id for id in only if id not in claims]
    if missing:
        near = [name for id in missing for name in near_names(id, list(claims))]
        hint = f"Did you mean {listed(near)}?" if near else f"Known claims: {listed(list(claims))}."
        where = "" if paper is None else f" of the paper {paper}"
        raise InputError(f"Unknown claim{where}: {', '.join(map(repr, missing))}. {hint}")
    return [claims[id] for id in dict.fromkeys(only)]


def near_names(name: str, names: Sequence[str]) -> list[str]:
    """Return similar names, ignoring case, and names that begin with the given one.

    >>> near_names("001-l1", ["001-L1", "002-LN"])
    ['001-L1']
    """
    by_lower = {known.lower(): known for known in names}
    near = difflib.get_close_matches(name.lower(), by_lower, _CLOSE_NAMES, cutoff=0.7)
    near += [known for known in by_lower if known.startswith(name.lower())][:_CLOSE_NAMES]
    return [by_lower[known] for known in dict.fromkeys(near)]
