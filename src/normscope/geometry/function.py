"""A captured model as a function of its parameters, in float64, with or without the eps of its normalizers."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from normscope.core import memory
from normscope.core.errors import CaptureError, InputError, OutOfTimeError
from normscope.geometry.flow import Point
from normscope.graph.capture import Captured
from normscope.graph.interpreter import as_floating, run
from normscope.graph.ir import Graph, Node, Ref
from normscope.graph.modes import running_statistics, with_batch_statistics
from normscope.graph.recognise import name_of
from normscope.operators.registry import arguments_of

_NORMALIZERS = (
    *("batch_norm", "_native_batch_norm_legit", "instance_norm", "layer_norm", "native_layer_norm", "group_norm"),
    *("native_group_norm", "rms_norm", "_fused_rms_norm"),
)
#: Largest constant under a square root that counts as a stabilizer (eps).
LARGEST_EPS = 1e-2
#: Share of the free memory for cached values, so that later runs compute only what has changed.
KEPT = 0.2


def without_stabilizers(graph: Graph) -> Graph:
    """Return the graph with the eps of every normalizer zero, also of those written out as ``sqrt(x + eps)``.

    >>> graph = Graph((Node("x", "input"), Node("y", "aten.rms_norm.default", (Ref("x"), (4,), None, 1e-5))))
    >>> without_stabilizers(graph)["y"].args[3]
    0.0
    """
    added = written_out(graph)
    return replace(graph, nodes=tuple(_unstabilized(node, added) for node in graph))


def written_out(graph: Graph) -> dict[str, float]:
    """Return the nodes that add a small positive number to the argument of a root, and the number."""
    users, found = graph.users(), dict[str, float]()
    for node in graph:
        if name_of(node) != "add" or len(node.args) < 2 or not isinstance(node.args[0], Ref):
            continue
        added, small = node.args[1], isinstance(node.args[1], float) and 0 < node.args[1] <= LARGEST_EPS
        if small and any(name_of(graph[user]) in ("rsqrt", "sqrt", "pow") for user in users[node.name]):
            found[node.name] = added
    return found


def _unstabilized(node: Node, added: Mapping[str, float]) -> Node:
    """Return one node without its stabilizer."""
    name = name_of(node)
    if name in ("batch_norm", "instance_norm") and not node.args[5]:
        return node  # its statistics are fixed: no scale is undone, and eps breaks nothing
    if name in _NORMALIZERS:
        arguments = arguments_of(node) | {"eps": 0.0}
        return replace(node, args=tuple(arguments.values()), kwargs=())
    if node.name in added:
        return replace(node, args=(node.args[0], 0.0, *node.args[2:]))
    return node


@dataclass(frozen=True, eq=False)
class OutputGradients:
    """Gradients of one random combination of the outputs."""

    length: float  #: of the weights of the combination
    parameters: dict[str, Tensor]  #: the gradient in each parameter
    nodes: dict[str, Tensor]  #: the gradient in the value of each node that is kept

    @functools.cached_property
    def norms(self) -> dict[str, float]:
        """Return the length of the gradient in each parameter."""
        return {name: float(value.norm()) for name, value in self.parameters.items()}


@dataclass(frozen=True, eq=False)
class ModelFunction:
    """The outputs of a model on one batch as a function of its parameters."""

    graph: Graph  #: the model, BatchNorm in the wanted mode
    tensors: dict[str, Tensor]  #: every tensor of it in float64
    inputs: list[Any]  #: the batch
    names: tuple[str, ...]  #: the trainable parameters; a shared one by its first name
    aliases: dict[str, str] = field(default_factory=dict)  #: the first name of each other name
    mode: str = "batch"  #: ``batch`` or ``running``, what BatchNorm does
    #: ``cross_entropy`` if outputs that differ by a common shift of the classes count as equal, or ``none``
    loss: str = "none"
    #: names of the stored mean and variance of each BatchNorm, by its node
    statistics: dict[str, tuple[str, str]] = field(default_factory=dict)
    deadline: float = math.inf  #: on the monotonic clock; after it the function is not evaluated any more

    @property
    def point(self) -> dict[str, Tensor]:
        """Return the given parameters."""
        return {name: self.tensors[name] for name in self.names}

    def exact(self) -> ModelFunction:
        """Return the same function with every eps set to zero."""
        return replace(self, graph=without_stabilizers(self.graph))

    def canonical(self, target: str) -> str:
        """Return the name under which a tensor is stored."""
        return self.aliases.get(target, target)

    def outputs(
        self,
        point: Point,
        visit: Callable[[Node, Any, Mapping[str, Any]], Any] | None = None,
        *,
        everywhere: bool = True,
    ) -> list[Tensor]:
        """Return the outputs at other parameters, class scores centred if the loss ignores their mean.

        Args:
            point: parameters that differ from those of the function.
            visit: called for each node, as by :func:`normscope.graph.interpreter.run`.
            everywhere: whether to call it also for nodes that do not change.

        Raises:
            OutOfTimeError: after the deadline.
        """
        if time.monotonic() > self.deadline:
            raise OutOfTimeError("The time limit of the search was reached.")
        tensors = {**self.tensors, **point}
        moved = {name for name, value in point.items() if value is not self.tensors[name]}
        moved |= {name for name, first in self.aliases.items() if first in moved}
        tensors |= {name: tensors[first] for name, first in self.aliases.items()}
        with sdpa_kernel(SDPBackend.MATH):
            known = None if visit is not None and everywhere else self.known
            found = run(self.graph, tensors, self.inputs, visit, torch.float64, known, moved)
        if self.loss == "cross_entropy":
            found = [t - t.mean(-1, keepdim=True) for t in found]
        return found

    @functools.cached_property
    def known(self) -> dict[str, Any]:
        """Return the values of the nodes at the given parameters, as many as fit into a share of the memory."""
        found: dict[str, Any] = {}
        left = KEPT * memory.available()
        in_place = [node for node in self.graph if name_of(node).endswith("_")]
        written = {ref.name for node in in_place for ref in node.args[:1] if isinstance(ref, Ref)}

        def visit(node: Node, value: Any, values: Mapping[str, Any]) -> None:
            nonlocal left
            if isinstance(value, Tensor) and node.op.startswith("aten.") and node.name not in written:
                left -= value.nbytes
                found.update({node.name: value} if left >= 0 else {})

        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            run(self.graph, self.tensors, self.inputs, visit, torch.float64)
        return found

    @functools.cached_property
    def backwards(self) -> OutputGradients:
        """Return the gradients of a random combination of the outputs."""
        leaves = {name: value.detach().requires_grad_() for name, value in self.point.items()}
        nodes: dict[str, Tensor] = {}

        def visit(node: Node, value: Any, values: Mapping[str, Any]) -> None:
            if node.name in self.known and value.requires_grad:
                nodes[node.name] = value

        with torch.enable_grad():
            outputs = [t for t in self.outputs(leaves, visit) if t.requires_grad]
        generator = torch.Generator().manual_seed(0)
        weights = [torch.randn(t.shape, generator=generator, dtype=torch.float64) for t in outputs]
        every = [*leaves.values(), *nodes.values()]
        found = torch.autograd.grad(outputs, every, weights, allow_unused=True, materialize_grads=True)
        length = math.sqrt(sum(float(w.square().sum()) for w in weights))
        return OutputGradients(
            length, dict(zip(leaves, found, strict=False)), dict(zip(nodes, found[len(leaves) :], strict=True))
        )

    def flat(self, point: Point) -> Tensor:
        """Return all outputs as one vector."""
        return torch.cat([t.reshape(-1) for t in self.outputs(point)])

    @functools.cached_property
    def _unmoved(self) -> Tensor:
        """Return the outputs at the given parameters."""
        with torch.no_grad():
            return self.flat(self.point)

    def change(self, moved: Point) -> float:
        """Return the largest change of the outputs after some parameters moved, relative to the largest output."""
        with torch.no_grad():
            gap = float((self.flat({**self.point, **moved}) - self._unmoved).abs().max())
        return math.inf if math.isnan(gap) else gap / (float(self._unmoved.abs().max()) or 1.0)

    def derivative(self, direction: Point) -> Tensor:
        """Return the derivative of the outputs along a direction of the parameters.

        Raises:
            CaptureError: if an operation of the model has no forward derivative.
        """
        import torch.autograd.forward_ad as forward

        with forward.dual_level(), torch.no_grad():
            point = {name: forward.make_dual(self.tensors[name], value) for name, value in direction.items()}
            try:
                tangents = [forward.unpack_dual(t) for t in self.outputs(point)]
            except NotImplementedError as error:
                reason = str(error).splitlines()[0]
                raise CaptureError(f"Symmetries need forward-mode derivatives of every operation: {reason}") from error
        return torch.cat([(torch.zeros_like(p) if t is None else t).reshape(-1) for p, t in tangents])

    def value(self, point: Point, targets: Sequence[Tensor]) -> Tensor:
        """Return the loss at other parameters."""
        return self.loss_of(self.outputs(point), targets)

    def loss_of(self, outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        """Return a loss: cross-entropy with the targets as classes, or the mean squared distance to them."""
        total = torch.zeros((), dtype=torch.float64)
        for out, target in zip(outputs, targets, strict=True):
            if self.loss == "cross_entropy":
                total = total + torch.nn.functional.cross_entropy(out.reshape(-1, out.shape[-1]), target.reshape(-1))
            else:
                total = total + (out - target).square().mean() / 2
        return total

    def targets(self, seed: int = 0) -> list[Tensor]:
        """Return random targets that fit the loss."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            found = self.outputs(self.point)
        if self.loss == "cross_entropy":
            return [torch.randint(t.shape[-1], t.shape[:-1], generator=generator) for t in found]
        return [torch.randn(t.shape, generator=generator, dtype=torch.float64) for t in found]


def function_of(captured: Captured, *, mode: str = "batch", loss: str = "none") -> ModelFunction:
    """Return a captured model as a function of its trainable parameters."""
    if mode not in ("batch", "running"):
        raise InputError(f"Expected mode 'batch' or 'running', got {mode!r}.")
    if loss not in ("cross_entropy", "none"):
        raise InputError(f"Expected loss 'cross_entropy' or 'none', got {loss!r}.")
    graph = with_batch_statistics(captured.graph) if mode == "batch" else captured.graph
    first: dict[tuple[Any, ...], str] = {}
    names, aliases = [], {}
    for node in captured.graph:
        if node.op != "parameter":
            continue
        held = captured.tensors[node.target]
        key = (held.data_ptr(), held.shape, held.stride()) if held.numel() else (node.target,)
        found = first.setdefault(key, node.target)
        if found != node.target:
            aliases[node.target] = found
        elif held.requires_grad and held.is_floating_point() and node.target not in names:
            names.append(node.target)
    tensors = {n: as_floating(t.detach(), torch.float64).clone() for n, t in captured.tensors.items()}
    stored: dict[str, tuple[str, str]] = {}
    for node in captured.graph:
        pair = running_statistics(node)
        if pair is not None:
            stored[node.name] = (captured.graph[pair[0]].target, captured.graph[pair[1]].target)
    inputs = as_floating(list(captured.example), torch.float64)
    return ModelFunction(graph, tensors, inputs, tuple(names), aliases, mode, loss, stored)
