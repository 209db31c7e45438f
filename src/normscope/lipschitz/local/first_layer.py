"""A first layer with very many units, absorbed into the input: later layers see inputs instead of uncertain slopes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.linalg.cholesky import cholesky_margin
from normscope.linalg.matrix_rounding import gamma

#: Number of units from which a first layer is absorbed into the input, if it has more units than inputs.
MANY = 1_000
#: Part of the definiteness of the form that is given up, so that rounding cannot matter.
ROOM = 1e-6
#: Least eigenvalue of the form, and a bound on the norm of the inverse of its factor.
LEAST, INVERSE = 0.15, 2.7
#: Smallest and largest fraction of the form that multipliers may use up.
LEAST_FILL, MOST_FILL = 0.05, 0.75
#: How often multipliers are halved until the form is definite.
HALVINGS = 4
#: Products with a vector for the largest eigenvalue.
POWER = 20


def is_large(units: int, inputs: int) -> bool:
    """Return whether a first layer has so many units that it is absorbed into the input."""
    return units >= max(MANY, inputs)


@statement("normscope", "LOCAL-14", holds="units that read the input alone, each in its sector; rounding included")
@dataclass(frozen=True, eq=False)
class FirstLayer:
    r"""The pairs (x, e) with :math:`e_u = c_u q_u + v_u`, :math:`|v_u| \le \rho_u |q_u|`, :math:`q = B x`.

    For :math:`T > 0` with :math:`C C^T = 1 - B^T \mathrm{diag}(\rho^2 T) B` the pair
    :math:`(\tilde x, \tilde v) = (C^T x, T^{1/2} v)` has at most the norm of x. A row a over (x, e) is the row
    :math:`((a_x + a_e c B) C^{-T}, a_e T^{-1/2})` over it.

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> layer = FirstLayer.of(one[None], 0 * one, one, one / 2)
    >>> round(layer.applied(torch.ones(1, 2, dtype=torch.float64)).norm().item(), 4)  # x + e with |e| <= |x|
    2.0
    """

    rows: Tensor  #: B
    centre: Tensor  #: c
    radius: Tensor  #: :math:`\rho`
    multipliers: Tensor  #: T
    factor: Tensor  #: C
    error: float = 0.0  #: bound on the Frobenius norm of the error of B

    @classmethod
    def of(
        cls, rows: Tensor, centre: Tensor, radius: Tensor, multipliers: Tensor, error: float = 0.0
    ) -> FirstLayer | None:
        """Return the layer with these multipliers, or the largest part of them for which the form is definite.

        Returns:
            The layer; ``None`` if rounding is too large for it.
        """
        n, T = rows.shape[1], multipliers * min(1.0, MOST_FILL / _fill(rows, radius, multipliers))
        for _ in range(HALVINGS):
            m = (radius * T.sqrt())[:, None] * rows
            form = -(m.T @ m)
            form.diagonal().add_(1 - ROOM)
            size, heaviest = float(m.norm()) * (1 + 1e-9), float((radius * T.sqrt()).max()) * (1 + 1e-12)
            lost = gamma(len(rows) + 8) * size * size + gamma(4) * n + 2 * cholesky_margin(n, float(n))
            moved = 2 * size * heaviest * error + (heaviest * error) ** 2
            least = form.clone()
            least.diagonal().sub_(LEAST)
            if lost + moved <= ROOM and not int(torch.linalg.cholesky_ex(least)[1]):
                return cls(rows, centre, radius, T, torch.linalg.cholesky(form), error)
            T = T / 2
        return None

    @property
    def units(self) -> int:
        """Return the number of units."""
        return len(self.rows)

    def applied(self, raw: Tensor) -> Tensor:
        """Return rows over (x, e, rest) as rows over the pair and the rest."""
        n, end = self.rows.shape[1], self.rows.shape[1] + self.units
        plain = raw[:, :n] + (raw[:, n:end] * self.centre) @ self.rows
        plain = torch.linalg.solve_triangular(self.factor.T, plain, upper=True, left=False)
        return torch.cat([plain, raw[:, n:end] / self.multipliers.sqrt(), raw[:, end:]], 1)

    def error_of(self, raw: Tensor, found: Tensor, error: float) -> float:
        """Return a bound on the error of transformed rows.

        Args:
            raw: the rows.
            found: the rows after :meth:`applied`.
            error: Frobenius norm of the error of the rows.
        """
        n, end = self.rows.shape[1], self.rows.shape[1] + self.units
        weighted = float((raw[:, n:end] * self.centre).norm()) * (1 + 1e-9)
        size = float(self.rows.norm()) * (1 + 1e-9)
        steepest, widest = float(self.centre.abs().max()), float(self.multipliers.min()) ** -0.5
        carried = error * (1 + INVERSE * (1 + steepest * (size + self.error)) + widest)
        product = INVERSE * weighted * (self.error + gamma(self.units + 4) * (size + self.error))
        solved = gamma(n + 8) * (1 + INVERSE) * n**0.5 * float(found.norm())
        return (carried + product + solved) * (1 + 1e-6)

    def better(self, inputs: Tensor) -> Tensor:
        """Return other multipliers: larger where the units fill their sectors least.

        Args:
            inputs: columns (x, v) as the pair, those at which a bound is attained.
        """
        n = self.rows.shape[1]
        q = self.rows @ torch.linalg.solve_triangular(self.factor.T, inputs[:n], upper=True)
        free = (inputs[n:] / self.multipliers.sqrt()[:, None]).square().sum(1)
        held = (self.radius[:, None] * q).square().sum(1)
        free, held = free * self.multipliers, held * self.multipliers  # each in its own unit
        floor = 1e-6 * (free.mean() + held.mean()) + 1e-300
        return self.multipliers * ((free + floor) / (held + floor)).clamp(0.05, 20.0) ** 0.35


def first_guess(rows: Tensor, radius: Tensor, raw: Tensor, centre: Tensor) -> Tensor:
    r"""Return multipliers for a first layer that keep some rows over (x, e) small after the transformation.

    With :math:`T = s d`, d from the sizes of what each unit reads and does, the rows along x grow by at most
    :math:`(1 - f)^{-1/2}`, those along v by :math:`(\lambda / f)^{1/2}` with :math:`f = s \lambda` the part of the form
    that is used up: their squares together are least at :math:`f = \sqrt b / (\sqrt a + \sqrt b)`.

    Args:
        rows: B.
        radius: half widths of the sectors.
        raw: the rows over (x, e).
        centre: middles of the sectors.
    """
    n, end = rows.shape[1], rows.shape[1] + len(rows)
    does, reads = raw[:, n:end].norm(dim=0), radius * rows.norm(dim=1)
    size, reads = does * reads, reads.clamp_min(1e-30)
    d = size.clamp_min(1e-4 * float(size.max()) + 1e-30) / reads.square()
    top = _fill(rows, radius, d)
    plain = float((raw[:, :n] + (raw[:, n:end] * centre) @ rows).norm())
    moved = float((raw[:, n:end] / d.sqrt()).norm()) * top**0.5
    fill = moved / (plain + moved) if plain + moved > 0 else 0.5
    return d * (min(max(fill, LEAST_FILL), MOST_FILL) / top)


def _fill(rows: Tensor, radius: Tensor, T: Tensor) -> float:
    r"""Return about the norm of :math:`B^T \mathrm{diag}(\rho^2 T) B`; an estimate, not a bound."""
    weight = (radius.square() * T)[:, None]
    v = rows.abs().T @ weight
    for _ in range(POWER):
        v = rows.T @ (weight * (rows @ (v / (v.norm() + 1e-300))))
    return 1.05 * float(v.norm()) + 1e-300
