"""What a small batch shows inside a network: batch statistics, attention logits, the first value that is no number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from normscope.graph.capture import Captured
from normscope.graph.interpreter import run
from normscope.graph.ir import Graph, Node, Ref
from normscope.graph.modes import running_statistics, with_batch_statistics
from normscope.graph.recognise import name_of
from normscope.graph.weights_validation import all_finite

#: What lies below is masked: some write the least number of the precision, or minus a billion, for minus infinity.
MASKED = -9999.0


@dataclass(eq=False)
class Probe:
    """What runs over the data show at single nodes; :meth:`visit` is called at each.

    Attributes:
        logits: by graph node of each softmax, the largest distance of a logit from the middle of its row.
        broken: the first graph node whose value is NaN or infinite although what it reads is finite.
    """

    logits: dict[str, float] = field(default_factory=dict)
    broken: str = ""
    _finite: set[str] = field(default_factory=set)

    def visit(self, node: Node, value: Any, values: Mapping[str, Any]) -> None:
        """Look at the value of a node, given those before it."""
        if not self.broken and _floating(value):
            if all_finite(value):
                self._finite.add(node.name)
            else:
                self._finite.discard(node.name)
                read = (n in self._finite or not _floating(values.get(n)) for n in node.inputs())
                if node.target == "" and all(read) and not _masks(node):
                    self.broken = node.name
        spread = logit_spread(node, values)
        if spread is not None:
            self.logits[node.name] = max(spread, self.logits.get(node.name, 0.0))


def _floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _masks(node: Node) -> bool:
    """Tell whether an operation writes minus infinity on purpose."""
    return name_of(node) in ("masked_fill", "where", "full", "full_like", "triu", "log", "scalar_tensor")


def logit_spread(node: Node, values: Mapping[str, Any]) -> float | None:
    """Return how far the largest logit of an attention lies above the middle of its row; nothing of other nodes."""
    name = name_of(node)
    if name in ("softmax", "_softmax"):
        source = node.inputs()[0] if node.inputs() else ""
        rows = values.get(source)
        if not isinstance(rows, Tensor) or rows.ndim < 3 or node.args[1] not in (-1, rows.ndim - 1):
            return None
    elif name == "scaled_dot_product_attention":
        q, k = (values.get(n) for n in node.inputs()[:2])
        if not isinstance(q, Tensor) or not isinstance(k, Tensor) or q.numel() * k.shape[-2] > 1 << 26:
            return None
        scale = dict(node.kwargs).get("scale")
        k = k if k.shape[-3:-2] == q.shape[-3:-2] else k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
        rows = q.float() @ k.float().transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else float(scale))
    else:
        return None
    if rows.shape[-1] < 2:
        return None
    kept = torch.where(torch.isfinite(rows) & (rows > MASKED), rows, torch.nan).float()
    middle = kept.nanmedian(-1).values
    distance = kept.nan_to_num(-torch.inf).amax(-1) - middle
    distance = distance[torch.isfinite(distance)]
    return float(distance.max()) if distance.numel() else None


def batch_statistics(captured: Captured, batch: list[Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """Return mean and variance of each channel before each BatchNorm, by graph node.

    The BatchNorms before it normalize by the batch, so that what is wrong with one of them is not seen at the next.
    """
    sources = {n.name: _source(captured.graph, n) for n in captured.graph if running_statistics(n) is not None}
    found: dict[str, tuple[Tensor, Tensor]] = {}
    if not sources or (batch and batch[0].ndim and batch[0].shape[0] < 2):
        return found

    def visit(node: Node, value: Any, values: Mapping[str, Any]) -> None:
        x = values.get(sources.get(node.name, ""))
        if isinstance(x, Tensor) and x.ndim > 1:
            rows = x.detach().double().transpose(0, 1).flatten(1)
            found[node.name] = rows.mean(1), rows.var(1, correction=0)

    try:
        with torch.no_grad():
            run(with_batch_statistics(captured.graph), captured.tensors, batch, visit)
    except (RuntimeError, ValueError):  # one value per channel has no variance
        return {}
    return found


def _source(graph: Graph, node: Node) -> str:
    """Return the node a normalizer reads."""
    first = node.args[0] if node.args else None
    return first.name if isinstance(first, Ref) else graph[node.name].inputs()[0]
