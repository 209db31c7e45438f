"""A rule of the doctor: its name, why it matters, how to fix it, and the function that checks it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from normscope.core.finding import Certainty, Finding, Severity
from normscope.doctor.history import History
from normscope.doctor.subject import ENOUGH, Subject

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
    """One rule.

    Attributes:
        code: stable, e.g. ``NS101``.
        title: what is wrong, in a few words.
        severity: of most of its findings; one finding may be milder or graver.
        certainty: of most of its findings.
        statement: the mathematics behind it, if there is any.
        why: where it comes from, and what it costs.
        effect: what it does to training or accuracy, in a few words.
        fix: what to do.
        example: code that triggers it: it binds ``model`` and may bind ``data``, ``optimizer`` and ``options``.
        good: code that does not.
        look: the function from a subject to findings.
        needs: what must be there, keys of :data:`NEEDS`.
        name: a short name without spaces.
        threads: where people met it, below ``https://github.com/``.
        explains: codes of rules that speak as well because of what this one found.
        not_for: purposes it has nothing to say about.
        over_time: the function from a run to findings, if the rule looks at runs too.
        slow: whether it reads all weights, or bounds the whole network: left out of a quick check.
    """

    code: str
    name: str
    title: str
    severity: Severity = Severity.WARNING
    certainty: Certainty
    statement: str = ""
    why: str
    effect: str
    fix: str
    example: str
    good: str
    needs: tuple[str, ...] = ("program",)
    look: Callable[[Rule, Subject], Iterable[Finding]]
    threads: tuple[str, ...] = ()
    explains: tuple[str, ...] = ()
    not_for: tuple[str, ...] = ()
    over_time: Callable[[Rule, History], Iterable[Finding]] | None = None
    slow: bool = False

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
