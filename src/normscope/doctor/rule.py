"""A rule of the doctor: what it finds, why it matters, how to fix it, and the function that checks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from normscope.core.finding import Certainty, Finding, Severity
from normscope.doctor.run_history import RunHistory
from normscope.doctor.subject import ENOUGH, Subject, drop_rate, layer_of, place_of

#: What the files of rules import from here.
__all__ = [
    "NEEDS", "NET", "Certainty", "Finding", "Findings", "Rule", "RunHistory", "Severity", "Subject", "drop_rate",
    "layer_of", "place_of",
]  # fmt: skip
#: What the function of a rule returns.
Findings = Iterator[Finding]
#: A network with one operation, for examples.
NET = (
    "class Net(nn.Module):\n"
    "    def forward(self, x):\n"
    "        return {}\n\n\n"
    "model = Net()\n"
    "options = {{'input_shape': (4,)}}"
)
#: What a rule may need, and its description in messages.
NEEDS = {
    "program": "the model's graph",
    "data": "data (--data)",
    "samples": f"at least {ENOUGH} samples of a network this large (--limit {ENOUGH})",
    "optimizer": "the optimizer (--optimizer)",
    "batch size": "the training batch size (--batch-size)",
    "purpose": "--purpose private, contrastive or gan",
    "before": "earlier weights (--before)",
    "earlier graph": "earlier weights (--before)",
}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule: ``RULE`` in its file; its name and functions come from the file, too."""

    code: str  #: stable, e.g. ``NS101``
    name: str = ""  #: the name of its file, with hyphens
    title: str  #: what is wrong, in a few words
    severity: Severity = Severity.WARNING  #: of most of its findings; a single finding may be less or more severe
    certainty: Certainty  #: of most of its findings
    statement: str = ""  #: the mathematics behind it, if any
    why: str  #: how it happens, and why it is a problem
    effect: str  #: what it does to training or accuracy, in a few words
    fix: str  #: what to do
    example: str  #: code with the problem: it assigns ``model`` and may assign ``data``, ``optimizer`` and ``options``
    good: str  #: code without the problem
    needs: tuple[str, ...] = ("program",)  #: what must be known, keys of :data:`NEEDS`
    threads: tuple[str, ...] = ()  #: where users reported it, below ``https://github.com/``
    explains: tuple[str, ...] = ()  #: codes of rules whose findings are consequences of this one
    not_for: tuple[str, ...] = ()  #: purposes for which it does not run
    check: Callable[[Rule, Subject], Findings] = lambda rule, subject: iter(())  #: yields the findings of a model
    #: yields the findings of a training run, if the rule applies to runs
    check_history: Callable[[Rule, RunHistory], Findings] | None = None
    metrics: tuple[str, ...] = ()  #: groups of metrics that ``check_history`` reads, such as ``drift``
    slow: bool = False  #: whether it reads all weights or bounds the whole network; a quick check leaves it out

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
        """Return a finding of this rule; severity, certainty and fix are those of the rule by default."""
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
        """Return descriptions of what the rule needs and the subject does not have."""
        if "earlier graph" in self.needs and subject.before is not None and subject.earlier.problem:
            return [f"an earlier checkpoint that fits: {subject.earlier.problem}"]
        return [NEEDS[n] for n in self.needs if not subject.has(n) and not (n == "samples" and not subject.has("data"))]

    def run(self, subject: Subject) -> list[Finding]:
        """Return the findings of the rule."""
        return list(self.check(self, subject))
