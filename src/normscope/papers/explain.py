"""Explain a word, claim, numbered statement or rule by name; claims are checked now."""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from normscope.core.display import Shown
from normscope.core.errors import InputError, listed
from normscope.core.files import Saved
from normscope.core.json_form import to_plain
from normscope.core.statement import PAPERS, Statement
from normscope.core.statement import statements as registered
from normscope.core.words import WORDS
from normscope.doctor.rule import Rule
from normscope.papers.audit import SOURCES, check_claim, every_claim, near_names
from normscope.papers.claim import Claim, Number

#: What is proved below a heading of docs/theory.md that results name as it is.
SECTIONS = {
    "F1": "BatchNorm with running statistics is the diagonal map gamma_c/sqrt(v_c + eps): its constant is the largest "
    "|gamma_c|/sqrt(v_c + eps)",
    "F2": "BatchNorm with batch statistics is a map of the stacked batch: F3 on the values of each channel",
    "F3": "LayerNorm: its Jacobian at a point, and its constant on all inputs, on a variance floor and on a ball",
    "F4": "GroupNorm: the largest over groups of the constants of F3",
    "F5": "InstanceNorm: GroupNorm with one channel per group",
    "F6": "RMSNorm and l2 normalization: as F3 without centring",
    "F10": "composition: every tensor is an affine map of the network input and of outputs of nonlinear operations. A "
    "matrix multiplies the constant by its norm and a nonlinearity by its own constant, sums add, and outputs of one "
    "input that are stacked give the root of the sum of squares",
    "F11": "attention, for rows of q, k, v of bounded norm; there is no constant on all inputs",
    "F13": "Lipschitz constants in the weights: the constant of the network in the outputs of the operations that use "
    "a weight, times the norm of what the weight is applied to",
    "GRN": "global response normalization: its constant at a point, on all inputs and on a floor",
    "norm": "the norm of a matrix: from above by a Cholesky factorisation with its rounding errors, from below by "
    "||A v||/||v|| at a computed singular vector",
}
#: The number of a statement of docs/theory.md.
_NUMBER = re.compile(r"\w+ ([A-Z]+\d?-\d+)$")
_PLACE = re.compile(
    r"^(theorem|lemma|corollary|remark|definition|proposition|example|figure|table|section|appendix|experiment|equation)"
    r"\s+\(?[a-z]?[\d.]*\d(\.\d+)*\)?",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Location:
    """Where a function is defined: its dotted name, the file inside the package, and the line."""

    name: str
    file: str
    line: int


@dataclass(frozen=True)
class Explanation:
    """The explanation of one topic; fields that do not apply to its kind are empty."""

    kind: str  #: ``word``, ``claim``, ``statement`` or ``rule``
    name: str  #: the id, the label or the code
    paper: str = ""  #: key of the paper, for claims and statements
    place: str = ""  #: where it stands there
    says: str = ""  #: what it says
    verdict: str = ""  #: what the check of a claim found, ``error`` if it raised
    because: str = ""  #: one sentence on the verdict, or the error
    measured: Mapping[str, Number] = field(default_factory=dict)  #: the numbers of the check
    corrected: str = ""  #: what is true instead, or for a rule what to do
    holds: str = ""  #: the hypotheses of a statement
    code: tuple[Location, ...] = ()  #: the functions that compute it


@dataclass(frozen=True)
class Topic:
    """Something that can be explained."""

    names: tuple[str, ...]  #: its names, its own first; upper and lower case are the same
    describe: Callable[[], Explanation]  #: explains it; called only when it was asked for
    paper: str = ""  #: key of the paper it belongs to, if any


@dataclass(frozen=True, repr=False)
class Answer(Saved, Shown):
    """What was asked, and the explanations found."""

    _layout = ("normscope.report.audit", "answer_sections")
    _rows = "parts"

    asked: str
    parts: tuple[Explanation, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"kind": "explanation", "asked": self.asked, "parts": to_plain(self.parts)}


def located(name: str) -> Location:
    """Return where the function of a dotted name is defined.

    >>> located("normscope.lipschitz.theorem_9.lemma_5").file
    'normscope/lipschitz/theorem_9.py'
    """
    try:
        function = inspect.unwrap(pkgutil.resolve_name(name))
    except (ImportError, AttributeError):
        raise LookupError(f"No rule or statement named {name}.") from None
    file = Path(inspect.getsourcefile(function) or "")
    inside = file.parts[len(file.parts) - 1 - file.parts[::-1].index(name.partition(".")[0]) :]
    return Location(name, "/".join(inside), inspect.getsourcelines(function)[1])


def topics() -> Iterator[Topic]:
    """Yield what can be explained: words of reports and results, claims, statements, and rules of the doctor."""
    from normscope.doctor.catalogue import RULES

    for word, says in WORDS.items():
        yield Topic((word, word.replace(" ", "-")), partial(Explanation, "word", word, says=says))
    for name, says in SECTIONS.items():
        yield Topic((name,), partial(_explained_section, name, says), "normscope")
    for claim in every_claim().values():
        yield Topic((claim.id, *_places(claim.place)), partial(_explained_claim, claim), claim.paper)
    for item in every_statement():
        yield Topic(_places(item.number), partial(_explained_statement, item), item.paper)
    for rule in RULES.values():
        yield Topic((rule.code, rule.name), partial(_explained_rule, rule))


def _places(text: str) -> tuple[str, ...]:
    """Return a place and its shorter names: ``Theorem 13 (8)`` is found as ``Theorem 13``, ours by number alone."""
    numbered, short = _PLACE.match(text), _NUMBER.match(text)
    return tuple(dict.fromkeys([text, numbered[0] if numbered else text, short[1] if short else text]))


def explain(text: str) -> Answer:
    """Explain a word from a report, a claim, a numbered statement or a rule; checks of claims run now.

    Args:
        text: a word (``certified``), a code (``NS101``), an id (``001-T13(8)``), a place (``Theorem 13``), a place in a
            paper (``than2025 Theorem 13``, ``001 Theorem 13``).

    Returns:
        Every topic of that name, all of one paper.

    Raises:
        InputError: if nothing has the name, or topics of several papers do; the message lists similar names. Also if
            the name is not a string.

    >>> [part.name for part in explain("001-L1").parts]
    ['001-L1']
    """
    if not isinstance(text, str):
        raise InputError(f"Expected a name as a string, such as 'certified' or 'NS101', got {type(text).__name__}.")
    asked = " ".join(text.split())
    known = list(topics())
    found = _found(asked, known)
    papers = list(dict.fromkeys(topic.paper for topic in found if topic.paper))
    if not found:
        names = [name for topic in known for name in topic.names]
        near = near_names(asked.removeprefix(_paper_of(asked)[0]).strip() or asked, names)
        every = (
            "docs/words.md lists all words, docs/checks all rules, `normscope audit` all claims and "
            "`normscope statements` all statements."
        )
        hint = f"Did you mean {listed(near)}?" if near else every
        raise InputError(f"No word, claim, statement or rule is named {text!r}. {hint}")
    if len(papers) > 1:
        ways = [f"{paper} {asked}" for paper in papers]
        raise InputError(f"{text!r} is in several papers. Choose one of {listed(ways)}.")
    return Answer(asked, tuple(topic.describe() for topic in found))


def _paper_of(asked: str) -> tuple[str, str]:
    """Return the first word if it is the name of a paper, and the key of the paper."""
    first = asked.split(" ")[0]
    keys = {number: key for number, key, _ in SOURCES} | {key: key for key in PAPERS}
    return (first, keys[first.lower()]) if first.lower() in keys else ("", "")


def _found(asked: str, topics: list[Topic]) -> list[Topic]:
    """Return the topics with a name; if its first word names a paper, only those of the paper."""
    word, paper = _paper_of(asked)
    label = asked.removeprefix(word).strip()
    # The last is a formula of a statement: Corollary 10 (1).
    tried = ((asked, ""), (label, paper), (asked.removesuffix("s"), ""), (label.rpartition(" (")[0], paper))
    for name, wanted in tried:
        same = name.casefold()
        found = [t for t in topics if wanted in ("", t.paper) and same in (n.casefold() for n in t.names)]
        if found:
            return found
    return []


def _explained_claim(claim: Claim) -> Explanation:
    entry = check_claim(claim)
    outcome = entry.outcome
    because, measured = (entry.error, {}) if outcome is None else (outcome.because, outcome.measured)
    code = tuple(located(name) for name in claim.code)
    where = (claim.id, claim.paper, claim.place, claim.says)
    return Explanation("claim", *where, entry.verdict, because, measured, claim.corrected, code=code)


def _explained_section(name: str, says: str) -> Explanation:
    return Explanation("statement", f"normscope {name}", "normscope", f"docs/theory.md, {name}", says)


def _explained_statement(item: Statement) -> Explanation:
    doc = inspect.getdoc(pkgutil.resolve_name(item.function)) or ""
    says = " ".join(doc.partition("\n\n")[0].replace("``", "").split())
    code = (located(item.function),)
    return Explanation("statement", item.label, item.paper, item.number, says, holds=item.holds, code=code)


def _explained_rule(rule: Rule) -> Explanation:
    return Explanation(
        "rule",
        rule.code,
        place=rule.name,
        says=f"{rule.title} ({rule.severity.value}, {rule.certainty.value}). {rule.why}",
        corrected=rule.fix,
        holds=rule.statement,
        code=(located(f"{rule.check.__module__}.{rule.check.__qualname__}"),),
    )


_PACKAGE = "normscope"
_ROOT = Path(__file__).parents[1]
_MARK = "@statement("


def statement_modules() -> tuple[str, ...]:
    """Return the modules whose source uses the ``@statement`` decorator.

    >>> "normscope.lipschitz.theorem_9" in statement_modules()
    True
    """
    files = (file for file in sorted(_ROOT.rglob("*.py")) if _MARK in file.read_text(encoding="utf-8"))
    parts = (file.relative_to(_ROOT).with_suffix("").parts for file in files)
    return tuple(".".join((_PACKAGE, *(part for part in path if part != "__init__"))) for path in parts)


class Statements(Shown, tuple[Statement, ...]):
    """Every numbered statement that is implemented, in a tuple that can be shown."""

    _layout = ("normscope.report.audit", "statement_sections")
    _rows = "all"

    @property
    def all(self) -> tuple[Statement, ...]:
        """Return the statements as a plain tuple."""
        return tuple(self)


def every_statement() -> Statements:
    """Return every implemented statement, by paper, number and function.

    >>> any(s.label == "than2025 Lemma 1" for s in every_statement())
    True
    """
    for module in statement_modules():
        importlib.import_module(module)
    own = (s for s in registered() if s.function.startswith(f"{_PACKAGE}."))
    return Statements(sorted(set(own), key=lambda s: (s.paper, s.number, s.function)))
