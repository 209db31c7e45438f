"""NS002: weights, or values on the data, that are not finite numbers."""

from __future__ import annotations

from collections.abc import Iterator

from normscope.core.finding import Certainty, Finding, Severity
from normscope.doctor.rule import Rule
from normscope.doctor.subject import Subject


def _look(rule: Rule, subject: Subject) -> Iterator[Finding]:
    """Yield what is not a number."""
    if subject.broken:
        yield rule.finding(subject.broken_at, " ".join(subject.broken.split()))


RULE = Rule(
    code="NS002",
    name="not-finite",
    title="weights or activations are not finite",
    severity=Severity.ERROR,
    certainty=Certainty.PROVED,
    statement="",
    why="A NaN or an infinity in one weight makes every output that depends on it one as well; nothing can be said of "
    "such a network.",
    effect="every output that depends on it is NaN",
    fix="load an earlier checkpoint; look for what divides by zero or overflows",
    example="model = nn.Linear(4, 2)\nmodel.weight.data[0] = float('nan')",
    good="model = nn.Linear(4, 2)",
    needs=(),
    look=_look,
    explains=("NS001", "NS203", "NS301", "NS303", "NS501", "NS601"),
    threads=("pytorch/pytorch/issues/1206",),
)
