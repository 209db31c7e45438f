"""The largest eigenvalue of the Hessian on the probe, followed from one moment to the next."""

from __future__ import annotations

import torch
from torch import Tensor

from normscope.core.value import Kind
from normscope.linalg.recycled import Followed, begin, follow
from normscope.monitor.quantity import Description, Quantity
from normscope.monitor.snapshot import Snapshot

#: The most products with the Hessian the first time.
COLD = 20
#: Products of a reading from remembered vectors: the fewest and the most.
FEWEST, MOST = 2, 4
#: Relative residual at which the search ends; the eigenvalue errs by about its square over the relative gap.
TOLERANCE = 2e-2


def largest_curvature(
    gradients: dict[str, Tensor], leaves: dict[str, Tensor], before: Followed | None = None
) -> Followed | None:
    """Return the largest eigenpair of the Hessian from a gradient that can be differentiated again.

    Args:
        gradients: of the loss, with their graph.
        leaves: the parameters.
        before: what was found at an earlier moment; from it :data:`MOST` products are made, without it :data:`COLD`.

    Returns:
        Nothing where the loss has no second derivative.
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

    if before is not None and before.vectors.shape[1] == sum(sizes):
        return follow(apply, before, tolerance=TOLERANCE, min_products=FEWEST, max_products=MOST)
    like = next(iter(curved.values()))
    start = torch.randn(sum(sizes), generator=torch.Generator().manual_seed(0)).to(like.device, like.dtype)
    return begin(apply, start, tolerance=TOLERANCE, max_products=COLD)


class LargestCurvature(Quantity):
    """Largest eigenvalue of the Hessian on the probe, also against the learning rate in use.

    The first reading takes up to twenty products, each later one at most four.
    """

    name = "curvature"
    cost = 15
    describes = (
        Description(
            "curvature/largest",
            Kind.LOWER,
            "largest eigenvalue of the Hessian, attained by a vector found with at most 4 products",
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
            "curvature/converged", Kind.ESTIMATE, "1 if the residual is at most 2 % of the eigenvalue, otherwise 0"
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
        self.products = 0  # of the last reading

    def measure(self, moment: Snapshot) -> dict[str, float]:
        """Return the eigenvalue, its residual, and its ratio to the threshold if the learning rate is known."""
        look = moment.view.look(curved=True, statistics=False)
        before = None if moment.changed else self._before
        now = largest_curvature(look.gradients, look.leaves, before)
        if now is None:
            return {}
        self._before, self.products, value = now, now.products, now.value
        found = {
            "curvature/largest": value,
            "curvature/estimate": now.estimate,
            "curvature/residual": now.residual,
            "curvature/converged": float(now.converged),
        }
        rate = max(moment.rates.values(), default=0.0)
        return found | ({"curvature/over_threshold": value * rate / 2} if rate > 0.0 else {})
