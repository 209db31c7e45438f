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
        raised = bool(subject.failed_at)
        yield rule.finding(
            subject.failed_at,
            f"the model does not run on the data: {reason}"
            if raised
            else f"only the modules were checked; there is no graph: {reason}",
            severity=Severity.ERROR if raised else None,
            fix="mend what raises, or give other data" if raised else "",
        )


RULE = Rule(
    code="NS001",
    name="not-captured",
    title="the model cannot be captured",
    severity=Severity.WARNING,
    certainty=Certainty.PROVED,
    statement="",
    why="Most rules read the graph of what the model computes. Without it only what modules and the optimizer tell is "
    "checked.",
    effect="most rules did not run",
    fix="give an input shape (--input) or data, or make forward() run on them without errors",
    example="class Net(nn.Module):\n"
    "    def forward(self, x):\n"
    "        return x.argmax()\n"
    "\n"
    "\n"
    "model = Net()\n"
    "options = {'input_shape': (4,)}",
    good="class Net(nn.Module):\n"
    "    def forward(self, x):\n"
    "        return x.relu()\n"
    "\n"
    "\n"
    "model = Net()\n"
    "options = {'input_shape': (4,)}",
    needs=(),
    look=_look,
    threads=("liufeng2915/CFSM/issues/4",),
)
