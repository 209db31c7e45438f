"""Operations with finite values whose derivative is not finite: a root at zero, an arc cosine at one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from normscope.doctor.neighbours import CONVOLUTIONS, LINEAR, PRODUCTS, RECURRENT, outputs_of, reach, reads
from normscope.graph.interpreter import call
from normscope.graph.ir import SOURCES, Graph, Node
from normscope.graph.recognise import name_of

#: Operations whose derivative is finite wherever their value is, except for overflow.
_SMOOTH = frozenset((
    *LINEAR, *CONVOLUTIONS, *RECURRENT, *PRODUCTS, "dot", "mv", "layer_norm", "rms_norm", "group_norm", "batch_norm",
    "instance_norm", "native_layer_norm", "native_group_norm", "native_batch_norm",
    "_native_batch_norm_legit_no_training", "relu", "relu6", "gelu", "silu", "mish", "elu", "selu", "celu",
    "leaky_relu", "prelu", "rrelu", "tanh", "sigmoid", "hardtanh", "hardswish", "hardsigmoid", "softplus", "softsign",
    "softmax", "_softmax", "log_softmax", "_log_softmax", "logsumexp", "exp", "expm1", "erf", "sin", "cos", "abs",
    "square", "neg", "add", "sub", "rsub", "mul", "addcmul", "mean", "sum", "cumsum", "amax", "amin", "max", "min",
    "maximum", "minimum", "clamp", "clamp_min", "clamp_max", "where", "masked_fill", "dropout", "native_dropout",
    "alpha_dropout", "feature_dropout", "view", "_unsafe_view", "reshape", "permute", "transpose", "t", "flatten",
    "unflatten", "unsqueeze", "squeeze", "expand", "expand_as", "repeat", "repeat_interleave", "movedim",
    "contiguous", "clone", "detach", "alias", "slice", "select", "narrow", "index", "index_select", "gather",
    "scatter", "scatter_add", "index_add", "cat", "stack", "unbind", "split", "split_with_sizes", "chunk", "roll",
    "flip", "pad", "constant_pad_nd", "triu", "tril", "to", "_to_copy", "type_as", "copy", "avg_pool1d", "avg_pool2d",
    "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "max_pool1d", "max_pool2d",
    "max_pool3d", "adaptive_max_pool2d", "max_pool2d_with_indices", "upsample_nearest1d", "upsample_nearest2d",
    "upsample_bilinear2d", "pixel_shuffle", "pixel_unshuffle", "unfold", "fold", "zeros_like", "ones_like",
    "full_like", "getitem", "var", "var_mean", "lift_fresh_copy", "expand_copy", "glu", "sym_size", "topk", "sort",
    "diff",
))  # fmt: skip
#: Operations that pass no gradient.
_CUTS = ("detach", "detach_copy", "argmax", "argmin", "sym_size")
#: Larger values are not examined.
LARGEST = 1 << 23


@dataclass(frozen=True)
class Singularity:
    """One operation with a derivative that is not finite."""

    node: Node  #: the operation
    entries: int  #: entries of its input with such a derivative, in the batch with the most
    total: int  #: how many entries there are
    at: float  #: the value of the first of them
    #: names of the parameters whose gradient passes through it; empty if only that of the input does
    parameters: tuple[str, ...] = ()


@dataclass(eq=False)
class Singularities:
    """Finds operations whose derivative is not finite at their input; :meth:`visit` is called at each node.

    The gradient of a loss passes through every operation between a parameter and an output. If the derivative of one
    of them is infinite or NaN at some entry, so is the gradient, whatever comes after: zero times infinity is NaN.

    Args:
        graph: what is run.

    >>> from normscope.graph.ir import Ref
    >>> nodes = (Node("w", "parameter", target="w"), Node("y", "aten.sqrt.default", (Ref("w"),), dtype="float32"),
    ...          Node("out", "output", (Ref("y"),)))
    >>> found = Singularities(Graph(nodes))
    >>> found.visit(nodes[1], torch.zeros(2), {"w": torch.zeros(2)})
    >>> [(s.entries, s.parameters) for s in found.found.values()]
    [(2, ('w',))]
    """

    graph: Graph
    found: dict[str, Singularity] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.graph
        users, read = graph.users(), reads(graph)
        cuts = [n.name for n in graph if name_of(n) in _CUTS or (n.dtype and "float" not in n.dtype)]
        kept = [n.name for n in graph if n.op in ("parameter", "input")]
        learned = reach(kept, users, cuts) & reach(outputs_of(graph), read, cuts)
        self._read = {k: tuple(v for v in names if v in learned) for k, names in read.items()}
        self._used: dict[str, list[int]] = {}  # which of the several values of an operation are read
        for n in graph:
            if n.op == "getitem" and n.name in learned:
                self._used.setdefault(n.inputs()[0], []).append(int(n.args[1]))
        self._watched = {n.name for n in graph if n.name in learned and may_be_singular(n)}

    def visit(self, node: Node, value: Any, values: Mapping[str, Any]) -> None:
        """Check the derivative of a node, given the values it reads."""
        if node.name not in self._watched:
            return
        read = [values.get(name) for name in node.inputs()]
        if any(isinstance(v, Tensor) and (v.numel() > LARGEST or not bool(v.isfinite().all())) for v in read):
            return  # too large, or not finite itself, which NS002 reports
        bad, total, at = _broken_derivative(node, values, self._read[node.name], self._used.get(node.name))
        before = self.found.get(node.name)
        if bad and (before is None or bad > before.entries):
            above = reach([node.name], self._read)
            names = tuple(n.target for n in self.graph if n.op == "parameter" and n.name in above)
            self.found[node.name] = Singularity(node, bad, total, at, names)

    def visit_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Check what is computed from parameters only, without an input."""
        wanted = reach(self._watched - self.graph.moving, reads(self.graph))
        values: dict[str, Any] = {}
        with torch.no_grad():
            for node in self.graph:
                if node.name not in wanted:
                    continue
                values[node.name] = tensors[node.target] if node.op in SOURCES else call(node, values)
                self.visit(node, values[node.name], values)


def may_be_singular(node: Node) -> bool:
    """Return whether an operation may have a derivative that is not finite where its value is.

    >>> from normscope.graph.ir import Ref
    >>> [may_be_singular(Node("y", f"aten.{name}.default", (Ref("x"),))) for name in ("sqrt", "relu")]
    [True, False]
    """
    if node.op in (*SOURCES, "output") or not node.inputs() or (node.dtype and "float" not in node.dtype):
        return False
    name = name_of(node)
    exponent = node.args[1] if name == "pow" and len(node.args) > 1 else None
    if isinstance(exponent, int | float):
        return exponent < 1
    if name == "div":
        return not isinstance(node.args[1], int | float)
    return node.op.startswith("aten.") and name not in _SMOOTH and not name.startswith(("sym_", "new_"))


def _broken_derivative(
    node: Node, values: Mapping[str, Any], wanted: Iterable[str], used: list[int] | None
) -> tuple[int, int, float]:
    """Return how many entries of an operand have a non-finite derivative, of how many, and the first such entry."""
    leaves = {
        name: values[name].detach().requires_grad_()
        for name in wanted
        if isinstance(values.get(name), Tensor) and values[name].is_floating_point()
    }
    slopes: tuple[Tensor | None, ...] = ()
    try:
        with torch.enable_grad():
            out = call(node, {**{n: values.get(n) for n in node.inputs()}, **leaves})
            parts = [out] if isinstance(out, Tensor) else [out[i] for i in used or ()]
            sums = [part.sum() for part in parts if isinstance(part, Tensor) and part.requires_grad]
            if sums:
                slopes = torch.autograd.grad(sums, list(leaves.values()), allow_unused=True)
    except (RuntimeError, NotImplementedError, TypeError):  # an operation torch does not differentiate
        pass
    for leaf, slope in zip(leaves.values(), slopes, strict=False):
        if slope is not None and not bool(torch.isfinite(slope).all()):
            bad = ~torch.isfinite(slope)
            return int(bad.sum()), bad.numel(), float(leaf.detach()[bad].flatten()[0])
    return 0, 0, 0.0
