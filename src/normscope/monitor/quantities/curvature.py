"""The largest eigenvalue of the Hessian on the probe, followed from one moment to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.linalg.recycled import Apply, Followed, Search
from normscope.monitor.quantity import Chart, Description, Kind, Quantity, Snapshot
from normscope.monitor.view import View, structure

#: The most products with the Hessian in one update, and for one reading.
AT_ONCE, MOST = 4, 24
#: Relative residual at which a reading ends.
TOLERANCE = 1e-2


def hessian(gradients: Mapping[str, Tensor], leaves: Mapping[str, Tensor]) -> tuple[Apply, Tensor] | None:
    """Return products with the Hessian from a gradient that can be differentiated again, and a random vector.

    Args:
        gradients: of the loss, with their graph.
        leaves: the parameters.

    Returns:
        Nothing where the loss has no second derivative.

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
    """A reading that may go on."""

    view: View  #: the model and its probe
    shape: Any  #: what must not change until the end
    rate: float  #: the learning rate at its update
    copy: dict[str, Tensor] | None = None  #: parameters and buffers of its update, once training has gone on
    search: Search | None = None  #: for the largest eigenvalue


class LargestCurvature(Quantity):
    """Largest eigenvalue of the Hessian on the probe, also against the learning rate in use.

    An update makes at most :data:`AT_ONCE` products. If they are too few, the next updates go on with a copy of the
    weights and buffers of this one, up to :data:`MOST` products. The graph of the gradient is built again each time, so
    that nothing but the copy and the vectors of the search is kept beside training.

    Attributes:
        products: of the last reading.
    """

    name = "curvature"
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
        self._before: Followed | None = None
        self._reading: _Reading | None = None
        self.products = 0

    @property
    def unfinished(self) -> bool:
        """Return whether a reading needs more products."""
        return self._reading is not None

    def drop(self) -> None:
        """Forget a reading that is not finished."""
        self._reading = None

    def measure(self, moment: Snapshot) -> dict[str, float]:
        """Begin a reading, and return its numbers if it is finished."""
        before = None if moment.changed else self._before
        rate = max(moment.rates.values(), default=0.0)
        return self._proceed(_Reading(moment.view, _shape(moment.view.model), rate), before)

    def proceed(self) -> dict[str, float]:
        """Make the next products of a reading, and return its numbers if it is finished.

        If the model has become another one, the reading is forgotten.
        """
        reading, self._reading = self._reading, None  # also where a product fails
        if reading is None or _shape(reading.view.model) != reading.shape:
            return {}
        return self._proceed(reading, None)

    def _proceed(self, reading: _Reading, before: Followed | None) -> dict[str, float]:
        """Make at most :data:`AT_ONCE` products."""
        look = reading.view.look(curved=True, statistics=False, parameters=reading.copy)
        found = hessian(look.gradients, look.leaves)
        if found is None:
            return {}
        apply, start = found
        if reading.search is None:
            warm = before if before is not None and before.vectors.shape[1] == start.numel() else None
            reading.search = Search(start if warm is None else warm, tolerance=TOLERANCE)
        search = reading.search
        search.advance(apply, min(AT_ONCE, MOST - search.products))
        if search.done or search.products >= MOST:
            return self._read(search.found(), reading.rate)
        if reading.copy is None:
            reading.copy = reading.view.copied()
        self._reading = reading
        return {}

    def _read(self, now: Followed, rate: float) -> dict[str, float]:
        """Return the numbers of a reading: also the ratio to the threshold if the learning rate is known."""
        self._before, self.products = now, now.products
        found = {
            "curvature/largest": now.value,
            "curvature/estimate": now.estimate,
            "curvature/residual": now.residual,
            "curvature/converged": float(now.converged),
        }
        return found | ({"curvature/over_threshold": now.value * rate / 2} if rate > 0.0 else {})


def _shape(model: nn.Module) -> Any:
    """Return what a model is made of, and which parameters are trained."""
    return structure(model), [p.requires_grad for p in model.parameters()]
