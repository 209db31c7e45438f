"""The largest eigenvalue of the Hessian on the probe, started from the last reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.linalg.eigenvalue_tracker import Apply, EigenvalueTracker, TrackedEigenpair
from normscope.monitor.quantity import Chart, Description, Kind, Quantity, Snapshot
from normscope.monitor.view import View, tensor_layout

#: The most products with the Hessian per update, and per reading.
AT_ONCE, MOST = 4, 24
#: Relative residual at which a reading ends.
TOLERANCE = 1e-2


def hessian(gradients: Mapping[str, Tensor], leaves: Mapping[str, Tensor]) -> tuple[Apply, Tensor] | None:
    """Return products with the Hessian from a gradient that can be differentiated, and a random start vector.

    Args:
        gradients: of the loss, with their graph.
        leaves: the parameters.

    Returns:
        ``None`` if the loss has no second derivative.

    >>> w = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> slope = torch.autograd.grad((w**4).sum(), w, create_graph=True)[0]
    >>> apply, _ = hessian({"w": slope}, {"w": w})
    >>> apply(torch.ones(2)).tolist()
    [12.0, 48.0]
    """
    curved = {name: slope for name, slope in gradients.items() if slope.requires_grad}
    if not curved:
        return None
    sizes = [leaves[name].numel() for name in curved]

    def apply(vector: Tensor) -> Tensor:
        parts = [part.view(leaves[name].shape) for part, name in zip(vector.split(sizes), curved, strict=True)]
        inputs = [leaves[name] for name in curved]
        found = torch.autograd.grad(list(curved.values()), inputs, parts, retain_graph=True, allow_unused=True)
        flat = [torch.zeros(n).to(vector) if f is None else f.reshape(-1) for f, n in zip(found, sizes, strict=True)]
        return torch.cat(flat)

    like = next(iter(curved.values()))
    start = torch.randn(sum(sizes), generator=torch.Generator().manual_seed(0)).to(like.device, like.dtype)
    return apply, start


@dataclass
class _Reading:
    """A measurement of the eigenvalue that may continue during the next updates."""

    view: View  #: the model and its probe
    shape: Any  #: the layout of the model, which must not change until the end
    rate: float  #: the learning rate at its step
    copy: dict[str, Tensor] | None = None  #: parameters and buffers at its step, once training has continued
    search: EigenvalueTracker | None = None  #: for the largest eigenvalue


class LargestCurvature(Quantity):
    """Largest eigenvalue of the Hessian on the probe, also against the learning rate in use.

    At most :data:`AT_ONCE` products are computed per update. If that is not enough, the next updates continue with a
    copy of the weights and buffers, up to :data:`MOST` products. The graph of the gradient is built again each time, so
    that only the copy and the vectors of the search are kept in memory.

    Attributes:
        products: number of products of the last reading.
    """

    name = "curvature"
    preset = "full"
    cost = 15
    spreads = True
    charts = (Chart("curvature", "Largest curvature of the loss", "log", ("curvature/*",), 260),)
    describes = (
        Description(
            "curvature/largest",
            Kind.LOWER,
            "largest eigenvalue of the Hessian, attained by a vector found with at most 24 products",
            signed=True,
        ),
        Description(
            "curvature/estimate",
            Kind.ESTIMATE,
            "the same with what the search had not reached yet and what is remembered of earlier readings",
            signed=True,
        ),
        Description("curvature/residual", Kind.ESTIMATE, "distance within which an eigenvalue is guaranteed"),
        Description(
            "curvature/converged", Kind.ESTIMATE, "1 if the residual is at most 1 % of the eigenvalue, otherwise 0"
        ),
        Description(
            "curvature/over_threshold",
            Kind.ESTIMATE,
            "largest eigenvalue over 2/learning rate, above which plain gradient steps diverge",
            "normscope Stability thresholds",
            signed=True,
        ),
    )

    def __init__(self) -> None:
        self._before: TrackedEigenpair | None = None
        self._reading: _Reading | None = None
        self.products = 0

    @property
    def unfinished(self) -> bool:
        """Return whether a reading needs more products."""
        return self._reading is not None

    def drop(self) -> None:
        """Abandon an unfinished reading."""
        self._reading = None

    def measure(self, moment: Snapshot) -> dict[str, float]:
        """Start a reading, and return its metrics if it is finished."""
        before = None if moment.changed else self._before
        rate = max(moment.rates.values(), default=0.0)
        return self._proceed(_Reading(moment.view, _shape(moment.view.model), rate), before)

    def proceed(self) -> dict[str, float]:
        """Compute the next products of a reading, and return its metrics if it is finished.

        If the model itself has changed, the reading is abandoned.
        """
        reading, self._reading = self._reading, None  # also if a product fails
        if reading is None or _shape(reading.view.model) != reading.shape:
            return {}
        return self._proceed(reading, None)

    def _proceed(self, reading: _Reading, before: TrackedEigenpair | None) -> dict[str, float]:
        probed = reading.view.run_probe(create_graph=True, statistics=False, parameters=reading.copy)
        found = hessian(probed.gradients, probed.leaves)
        if found is None or not bool(torch.isfinite(torch.as_tensor(probed.loss))):
            return {}
        apply, start = found
        if reading.search is None:
            warm = before if before is not None and before.vectors.shape[1] == start.numel() else None
            reading.search = EigenvalueTracker(start if warm is None else warm, tolerance=TOLERANCE)
        search = reading.search
        search.advance(apply, min(AT_ONCE, MOST - search.products))
        if search.done or search.products >= MOST:
            return self._read(search.found(), reading.rate)
        if reading.copy is None:
            reading.copy = reading.view.copy_state()
        self._reading = reading
        return {}

    def _read(self, now: TrackedEigenpair, rate: float) -> dict[str, float]:
        """Return the metrics of a reading, with the ratio to the threshold if the learning rate is known."""
        self._before, self.products = now, now.products
        found = {
            "curvature/largest": now.value,
            "curvature/estimate": now.estimate,
            "curvature/residual": now.residual,
            "curvature/converged": float(now.converged),
        }
        return found | ({"curvature/over_threshold": now.value * rate / 2} if rate > 0.0 else {})


def _shape(model: nn.Module) -> Any:
    """Return the layout of a model, and which parameters are trained."""
    return tensor_layout(model), [p.requires_grad for p in model.parameters()]
