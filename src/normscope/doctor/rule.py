"""A rule of the doctor: its name, why it matters, how to fix it, and the function that checks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from normscope.core.finding import Certainty, Finding, Severity
from normscope.doctor.history import History
from normscope.doctor.subject import ENOUGH, Subject, drop_rate, layer_of, place_of

#: What rules import: what every file of a rule needs is here.
__all__ = [
    "NEEDS", "NET", "Certainty", "Finding", "Findings", "History", "Rule", "Severity", "Subject", "drop_rate",
    "layer_of", "place_of",
]  # fmt: skip
#: What a rule yields.
Findings = Iterator[Finding]
#: A network of one operation, for examples.
NET = (
    "class Net(nn.Module):\n"
    "    def forward(self, x):\n"
    "        return {}\n\n\n"
    "model = Net()\n"
    "options = {{'input_shape': (4,)}}"
)
#: What a rule may need, and what to say where it is missing.
NEEDS = {
    "program": "the model's graph",
    "data": "data (--data)",
    "samples": f"at least {ENOUGH} samples of a network this large (--limit {ENOUGH})",
    "optimizer": "the optimizer (optimizer=..., --optimizer)",
    "batch size": "the training batch size (--batch-size, or a DataLoader)",
    "purpose": "the purpose (--purpose private, contrastive or gan)",
    "before": "an earlier checkpoint (before=..., --before)",
    "earlier graph": "an earlier checkpoint (before=..., --before)",
}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule: ``RULE`` of its file, which also gives it its name and its functions."""

    code: str  #: stable, e.g. ``NS101``
    name: str = ""  #: that of its file, with hyphens
    title: str  #: what is wrong, in a few words
    severity: Severity = Severity.WARNING  #: of most of its findings; one finding may be milder or graver
    certainty: Certainty  #: of most of its findings
    statement: str = ""  #: the mathematics behind it, if there is any
    why: str  #: where it comes from, and what it costs
    effect: str  #: what it does to training or accuracy, in a few words
    fix: str  #: what to do
    example: str  #: code that triggers it: it binds ``model`` and may bind ``data``, ``optimizer`` and ``options``
    good: str  #: code that does not
    needs: tuple[str, ...] = ("program",)  #: what must be there, keys of :data:`NEEDS`
    threads: tuple[str, ...] = ()  #: where people met it, below ``https://github.com/``
    explains: tuple[str, ...] = ()  #: codes of rules that speak as well because of what this one found
    not_for: tuple[str, ...] = ()  #: purposes it has nothing to say about
    look: Callable[[Rule, Subject], Findings] = lambda rule, subject: iter(())  #: from a subject to findings
    #: from a run to findings, if the rule looks at runs too
    over_time: Callable[[Rule, History], Findings] | None = None
    slow: bool = False  #: whether it reads all weights, or bounds the whole network: left out of a quick check

    def finding(
        self,
        place: str,
        message: str,
        evidence: Mapping[str, float | int | str] | None = None,
        *,
        severity: Severity | None = None,
        certainty: Certainty | None = None,
        fix: str = "",
    ) -> Finding:
        """Return a finding of this rule, with its own severity, certainty, statement and fix unless told otherwise."""
        return Finding(
            self.code,
            severity or self.severity,
            place,
            message,
            dict(evidence or {}),
            certainty or self.certainty,
            self.statement,
            fix or self.fix,
            cause=self.title,
            effect=self.effect,
        )

    def missing(self, subject: Subject) -> list[str]:
        """Return what the rule needs and the subject does not have, in words."""
        if "earlier graph" in self.needs and subject.before is not None and subject.earlier.problem:
            return [f"an earlier checkpoint that fits: {subject.earlier.problem}"]
        return [NEEDS[n] for n in self.needs if not subject.has(n) and not (n == "samples" and not subject.has("data"))]

    def run(self, subject: Subject) -> list[Finding]:
        """Return what the rule finds."""
        return list(self.look(self, subject))
