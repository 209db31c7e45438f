"""The largest eigenvalue of the Hessian on the probe, followed from one moment to the next."""

from __future__ import annotations

import torch
from torch import Tensor

from normscope.core.value import Kind
from normscope.linalg.thick_restart import Eigenpairs, eigenpairs
from normscope.monitor.quantity import Description, Quantity
from normscope.monitor.snapshot import Snapshot

#: The most products with the Hessian the first time, and from a remembered vector.
COLD, WARM = 20, 4
#: Relative residual at which the search ends.
TOLERANCE = 1e-2
#: Length of the random part added to a remembered unit vector, so that another leading direction is found.
JITTER = 0.02


def largest_curvature(
    gradients: dict[str, Tensor], leaves: dict[str, Tensor], start: Tensor | None = None
) -> Eigenpairs | None:
    """Return the largest eigenpair of the Hessian from a gradient that can be differentiated again.

    Args:
        gradients: of the loss, with their graph.
        leaves: the parameters.
        start: the eigenvector of an earlier moment; from it at most :data:`WARM` products are made.

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

    example = next(iter(curved.values()))
    random = torch.randn(sum(sizes), generator=torch.Generator().manual_seed(0)).to(example.device, example.dtype)
    warm = start is not None and start.shape == random.shape
    mixed = start + JITTER * random / len(random) ** 0.5 if warm and start is not None else random
    return eigenpairs(apply, mixed, largest=1, tolerance=TOLERANCE, max_products=WARM if warm else COLD, size=COLD + 3)


class LargestCurvature(Quantity):
    """Largest eigenvalue of the Hessian on the probe, also against the learning rate in use."""

    name = "curvature"
    cost = 15
    describes = (
        Description(
            "curvature/largest",
            Kind.LOWER,
            "largest eigenvalue of the Hessian, attained by the vector found with at most 4 products",
            signed=True,
        ),
        Description("curvature/residual", Kind.ESTIMATE, "distance within which an eigenvalue is guaranteed"),
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

    def measure(self, moment: Snapshot) -> dict[str, float]:
        """Return the eigenvalue, its residual, and its ratio to the threshold if the learning rate is known."""
        look = moment.view.look(curved=True, statistics=False)
        pairs = largest_curvature(look.gradients, look.leaves, None if moment.changed else self._vector)
        if pairs is None or not len(pairs.values):
            return {}
        self._vector = pairs.vectors[0]
        found = {"curvature/largest": float(pairs.values[0]), "curvature/residual": float(pairs.residuals[0])}
        rate = max(moment.rates.values(), default=0.0)
        return found | ({"curvature/over_threshold": float(pairs.values[0]) * rate / 2} if rate > 0.0 else {})
