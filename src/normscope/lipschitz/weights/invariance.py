"""Weights whose scale does not affect the network: no bound in them can be uniform over their size."""

from normscope.core.statement import statement
from normscope.graph.ir import Graph, Node, Ref
from normscope.graph.recognise import name_of
from normscope.lipschitz.weights.uses import Use
from normscope.operators.normalizer import couples_samples, normalizers
from normscope.operators.program import Program
from normscope.operators.registry import bind
from normscope.operators.site import Site

#: Operations with ``f(c x) = c f(x)`` for ``c > 0``, of one operand; the first ones are linear channel by channel.
LINEAR = frozenset({
    "view", "reshape", "_unsafe_view", "flatten", "unflatten", "permute", "transpose", "contiguous", "clone", "dropout",
    "to", "_to_copy", "alias", "detach", "squeeze", "unsqueeze", "avg_pool1d", "avg_pool2d", "adaptive_avg_pool2d",
})  # fmt: skip
HOMOGENEOUS = LINEAR | {"relu", "leaky_relu", "abs", "max_pool1d", "max_pool2d", "relu_", "leaky_relu_"}


@statement("normscope", "Proposition W-5", holds="eps = 0; with eps > 0 as long as the spread is large against it")
def scale_free(graph: Graph, program: Program, use: Use, *, training: bool = False) -> Site | None:
    """Return the normalizer that undoes the scale of a weight, or ``None``.

    If ``h(c W) = h(W)`` for all ``c > 0`` then ``dh/dW`` at ``cW`` is ``1/c`` times that at W: it has no bound that
    holds for all W, except through eps.

    Args:
        graph: the model.
        program: its program, which knows the normalizers.
        use: the one use of the weight.
        training: count BatchNorm with running statistics too, which uses those of the batch in training.
    """
    if use.kind not in ("matrix", "convolution"):
        return None
    sites = {s.source: s for s in program.sites if s.spread is not None or (couples_samples(s.kind) and training)}
    users = graph.users()
    node, bent = graph[use.node], False
    while True:
        site = sites.get(node.name)
        if site is not None and _all_inside(graph, users[node.name], site):
            symmetry = normalizers()[site.kind].symmetry
            # The mean of each channel is removed separately, so that a bias before it has no effect.
            centred = symmetry is not None and symmetry.per == "neuron" and symmetry.shift and not bent
            return site if centred or not _has_bias(graph[use.node]) else None
        if len(users[node.name]) != 1:
            return None
        node = graph[users[node.name][0]]
        if name_of(node) not in HOMOGENEOUS:
            return None
        bent = bent or name_of(node) not in LINEAR


def _all_inside(graph: Graph, users: list[str], site: Site) -> bool:
    """Return whether only the normalizer reads its input."""
    if not site.written_out:
        return users == [site.node]
    return all(graph.position(name) <= graph.position(site.node) for name in users)


def _has_bias(node: Node) -> bool:
    arguments = bind(node.op, list(node.args), dict(node.kwargs))
    return isinstance(arguments.get("bias"), Ref) or name_of(node) in ("addmm", "baddbmm")
