"""What data shows inside a network: batch statistics, attention logits, the first value that is not finite."""

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
from normscope.operators.normalizer import normalizers
from normscope.operators.site import Site

#: Logits below this are masked: some networks write the smallest number of the dtype, or -1e9, for minus infinity.
MASKED = -9999.0
#: Operations that may write minus infinity on purpose.
_MASKS = ("masked_fill", "where", "full", "full_like", "triu", "log", "scalar_tensor")
#: Divisors with more entries are not examined.
LARGEST = 1 << 20


@dataclass(eq=False)
class NodeObserver:
    """Observations at the nodes of a graph while it runs over the data; :meth:`visit` is called at each node."""

    #: largest distance of a logit from the median of its row, by the graph node of the softmax
    logits: dict[str, float] = field(default_factory=dict)
    fault: Fault | None = None  #: the first operation with a non-finite result and finite inputs
    #: the first operation that turns intended infinities into NaN, such as softmax of a fully masked row
    nan_fault: Fault | None = None
    mask: Node | None = None  #: the first operation that writes an infinity on purpose
    #: smallest and median absolute value of each divisor, by the graph node of the quotient
    divisors: dict[str, tuple[float, float]] = field(default_factory=dict)
    _finite: set[str] = field(default_factory=set)

    def visit(self, node: Node, value: Any, values: Mapping[str, Any]) -> None:
        """Observe the value of a node, given those before it."""
        if self.fault is None and _floating(value):
            self._note_fault(node, value, values)
        if name_of(node) == "div" and isinstance(node.args[1], Ref):
            self._note_divisor(node.name, values.get(node.args[1].name))
        spread = logit_spread(node, values)
        if spread is not None:
            self.logits[node.name] = max(spread, self.logits.get(node.name, 0.0))

    def _note_fault(self, node: Node, value: Tensor, values: Mapping[str, Any]) -> None:
        """Record the first non-finite result of finite inputs, and the first NaN computed from intended infinities."""
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
            elif self.mask is None:
                self.mask = node
        elif (
            self.nan_fault is None
            and bool(value.isnan().any())
            and not any(bool(values[n].isnan().any()) for n in read)
        ):
            self.nan_fault = replace(fault_of(node, values), kind="infinite", source=self.mask)

    def _note_divisor(self, name: str, by: Any) -> None:
        if _floating(by) and 0 < by.numel() <= LARGEST:
            size = by.detach().abs().flatten().double()
            least, middle = float(size.min()), float(size.median())
            before = self.divisors.get(name, (least, middle))
            self.divisors[name] = min(least, before[0]), max(middle, before[1])


def _floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def logit_spread(node: Node, values: Mapping[str, Any]) -> float | None:
    """Return how far the largest attention logit lies above the median of its row, or ``None`` for other nodes."""
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
class ChannelStatistics:
    """Statistics of each channel on some samples, with their standard errors."""

    mean: Tensor  #: the means
    variance: Tensor  #: the biased variances
    mean_error: Tensor  #: standard errors of the means over samples
    variance_error: Tensor  #: those of the variances


def channel_statistics(x: Tensor, axis: int, *, centred: bool = True) -> ChannelStatistics:
    """Return the statistics of the channels along an axis; samples are along the first axis.

    Standard errors are computed from the mean and mean square of each sample, so positions within a sample are not
    assumed to be independent.

    >>> channel_statistics(torch.tensor([[1.0], [3.0]]), 1).variance.tolist()
    [1.0]
    """
    rows = x.detach().double().movedim(axis, 1).flatten(2) if x.ndim > 2 else x.detach().double().unsqueeze(2)
    mean = rows.mean((0, 2)) if centred else torch.zeros(rows.shape[1], dtype=rows.dtype, device=rows.device)
    squares = (rows - mean[:, None]).square().mean(2)
    root = max(1, rows.shape[0]) ** 0.5
    return ChannelStatistics(
        mean.cpu(),
        squares.mean(0).cpu(),
        (rows.mean(2).std(0, correction=0) / root).cpu(),
        (squares.std(0, correction=0) / root).cpu(),
    )


def batch_statistics(
    captured: Captured, batch: list[Tensor], sites: Iterable[Site] = ()
) -> dict[str, ChannelStatistics]:
    """Return the statistics before each BatchNorm, by graph node, including those written by hand.

    The BatchNorms before it use batch statistics, so that a problem of one is not seen at the next. One that is written
    by hand is an affine map ``a x + b``: it is given ``mu + (x - m) sqrt((v + eps)/(s^2 + eps))``.
    """
    sources = {n.name: n.inputs()[0] for n in captured.graph if running_statistics(n) is not None}
    written = [(s, s.running) for s in sites if s.written_out and s.running is not None and "axis" in s.details]
    found: dict[str, ChannelStatistics] = {}
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
                    kind = normalizers()[site.kind]
                    found[site.node] = channel_statistics(value, axis, centred=not kind.keeps_mean_square)
                    if kind.estimated:
                        moved[site.end or site.node] = _change_with_batch(value, site, running, found[site.node])
        return value + moved.pop(node.name) if node.name in moved else None

    try:
        with torch.no_grad():
            run(with_batch_statistics(captured.graph), captured.tensors, batch, visit)
    except (RuntimeError, ValueError):  # one value per channel has no variance
        return {}
    return found


def _change_with_batch(x: Tensor, site: Site, running: tuple[Tensor, Tensor], seen: ChannelStatistics) -> Tensor:
    """Return the change of the output of a hand-written normalizer when it uses batch statistics."""
    mu, v = (t.detach().double().flatten().cpu() for t in running)
    gamma = torch.ones_like(v) if site.gamma is None else site.gamma.detach().double().flatten().cpu()
    shape = [-1 if i == site.details["axis"] else 1 for i in range(x.ndim)]
    root, mu, mean, slope = (
        t.to(x).reshape(shape)
        for t in (((v + site.eps) / (seen.variance + site.eps).clamp_min(1e-300)).sqrt(), mu, seen.mean,
                  (gamma / (v + site.eps).sqrt()).expand_as(v))
    )  # fmt: skip
    return slope * (mu + (x - mean) * root - x)
