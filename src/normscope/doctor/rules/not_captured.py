"""NS001: the model could not be captured as a graph."""

from __future__ import annotations

from collections.abc import Iterator

from normscope.core.finding import Certainty, Finding, Severity
from normscope.doctor.rule import Rule
from normscope.doctor.subject import Subject


def _look(rule: Rule, subject: Subject) -> Iterator[Finding]:
    """Yield why there is no graph."""
    if subject.failure:
        reason = " ".join(subject.failure.split())
        yield rule.finding("", f"only the modules were checked; there is no graph: {reason}")


RULE = Rule(
    code="NS001",
    name="not-captured",
    title="the model cannot be captured",
    severity=Severity.WARNING,
    certainty=Certainty.PROVED,
    statement="",
    why="Most rules read the graph of what the model computes. Without it only what modules and the optimizer tell is "
    "checked.",
    fix="give an input shape (--input) or data, or make forward() run on them without errors",
    example="class Net(nn.Module):\n    def forward(self, x):\n        return x.argmax()",
    good="class Net(nn.Module):\n    def forward(self, x):\n        return x.relu()",
    needs=(),
    look=_look,
)
