"""NS308: a gradient that is not finite although the outputs are."""

from normscope.core.errors import listed
from normscope.doctor.infinite_derivative import Singularities, Singularity
from normscope.doctor.rule import Certainty, Finding, Findings, Rule, Severity, Subject
from normscope.graph.recognise import name_of

_ROOTS = ("sqrt", "pow", "rsqrt")


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield the operations with a non-finite derivative; remarks if only the gradient of the input is affected."""
    if subject.non_finite:
        return
    singular = subject.singular
    if singular is None:
        singular = Singularities(subject.graph)
        singular.visit_weights(subject.captured.tensors)
    first: dict[str, Singularity] = {}
    for found in singular.found.values():
        first.setdefault(found.node.owner or found.node.name, found)
    for place, found in first.items():
        yield _finding(rule, subject, place, found)


def _finding(rule: Rule, subject: Subject, place: str, found: Singularity) -> Finding:
    name = name_of(found.node)
    share = f"{found.entries} of {found.total} entries"
    if name in _ROOTS and found.at == 0:
        why = f"the derivative of {name} is infinite at zero, and {share} of its input are zero: eps must be "
        why += "added inside the root, not after it"
        fix = "add eps inside the root: (variance + eps).sqrt(); where() or clamp() after it does not help"
    else:
        why = f"the derivative of {name} is not finite at {share} of its input (the first is {found.at:.3g})"
        fix = "keep its input away from these values: add eps, or clamp before it"
    learned = bool(found.parameters)
    whose = f"the gradient of {listed(list(found.parameters))}" if learned else "the gradient of the input"
    mild = not learned or subject.purpose == "inference"
    return rule.finding(
        place,
        f"{whose} is NaN or infinite on this data, although the output is finite: {why}",
        {"operation": name, "entries": found.entries, "of": found.total},
        severity=Severity.INFO if mild else None,
        fix=fix,
    )


_NORM = (
    "class Norm(nn.Module):\n"
    "    def forward(self, x):\n"
    "        square = x.square().sum(-1, keepdim=True)\n"
    "        return x / {}\n\n\n"
    "model = nn.Sequential(nn.Linear(8, 8, bias=False), Norm())\n"
    "data = torch.randn(64, 8)\n"
    "data[3] = 0.0"
)

RULE = Rule(
    code="NS308",
    title="gradient is not finite although the values are",
    severity=Severity.ERROR,
    certainty=Certainty.MEASURED,
    statement="d sqrt(v)/dv = 1/(2 sqrt(v)), infinite at v = 0; 0 * inf = NaN",
    why="The derivative of each operation that may have a pole is computed at the values of the data, and of the "
    "weights where they are normalized. One infinite derivative turns the gradient of everything before it into NaN, "
    "even where its result is masked out afterwards: zero times infinity is NaN.",
    effect="the first step on such a batch turns all weights before it into NaN",
    fix="add eps inside the root",
    example=_NORM.format("(square.sqrt() + 1e-8)"),
    good=_NORM.format("(square + 1e-8).sqrt()"),
    explains=("NS302", "NS306"),
    threads=("joe-siyuan-qiao/WeightStandardization/issues/16", "pytorch/pytorch/issues/2421"),
)
