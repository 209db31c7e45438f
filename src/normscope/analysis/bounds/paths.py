"""The L1 path norm of a network: one run with the absolute values of all weights on an input of ones."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from normscope.analysis.bounds.chain import RefusedError
from normscope.graph.capture import Captured
from normscope.graph.interpreter import run
from normscope.graph.ir import Node, Ref

#: Operations that neither subtract nor bend: with non-negative weights they sum over paths.
_ADDITIVE = frozenset(
    [
        "conv1d",
        "conv2d",
        "conv3d",
        "convolution",
        "linear",
        "addmm",
        "matmul",
        "mm",
        "relu",
        "relu_",
        "add",
        "add_",
        "mean",
        "avg_pool1d",
        "avg_pool2d",
        "avg_pool3d",
        "adaptive_avg_pool1d",
        "adaptive_avg_pool2d",
        "view",
        "reshape",
        "flatten",
        "batch_norm",
        "_native_batch_norm_legit_no_training",
        "native_batch_norm",
        "cudnn_batch_norm",
        "slice",
        "pad",
        "constant_pad_nd",
        "permute",
        "transpose",
        "t",
        "unsqueeze",
        "squeeze",
        "contiguous",
        "clone",
        "detach",
        "dropout",
        "cat",
        "_unsafe_view",
        "_to_copy",
        "to",
        "select",
        "alias",
        "sym_size",
    ]
)


def folded_tensors(captured: Captured) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors of a graph with every BatchNorm as one scale and one shift, and the names of its statistics.

    ``gamma (x - mu)/sigma + beta`` becomes ``(gamma/sigma) x + (beta - gamma mu/sigma)``: the mean zero, the variance
    ``1 - eps``. Two parametrizations of one normalized layer give the same tensors.

    Raises:
        RefusedError: if a normalizer uses the statistics of the batch, or has no scale to fold into.
    """
    tensors = dict(captured.tensors_as(torch.float64))
    statistics: list[str] = []
    for node in captured.graph:
        if "batch_norm" not in node.op or "aten." not in node.op:
            continue
        names = [captured.graph[a.name].target if isinstance(a, Ref) else "" for a in node.args[1:5]]
        if not all(names):
            raise RefusedError(f"BatchNorm {node.owner} has no scale, shift or running statistics of its own")
        weight, bias, mean, var = names
        eps = next(float(a) for a in reversed(node.args) if isinstance(a, float))
        sigma = (tensors[var] + eps).sqrt()
        scale = tensors[weight] / sigma
        tensors[bias] = tensors[bias] - scale * tensors[mean]
        tensors[weight] = scale
        tensors[mean], tensors[var] = torch.zeros_like(sigma), torch.full_like(sigma, 1.0 - eps)
        statistics += [mean, var]
    return tensors, statistics


def log_path_norm(captured: Captured) -> float:
    """Return the natural logarithm of the L1 path norm, BatchNorm folded, biases counted as paths from a constant one.

    Raises:
        RefusedError: if an operation is no sum over paths.
    """
    for node in captured.graph.calls():
        name = node.op.split(".")[1] if "." in node.op else node.op
        if name not in _ADDITIVE or _subtracts(node):
            raise RefusedError(f"{name} in {node.owner or 'the model'} is not a sum over paths")
    folded, statistics = folded_tensors(captured)
    positive = {n: t if n in statistics or not t.is_floating_point() else t.abs() for n, t in folded.items()}
    ones = [torch.ones_like(t[:1], dtype=torch.float64) for t in captured.example]
    with torch.no_grad():
        total = float(run(captured.graph, positive, ones, dtype=torch.float64)[0].sum())
    return math.log(total) if total > 0 else -math.inf


def _subtracts(node: Node) -> bool:
    """Tell whether an addition has a negative factor, or a padding is not of zeros."""
    numbers: Mapping[str, object] = dict(node.kwargs)
    alpha = numbers.get("alpha", 1)
    return isinstance(alpha, int | float) and alpha < 0
