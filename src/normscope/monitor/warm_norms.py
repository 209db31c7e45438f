"""Spectral norms of weights in training: Lanczos, started from the previous vector."""

import torch
from torch import Tensor

from normscope.linalg.lanczos import attained_norm, lanczos_norm
from normscope.monitor.view import MapOf

#: The most Lanczos steps the first time, and from a remembered vector; if that is still good, four are enough.
COLD, WARM = 24, 16
#: Estimated relative error at which the iteration from a remembered vector stops.
SETTLED = 3e-3
#: Lanczos steps of a norm that is measured without memory.
ALONE = 48
#: Length of the random vector added to a remembered unit vector, to find the leading direction again if it changes.
JITTER = 0.05


def followed_norm(
    map_of: MapOf, start: Tensor | None = None, *, steps: int | None = None, seed: int = 0
) -> tuple[float, Tensor]:
    r"""Return an attained value of the norm of a map, and the vector that attains it.

    A few Lanczos steps in float32 find the vector ``v``; its stretch :math:`\|A v\|/\|v\|` is taken in float64 and
    lowered by its rounding, so the value is never above the norm. The previous vector, if there is one, is mixed
    with a random one. There are at most :data:`COLD` steps without it and :data:`WARM` with it.

    >>> from normscope.operators.linear_map import LinearMap
    >>> A = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    >>> norm, vector = followed_norm(lambda dtype: LinearMap.from_matrix(A.to(dtype)))
    >>> round(norm, 9), vector.abs().round(decimals=6).tolist()
    (3.0, [1.0, 0.0])
    """
    fast = map_of(torch.float32)
    dimension = min(fast.domain_dimension, fast.range_dimension)
    if start is None or start.numel() != dimension:
        mixed, count, tolerance = None, COLD, 1e-4
    else:
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(dimension, generator=generator).to(start)
        mixed, count, tolerance = start + (JITTER / dimension**0.5) * noise, WARM, SETTLED
    run = lanczos_norm(fast, start=mixed, max_steps=count if steps is None else steps, seed=seed, tolerance=tolerance)
    exact = map_of(torch.float64)
    side = exact if exact.domain_dimension <= exact.range_dimension else exact.transpose
    vector = run.vector.to(torch.float64)
    return attained_norm(side, vector.reshape(side.domain_shape)), run.vector


class WarmNorms:
    """Norms of maps that change little from one time to the next.

    Args:
        remember: start each norm from its previous vector; otherwise from the same random vector each time, so
            that a norm depends on its map alone: a run that is stopped and resumed measures the same.

    >>> from normscope.operators.linear_map import LinearMap
    >>> norms = WarmNorms()
    >>> [round(norms.measure("w", lambda d: LinearMap.from_matrix(s * torch.eye(2, dtype=d))), 6) for s in (1, 2)]
    [1.0, 2.0]
    """

    def __init__(self, *, remember: bool = True) -> None:
        self.remember = remember
        self._vectors: dict[str, Tensor] = {}
        self._times: dict[str, int] = {}

    def measure(self, name: str, map_of: MapOf) -> float:
        """Return an attained value of the norm of a map; its vector is remembered by the name."""
        if not self.remember:
            return followed_norm(map_of, steps=ALONE)[0]
        times = self._times.get(name, 0)
        norm, vector = followed_norm(map_of, self._vectors.get(name), seed=times)
        self._times[name] = times + 1
        if bool(torch.isfinite(vector).all()):
            self._vectors[name] = vector
        return norm
