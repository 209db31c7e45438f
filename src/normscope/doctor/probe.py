"""What a small batch shows inside a network: batch statistics, attention logits, the first value that is not finite."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from normscope.doctor.fault import Fault, fault_of
from normscope.graph.capture import Captured
from normscope.graph.interpreter import run
from normscope.graph.ir import Node, Ref
from normscope.graph.modes import running_statistics, with_batch_statistics
from normscope.graph.recognise import name_of
from normscope.graph.weights_validation import all_finite
from normscope.operators.site import Site

#: What lies below is masked: some write the least number of the precision, or minus a billion, for minus infinity.
MASKED = -9999.0
#: Operations that may write minus infinity on purpose.
_MASKS = ("masked_fill", "where", "full", "full_like", "triu", "log", "scalar_tensor")
#: Numbers in a divisor up to which its size is looked at.
LARGEST = 1 << 20


@dataclass(eq=False)
class Probe:
    """What runs over the data show at single nodes; :meth:`visit` is called at each."""

    #: by graph node of each softmax, the largest distance of a logit from the middle of its row
    logits: dict[str, float] = field(default_factory=dict)
    fault: Fault | None = None  #: the first operation whose value is NaN or infinite although what it reads is finite
    #: the first operation that makes NaN of infinities that are meant, as of a row that is masked as a whole
    made: Fault | None = None
    written: Node | None = None  #: the first operation that writes an infinity on purpose, as a mask does
    #: least and middle absolute value of what each quotient divides by, by graph node
    divisors: dict[str, tuple[float, float]] = field(default_factory=dict)
    _finite: set[str] = field(default_factory=set)

    def visit(self, node: Node, value: Any, values: Mapping[str, Any]) -> None:
        """Look at the value of a node, given those before it."""
        if self.fault is None and _floating(value):
            self._note_fault(node, value, values)
        if name_of(node) == "div" and isinstance(node.args[1], Ref):
            self._note_divisor(node.name, values.get(node.args[1].name))
        spread = logit_spread(node, values)
        if spread is not None:
            self.logits[node.name] = max(spread, self.logits.get(node.name, 0.0))

    def _note_fault(self, node: Node, value: Tensor, values: Mapping[str, Any]) -> None:
        """Note the first value that is not finite although what it reads is; NaN made of infinities that are meant."""
        if all_finite(value):
            self._finite.add(node.name)
            return
        self._finite.discard(node.name)
        read = [n for n in node.inputs() if _floating(values.get(n))]
        if node.target:
            return
        if all(n in self._finite for n in read):
            if name_of(node) not in _MASKS:
                self.fault = fault_of(node, values)
            elif self.written is None:
                self.written = node
        elif self.made is None and bool(value.isnan().any()) and not any(bool(values[n].isnan().any()) for n in read):
            self.made = replace(fault_of(node, values), kind="infinite", source=self.written)

    def _note_divisor(self, name: str, by: Any) -> None:
        """Note the size of what a quotient divides by."""
        if _floating(by) and 0 < by.numel() <= LARGEST:
            size = by.detach().abs().flatten().double()
            least, middle = float(size.min()), float(size.median())
            before = self.divisors.get(name, (least, middle))
            self.divisors[name] = min(least, before[0]), max(middle, before[1])


def _floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


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


@dataclass(frozen=True, eq=False)
class Statistics:
    """Statistics of each channel on some samples, and how well they are known."""

    mean: Tensor  #: the means
    variance: Tensor  #: the biased variances
    mean_error: Tensor  #: standard errors of the means, from sample to sample
    variance_error: Tensor  #: those of the variances


def channel_statistics(x: Tensor, axis: int, *, centred: bool = True) -> Statistics:
    """Return the statistics of the channels along an axis, samples along the first one.

    The errors are those of means over samples of each sample's own mean and mean square: places of one sample are not
    taken for independent, nor for equal.

    >>> channel_statistics(torch.tensor([[1.0], [3.0]]), 1).variance.tolist()
    [1.0]
    """
    rows = x.detach().double().movedim(axis, 1).flatten(2) if x.ndim > 2 else x.detach().double().unsqueeze(2)
    mean = rows.mean((0, 2)) if centred else torch.zeros(rows.shape[1], dtype=rows.dtype, device=rows.device)
    squares = (rows - mean[:, None]).square().mean(2)
    root = max(1, rows.shape[0]) ** 0.5
    return Statistics(
        mean.cpu(),
        squares.mean(0).cpu(),
        (rows.mean(2).std(0, correction=0) / root).cpu(),
        (squares.std(0, correction=0) / root).cpu(),
    )


def batch_statistics(captured: Captured, batch: list[Tensor], sites: Iterable[Site] = ()) -> dict[str, Statistics]:
    """Return the statistics before each BatchNorm, by graph node, also of those that are written out.

    The BatchNorms before it normalize by the batch, so that what is wrong with one of them is not seen at the next. One
    that is written out is an affine map ``a x + b``: it is given ``mu + (x - m) sqrt((v + eps)/(s^2 + eps))``.
    """
    sources = {n.name: n.inputs()[0] for n in captured.graph if running_statistics(n) is not None}
    written = [(s, s.running) for s in sites if s.written_out and s.running is not None and "axis" in s.details]
    found: dict[str, Statistics] = {}
    if not (sources or written) or (batch and batch[0].ndim and batch[0].shape[0] < 2):
        return found
    moved: dict[str, Tensor] = {}

    def visit(node: Node, value: Any, values: Mapping[str, Any]) -> Any:
        x = values.get(sources.get(node.name, ""))
        if isinstance(x, Tensor) and x.ndim > 1:
            found[node.name] = channel_statistics(x, 1)
        for site, running in written:
            if site.source == node.name and isinstance(value, Tensor) and value.ndim == len(site.shape):
                axis = int(site.details["axis"])
                if axis > 0 and value.shape[axis] == running[1].numel():
                    found[site.node] = channel_statistics(value, axis, centred=site.kind != "power_norm")
                    if site.kind != "standardization":  # its constants are not gathered in training
                        moved[site.end or site.node] = _by_the_batch(value, site, running, found[site.node])
        return value + moved.pop(node.name) if node.name in moved else None

    try:
        with torch.no_grad():
            run(with_batch_statistics(captured.graph), captured.tensors, batch, visit)
    except (RuntimeError, ValueError):  # one value per channel has no variance
        return {}
    return found


def _by_the_batch(x: Tensor, site: Site, running: tuple[Tensor, Tensor], seen: Statistics) -> Tensor:
    """Return by how much the result of a written-out normalizer changes if it takes the batch's statistics."""
    mu, v = (t.detach().double().flatten().cpu() for t in running)
    gamma = torch.ones_like(v) if site.gamma is None else site.gamma.detach().double().flatten().cpu()
    shape = [-1 if i == site.details["axis"] else 1 for i in range(x.ndim)]
    root, mu, mean, slope = (
        t.to(x).reshape(shape)
        for t in (((v + site.eps) / (seen.variance + site.eps).clamp_min(1e-300)).sqrt(), mu, seen.mean,
                  (gamma / (v + site.eps).sqrt()).expand_as(v))
    )  # fmt: skip
    return slope * (mu + (x - mean) * root - x)
