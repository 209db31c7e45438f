"""Deep homogeneous networks, whose values leave the float range, run with a factor taken out after every layer.

A network of linear maps, ReLUs and pools is positively homogeneous: scaling a tensor that every path passes scales the
output alike and changes no activation, provided every bias after it is scaled too. So the Jacobian of the rescaled
network is the Jacobian of the network times a known factor, kept as a logarithm.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from normscope.graph.interpreter import run
from normscope.graph.ir import SOURCES, Node, Ref
from normscope.graph.recognise import name_of
from normscope.lipschitz.lower import EndToEnd

#: Operations that commute with a positive factor, biases aside; and where each has its bias.
_HOMOGENEOUS = (
    "relu", "leaky_relu", "view", "reshape", "flatten", "permute", "transpose", "t", "contiguous", "clone", "dropout",
    "avg_pool2d", "adaptive_avg_pool2d", "max_pool2d", "mean", "sum", "unsqueeze", "squeeze", "neg", "slice", "select",
    "mm", "matmul", "_unsafe_view", "detach", "alias", "abs",
)  # fmt: skip
_BIAS = {"linear": 2, "conv1d": 2, "conv2d": 2, "conv3d": 2, "addmm": 0}


def is_homogeneous(function: EndToEnd) -> bool:
    """Tell whether a network is a chain of linear maps and positively homogeneous functions of one input."""
    graph = function.captured.graph
    depends = {b.name for b in function.program.blocks}
    if len(depends) != 1:
        return False
    for node in graph:
        inputs = [name for name in node.inputs() if name in depends]
        if node.op == "output" or not inputs:
            continue
        depends.add(node.name)
        name = name_of(node)
        if len(inputs) > 1 or (name not in _HOMOGENEOUS and name not in _BIAS):
            return False
    # A chain: every tensor that depends on the input is read once.
    users = graph.users()
    return all(len(users[name]) <= 1 for name in depends)


class Rescaled(EndToEnd):
    """A homogeneous network with a power of two taken out wherever values grow or shrink too far.

    Attributes:
        log_scale: logarithm of the factor by which the network's output is larger than ours.
    """

    log_scale: float = 0.0

    def fix(self, x: Tensor) -> None:
        """Choose the factors at a point; from then on the function is one fixed network."""
        self._factors: dict[str, float] = {}
        self._run(x, choose=True)
        self.log_scale = -math.fsum(math.log(f) for f in self._factors.values())

    def __call__(self, x: Tensor) -> Tensor:
        """Run the rescaled network."""
        return self._run(x, choose=False)

    def _run(self, x: Tensor, *, choose: bool) -> Tensor:
        """Run the network, taking factors out."""
        block = x.reshape(self.shapes[0])
        depends: set[str] = {self.program.blocks[0].name}
        taken = 1.0  # the product of all factors so far; it leaves the float range only where nothing is left to add

        def visit(node: Node, value: Any, values: Any) -> Any:
            nonlocal taken
            if node.name in self._place:
                return block
            if node.op in SOURCES or not any(name in depends for name in node.inputs()):
                return None
            depends.add(node.name)
            value = self._with_bias_scaled(node, value, values, taken)
            if choose:
                size = float(value.detach().abs().max())
                if size > 0.0 and not 1e-30 < size < 1e30:
                    self._factors[node.name] = 2.0 ** -math.frexp(size)[1]
            factor = self._factors.get(node.name, 1.0)
            taken *= factor
            return value * factor

        with sdpa_kernel(SDPBackend.MATH):
            outputs = run(self.captured.graph, self.tensors, self.inputs, visit, self.dtype)
        return torch.cat([outputs[i].flatten() for i in self.keep])

    def _with_bias_scaled(self, node: Node, value: Tensor, values: Any, taken: float) -> Tensor:
        """Return a layer's result with its bias scaled by the factors taken out before it."""
        place = _BIAS.get(name_of(node))
        if place is None or len(node.args) <= place or taken == 1.0:
            return value
        bias = node.args[place]
        if not isinstance(bias, Ref):
            return value
        tensor = values[bias.name]
        if name_of(node).startswith("conv"):
            tensor = tensor.reshape(-1, *(1,) * (value.ndim - 2))
        return value + (taken - 1.0) * tensor
