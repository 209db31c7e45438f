"""Deep homogeneous networks, whose values or derivatives leave the float range, with powers of two taken out.

A network of linear maps, ReLUs and pools is positively homogeneous: scaling a tensor that every path passes scales the
output alike and changes no activation, provided every bias after it is scaled too. So the Jacobian of the rescaled
network is the Jacobian of the network times a known power of two, kept as an exponent. Biases may keep the values at
one size while derivatives vanish; these are scaled where they pass a tensor on the way back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from normscope.graph.interpreter import call, run
from normscope.graph.ir import SOURCES, Node, Ref, references
from normscope.graph.recognise import name_of
from normscope.lipschitz.lower import EndToEnd

#: Operations that commute with a positive factor, biases aside; and where each has its bias.
_HOMOGENEOUS = (
    "relu", "leaky_relu", "view", "reshape", "flatten", "permute", "transpose", "t", "contiguous", "clone", "dropout",
    "avg_pool2d", "adaptive_avg_pool2d", "max_pool2d", "mean", "sum", "unsqueeze", "squeeze", "neg", "slice", "select",
    "mm", "matmul", "_unsafe_view", "detach", "alias", "abs",
)  # fmt: skip
_BIAS = {"linear": 2, "conv1d": 2, "conv2d": 2, "conv3d": 2, "addmm": 0}
#: Sizes of values and derivatives beyond which a power of two is taken out.
SMALLEST, LARGEST = 1e-30, 1e30


def is_homogeneous(function: EndToEnd) -> bool:
    """Tell whether a network is a chain of linear maps and positively homogeneous functions of one input."""
    graph = function.captured.graph
    depends = {b.name for b in function.program.blocks}
    if len(depends) != 1:
        return False
    for node in graph:
        # A tensor that occurs twice in one operation, as in x @ x, makes it quadratic.
        read = [ref.name for ref in references((node.args, node.kwargs)) if ref.name in depends]
        if node.op == "output" or not read:
            continue
        depends.add(node.name)
        name, bias = name_of(node), _bias(node)
        if len(read) > 1 or (name not in _HOMOGENEOUS and name not in _BIAS):
            return False
        if name in _BIAS and (bias in read or any(True for _ in references(node.kwargs))):
            return False
    # A chain: every tensor that depends on the input is read once.
    users = graph.users()
    return all(len(users[name]) <= 1 for name in depends)


def _bias(node: Node) -> str | None:
    """Return the name of the bias an operation adds, if it adds one."""
    place = _BIAS.get(name_of(node))
    bias = None if place is None or len(node.args) <= place else node.args[place]
    return bias.name if isinstance(bias, Ref) else None


class Rescaled(EndToEnd):
    """A homogeneous network with a power of two taken out wherever values or derivatives grow or shrink too far."""

    _of_values: dict[str, int]
    _of_gradients: dict[str, int]

    @property
    def log_scale(self) -> float:
        """Logarithm of the factor by which the network's Jacobian is larger than ours."""
        return -math.log(2.0) * (sum(self._of_values.values()) + sum(self._of_gradients.values()))

    def fix(self, x: Tensor) -> bool:
        """Choose the factors at a point; from then on the function is one fixed network.

        Returns:
            Whether all its values at the point are numbers: if not, its derivative there means nothing.
        """
        self._of_values, self._of_gradients = {}, {}
        start = x.detach().requires_grad_(True)
        with torch.enable_grad():
            end = self._run(start, choose=True)
            if bool(end.isfinite().all()) and end.requires_grad:
                torch.autograd.grad(end, start, torch.ones_like(end), allow_unused=True)
                return True
        return bool(end.isfinite().all())

    def __call__(self, x: Tensor) -> Tensor:
        """Run the rescaled network."""
        return self._run(x, choose=False)

    def _run(self, x: Tensor, *, choose: bool) -> Tensor:
        """Run the network, taking factors out."""
        block = x.reshape(self.shapes[0])
        depends: set[str] = {self.program.blocks[0].name}
        taken = 0  # the exponent of all factors so far
        finite = True

        def visit(node: Node, value: Any, values: Any) -> Any:
            nonlocal taken, finite
            if node.name in self._place:
                return block
            if node.op in SOURCES or not any(name in depends for name in node.inputs()):
                return None
            depends.add(node.name)
            value = self._with_bias_scaled(node, value, values, taken)
            if choose:
                size = _largest(value)
                finite = finite and math.isfinite(size)
                _choose(self._of_values, node.name, size)
            exponent = self._of_values.get(node.name, 0)
            taken += exponent
            value = value * 2.0**exponent if exponent else value
            self._scale_gradient(node.name, value, choose)
            return value

        with sdpa_kernel(SDPBackend.MATH):
            outputs = run(self.captured.graph, self.tensors, self.inputs, visit, self.dtype)
        result = torch.cat([outputs[i].flatten() for i in self.keep])
        return result if finite else torch.full_like(result, math.nan)

    def _scale_gradient(self, name: str, value: Tensor, choose: bool) -> None:
        """Scale the gradient that passes a tensor; every path passes it, so the Jacobian is scaled alike."""

        def scaled(gradient: Tensor) -> Tensor:
            if choose:
                _choose(self._of_gradients, name, _largest(gradient))
            return gradient * 2.0 ** self._of_gradients.get(name, 0)

        if value.requires_grad and (choose or name in self._of_gradients):
            value.register_hook(scaled)

    def _with_bias_scaled(self, node: Node, value: Tensor, values: Mapping[str, Any], taken: int) -> Tensor:
        """Return a layer's result with its bias scaled by the factors taken out before it.

        The layer is computed again: adding the difference to a result in which the bias was much larger than the rest
        would leave nothing of the rest.
        """
        bias = _bias(node)
        if bias is None or taken == 0:
            return value
        # In two halves: the whole factor may leave the float range where the scaled bias does not.
        scaled = values[bias] * _power_of_two(taken // 2) * _power_of_two(taken - taken // 2)
        return call(node, {name: scaled if name == bias else values[name] for name in node.inputs()}, self.dtype)


def _largest(value: Tensor) -> float:
    """Return the largest magnitude of an entry."""
    return float(value.detach().abs().max()) if value.numel() else 0.0


def _choose(exponents: dict[str, int], name: str, size: float) -> None:
    """Choose the power of two that brings numbers of this size back to one, if they have gone too far."""
    if math.isfinite(size) and size > 0.0 and not SMALLEST < size < LARGEST:
        exponents[name] = max(-1000, min(1000, -math.frexp(size)[1]))


def _power_of_two(exponent: int) -> float:
    """Return a power of two that is a number and has an inverse, the nearest one if need be."""
    return 2.0 ** max(-1000, min(1000, exponent))
