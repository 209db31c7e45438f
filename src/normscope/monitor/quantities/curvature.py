"""The largest eigenvalue of the Hessian on the probe, followed from one moment to the next."""

from __future__ import annotations

import torch
from torch import Tensor

from normscope.core.value import Kind
from normscope.linalg.thick_restart import Eigenpairs, eigenpairs
from normscope.monitor.quantity import Description, Quantity
from normscope.monitor.snapshot import Snapshot

#: The most products with the Hessian the first time.
COLD = 20
#: Products of a reading from a remembered vector: the fewest, on average, and the most.
FEWEST, USUAL, MOST = 3, 4, 10
#: Products that readings which needed fewer than usual leave for later ones: at the start, and at most.
GIVEN, SAVED = 16, 32
#: Relative residual at which the search ends; the eigenvalue errs by about its square.
TOLERANCE = 3e-2
#: Length of a random part, and of the gradient, added to a remembered unit vector: another direction may lead by now.
ADDED = 0.3


def largest_curvature(
    gradients: dict[str, Tensor], leaves: dict[str, Tensor], start: Tensor | None = None, most: int = USUAL
) -> Eigenpairs | None:
    """Return the largest eigenpair of the Hessian from a gradient that can be differentiated again.

    Args:
        gradients: of the loss, with their graph.
        leaves: the parameters.
        start: the eigenvector of an earlier moment; without one up to :data:`COLD` products are made.
        most: the most products from it.

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

    slope = torch.cat([part.detach().reshape(-1) for part in curved.values()])
    random = torch.randn(len(slope), generator=torch.Generator().manual_seed(0)).to(slope)
    if start is None or start.shape != random.shape:
        return eigenpairs(apply, random, largest=1, tolerance=TOLERANCE, max_products=COLD, size=COLD + 3)
    added = torch.nn.functional.normalize(torch.stack([random, slope])).sum(0)
    return eigenpairs(
        apply, start + ADDED * added, largest=1, tolerance=TOLERANCE, min_products=FEWEST, max_products=most,
        size=MOST + 3,
    )  # fmt: skip


class LargestCurvature(Quantity):
    """Largest eigenvalue of the Hessian on the probe, also against the learning rate in use.

    A reading takes four products on average: what easy ones leave over is kept for those that need more.
    """

    name = "curvature"
    cost = 15
    describes = (
        Description(
            "curvature/largest",
            Kind.LOWER,
            "largest eigenvalue of the Hessian, attained by a vector found with 4 products on average",
            signed=True,
        ),
        Description("curvature/residual", Kind.ESTIMATE, "distance within which an eigenvalue is guaranteed"),
        Description(
            "curvature/converged", Kind.ESTIMATE, "1 if the residual is at most 3 % of the eigenvalue, otherwise 0"
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
        self._vector: Tensor | None = None
        self._saved = GIVEN

    def measure(self, moment: Snapshot) -> dict[str, float]:
        """Return the eigenvalue, its residual, and its ratio to the threshold if the learning rate is known."""
        look = moment.view.look(curved=True, statistics=False)
        start = None if moment.changed else self._vector
        pairs = largest_curvature(look.gradients, look.leaves, start, min(MOST, USUAL + self._saved))
        if pairs is None or not len(pairs.values):
            return {}
        if start is not None:
            self._saved = max(0, min(SAVED, self._saved + USUAL - pairs.products))
        self._vector = pairs.vectors[0]
        value = float(pairs.values[0])
        found = {
            "curvature/largest": value,
            "curvature/residual": float(pairs.residuals[0]),
            "curvature/converged": float(pairs.converged[0]),
        }
        rate = max(moment.rates.values(), default=0.0)
        return found | ({"curvature/over_threshold": value * rate / 2} if rate > 0.0 else {})
