"""The density of eigenvalues: known zeros and eigenpairs exactly, the rest by stochastic Lanczos quadrature."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import wasserstein_distance
from torch import Tensor

from normscope.curvature.directions import Directions
from normscope.linalg.accumulated import dots
from normscope.linalg.thick_restart import Eigenpairs, Quadrature, lanczos_quadrature

Apply = Callable[[Tensor], Tensor]
#: Largest residual, relative to its value, up to which a Ritz pair counts as an eigenpair.
NEAR = 0.1


@dataclass(frozen=True)
class Density:
    r"""The distribution of eigenvalues of a symmetric matrix of ``dimension`` rows.

    .. math:: \phi = \frac{r}{D} \delta_0 + \frac1D \sum_{i \le k} \delta_{\lambda_i} + \frac{D-r-k}{D} \phi_{rest}
    """

    dimension: int  #: ``D``
    zeros: int  #: ``r``, directions in which the matrix is known to vanish
    pairs: np.ndarray  #: eigenvalues that are known
    rules: tuple[Quadrature, ...]  #: one quadrature rule per probe for the rest

    @property
    def rest(self) -> float:
        """Return the share of the eigenvalues that is estimated."""
        return max(0.0, 1.0 - (self.zeros + len(self.pairs)) / self.dimension)

    def atoms(self, probe: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return places and masses, which sum to one; of one probe, or of all together."""
        rules = self.rules if probe is None else (self.rules[probe],)
        places = [np.zeros(1), self.pairs, *(rule.nodes for rule in rules)]
        masses = [np.array([self.zeros / self.dimension]), np.full(len(self.pairs), 1.0 / self.dimension)]
        masses += [self.rest * rule.weights / len(rules) for rule in rules]
        return np.concatenate(places), np.concatenate(masses)

    def share(self, low: float, high: float) -> tuple[float, float]:
        """Return the share of eigenvalues in ``[low, high]`` and its standard error over probes."""
        found = []
        for probe in range(max(1, len(self.rules))):
            places, masses = self.atoms(probe if self.rules else None)
            found.append(float(masses[(places >= low) & (places <= high)].sum()))
        error = float(np.std(found, ddof=1) / np.sqrt(len(found))) if len(found) > 1 else 0.0
        return float(np.mean(found)), error

    def quantile(self, q: float) -> float:
        """Return the eigenvalue below which a share ``q`` lies."""
        places, masses = self.atoms()
        order = np.argsort(places)
        reached = np.searchsorted(np.cumsum(masses[order]), q - 1e-12)
        return float(places[order][min(int(reached), len(order) - 1)])

    def distance(self, eigenvalues: np.ndarray) -> float:
        """Return the Wasserstein-1 distance to the distribution of given eigenvalues."""
        places, masses = self.atoms()
        return float(wasserstein_distance(places, eigenvalues, masses))


def spectral_density(
    apply: Apply,
    start: Tensor,
    *,
    steps: int = 30,
    probes: int = 4,
    directions: Directions | None = None,
    pairs: Eigenpairs | None = None,
    seed: int = 0,
) -> Density:
    """Return the density of eigenvalues from ``steps * probes`` products.

    Args:
        apply: multiplies a vector by the symmetric matrix.
        start: a vector of the right size, dtype and device; its content does not matter.
        steps: Lanczos steps of each probe.
        probes: random vectors.
        directions: directions known to be flat, which become the atom at zero.
        pairs: eigenpairs that are known. Of those with their basis (``keep_basis=True``) all Ritz pairs with a residual
            below :data:`NEAR` times their value are used, of others those that have converged.
        seed: of the probes.

    >>> d = torch.cat([torch.zeros(90), torch.ones(10)]).double()
    >>> found = spectral_density(lambda v: d * v, d, steps=5, probes=8)
    >>> round(found.share(0.5, 2.0)[0], 1)
    0.1
    """
    known = start[:0].reshape(0, start.numel())
    values, mixed = np.zeros(0), np.zeros((0, 0))
    if pairs is not None:
        known, values, mixed = _settled(pairs)
    inner = torch.as_tensor(mixed @ mixed.T, device=start.device)

    def project(vector: Tensor) -> Tensor:
        inside = vector.clone() if directions is None else directions.project(vector).clone()
        for _ in range(2 if len(values) else 0):
            inside -= (inner @ dots(known, inside)).to(inside.dtype) @ known
        return inside

    rules = []
    for probe in range(probes):
        generator = torch.Generator().manual_seed(1000 * seed + probe)
        random = torch.randn(start.numel(), generator=generator, dtype=torch.float64).to(start)
        rules.append(lanczos_quadrature(apply, random, steps, project=project))
    zeros = 0 if directions is None else directions.count
    return Density(start.numel(), zeros, values, tuple(rules))


def _settled(pairs: Eigenpairs) -> tuple[Tensor, np.ndarray, np.ndarray]:
    """Return orthonormal rows, eigenvalues, and the eigenvectors as combinations of the rows, in columns."""
    if pairs.basis is None or pairs.matrix is None:
        rows = pairs.vectors[torch.as_tensor(pairs.converged, device=pairs.vectors.device)]
        return rows, pairs.values[pairs.converged], np.eye(len(rows))
    values, mixed = np.linalg.eigh(pairs.matrix)
    near = pairs.coupling * np.abs(mixed[-1]) <= NEAR * np.abs(values)
    return pairs.basis, values[near], mixed[:, near]
