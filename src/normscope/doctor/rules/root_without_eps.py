"""NS306: a division by a root without eps inside it."""

from collections.abc import Iterator

from normscope.doctor.rule import Certainty, Findings, Rule, Severity, Subject
from normscope.graph.ir import Graph, Node, Ref
from normscope.graph.recognise import name_of

_SAME = ("to", "_to_copy", "clone", "contiguous", "expand", "unsqueeze", "alias", "detach")
_STABILIZERS = ("add", "clamp", "clamp_min", "maximum")
_SQUARES = ("pow", "square", "mul")
#: Smallest divisor, relative to the median and absolute, that is far from zero.
FAR, LEAST = 1e-3, 1e-12


def _through(graph: Graph, ref: object) -> Node | None:
    """Return the node of a reference, before casts and expansions."""
    while isinstance(ref, Ref):
        node = graph[ref.name]
        if name_of(node) not in _SAME or not node.args:
            return node
        ref = node.args[0]
    return None


def bare_roots(graph: Graph) -> Iterator[tuple[Node, Node, bool]]:
    """Yield quotients by a root of a sum of squares with nothing added inside it.

    Yields:
        The quotient, the root, and whether something is added after the root. The derivative of a root at zero is
        infinite; torch defines those of a norm and a standard deviation to be zero, so there only the quotient counts.
    """
    depends = graph.moving
    for node in graph:
        if name_of(node) != "div" or len(node.args) < 2 or node.name not in depends:
            continue
        root = _through(graph, node.args[1])
        added = root is not None and name_of(root) in _STABILIZERS
        if root is not None and added:
            root = _through(graph, root.args[0])
        if root is None or root.name not in depends:
            continue
        defined = name_of(root) in ("std", "linalg_vector_norm", "norm")
        if (defined and not added) or (not defined and _is_bare(graph, root)):
            yield node, root, added


def _is_bare(graph: Graph, root: Node) -> bool:
    """Return whether a node is the root of a mean or sum of squares, or of a variance, without eps."""
    if name_of(root) != "sqrt" and not (name_of(root) == "pow" and root.args[1:2] == (0.5,)):
        return False
    inner = _through(graph, root.args[0])
    if inner is not None and name_of(inner) == "var":
        return True
    if inner is None or name_of(inner) not in ("mean", "sum"):
        return False
    squares = _through(graph, inner.args[0])
    return squares is not None and name_of(squares) in _SQUARES


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield every quotient by such a root."""
    for node, root, added in bare_roots(subject.graph):
        what = "nothing is added to the divisor, so equal entries are divided by zero"
        if added:
            what = "eps is added after the root, whose derivative is infinite where entries are equal: gradients are "
            what += "NaN there"
        evidence: dict[str, float | int | str] = {"root": root.name}
        seen = subject.observer.divisors.get(node.name)
        far = seen is not None and seen[0] >= max(FAR * seen[1], LEAST)
        if seen is not None:
            evidence["least"] = seen[0]
            what += f"; on this data it divides by {seen[0]:.3g} or more" if far else ""
        text = f"division by {name_of(root)}: {what}"
        yield rule.finding(node.owner or node.name, text, evidence, severity=Severity.INFO if far else None)


_NORM = (
    "class Norm(nn.Module):\n"
    "    def forward(self, x):\n"
    "        y = x - x.mean(-1, keepdim=True)\n"
    "        return y / (y.pow(2).mean(-1, keepdim=True){}\n\n\n"
    "model = nn.Sequential(nn.Linear(8, 8), Norm())"
)

RULE = Rule(
    code="NS306",
    title="root without eps",
    certainty=Certainty.PROVED,
    statement="d sqrt(v)/dv = 1/(2 sqrt(v)), infinite at v = 0",
    why="eps after the root keeps the value finite but not its derivative: at equal entries the chain rule multiplies "
    "infinity by zero. A single constant sample, or padding, is enough. If the data stays far from zero, the severity "
    "is only info.",
    effect="training runs for hours and then the loss is NaN",
    fix="add eps inside the root: (variance + eps).sqrt()",
    example=_NORM.format(".sqrt() + 1e-5)"),
    good=_NORM.format(" + 1e-5).sqrt()"),
    threads=("keras-team/keras/issues/2960", "richzhang/PerceptualSimilarity/issues/69", "pytorch/pytorch/issues/4320"),
)
