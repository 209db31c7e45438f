"""NS107: a softmax along an axis of length one."""

from normscope.doctor.rule import Certainty, Findings, Rule, Severity, Subject
from normscope.graph.ir import Graph, Node, Ref
from normscope.graph.recognise import name_of

_SOFTMAX = ("softmax", "_softmax", "log_softmax", "_log_softmax")


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield every softmax whose result is one, or zero for its logarithm, for every input."""
    graph = subject.graph
    # If an input is a sequence of length one, attention over it has one entry for this input only.
    shapes = [n.shape for n in graph if n.op == "input" and n.shape is not None]
    short = any(len(s) in (2, 3) and s[1] == 1 for s in shapes)
    for node in graph:
        if name_of(node) in _SOFTMAX and node.name in graph.moving and _length(graph, node) == 1:
            result = "0" if "log" in name_of(node) else "1"
            rest = "; the given inputs have one token" if short else ""
            yield rule.finding(
                node.owner or node.name,
                f"{name_of(node)} runs along axis {node.args[1]}, which has one entry: every result is {result}, so "
                f"whatever computes its input has no effect and no gradient{rest}",
                {"axis": int(node.args[1]), "operation": name_of(node)},
                severity=Severity.INFO if short else None,
            )


def _length(graph: Graph, node: Node) -> int | None:
    """Return the length of the axis a softmax runs along, if it is known and not the number of samples."""
    axis = node.args[1] if len(node.args) > 1 else None
    source = node.args[0] if node.args else None
    shape = graph[source.name].shape if isinstance(source, Ref) else None
    if shape is None or not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
        return None
    return shape[axis]


_HEAD = "model = nn.Sequential(nn.Linear(8, {0}), nn.Softmax(-1))"

RULE = Rule(
    code="NS107",
    title="softmax over one entry",
    certainty=Certainty.PROVED,
    statement="e^x / e^x = 1",
    why="A softmax divides by the sum along an axis. If that axis has one entry, the result is always one: the "
    "intended axis was another (the tokens), or a sigmoid was intended for a single output.",
    effect="whatever computes its input never learns, and attention or probability is constant",
    fix="use the axis of the competing entries (the tokens, the classes), or a sigmoid for one output",
    example=_HEAD.format(1),
    good=_HEAD.format(2),
    threads=("Amshaker/SwiftFormer/issues/2",),
)
