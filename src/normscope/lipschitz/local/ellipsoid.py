"""Ranges on a ball: an ellipsoid that contains the input and the remainders of all units so far."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.linalg.matrix_rounding import gamma
from normscope.lipschitz.local.first_layer import FirstLayer, first_guess, is_large

#: Part of the definiteness of the form that is given up, so that rounding cannot matter.
ROOM = 1e-3
#: Mean relative gain of the ranges below which no more shares are tried.
WORTHWHILE = 0.03
#: How much of a new unit's share of the ellipsoid its input may fill.
FILL = 0.3
#: Sides up to which all eigenvalues are computed, and products with a vector for the largest one otherwise.
SMALL, POWER = 300, 20


def padded_columns(rows: Tensor, columns: int) -> Tensor:
    """Return rows with zeros up to a number of columns."""
    missing = columns - rows.shape[1]
    return rows if not missing else torch.cat([rows, rows.new_zeros(len(rows), missing)], 1)


@dataclass(frozen=True, eq=False)
class CentredRows:
    """Rows over (x, w), relative to the middles of the sectors."""

    rows: Tensor  #: the rows
    error: float  #: bound on the Frobenius norm of the error of all of them, those of all units included
    across: Tensor  #: products of the rows of all units with them, over x alone

    def kept(self, chosen: Tensor) -> CentredRows:
        """Return some of the rows."""
        return CentredRows(self.rows[chosen], self.error, self.across[:, chosen])


@statement("normscope", "LOCAL-1", holds="every remainder in its secant sector; rounding included")
class Ellipsoid:
    r"""The set of (x, w) with :math:`|x| \le 1` and :math:`|w_u| \le \rho_u |q_u|`, :math:`q = M (x, w)`, from outside.

    For :math:`t > 0` and :math:`D = \mathrm{diag}(1, t)` with :math:`R = \mathrm{diag}(t) - m D m^T > 0`,
    :math:`m = \mathrm{diag}(\rho) M`, every such (x, w) has :math:`a \cdot (x, w) \le \sqrt{a^T \Sigma a}` with
    :math:`\Sigma = D + D m^T R^{-1} m D`. Remainders are given relative to a nominal slope as sectors around
    :math:`c`: :math:`e = c q + w`.

    Args:
        inputs: number of entries of x.
    """

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.first: FirstLayer | None = None  # units that became inputs
        none = torch.zeros(0, dtype=torch.float64)
        self.rows = torch.zeros(0, inputs, dtype=torch.float64)  # q of every unit's entries, over (x, w)
        self.centre, self.radius, self.t = none, none, none
        self.factor = torch.zeros(0, 0, dtype=torch.float64)
        self.gram = torch.zeros(0, 0, dtype=torch.float64)  # of the parts of the rows that belong to x
        self.blocks: list[tuple[int, int]] = []  # of entries that do not feed one another, but all later ones
        self._errors: list[float] = []  # of the rows of each block and of those before it
        self._size = 0.0  # Frobenius norm of the rows
        self._raised, self._carried = (
            _SpectralNormBound(),
            _SpectralNormBound(),
        )  # of the rows times the middles, on either side
        self.error = self.raw_error = 0.0  # Frobenius norm of the error of the rows, and of the raw ones
        self.weighted = 0.0  # Frobenius norm of the raw rows times the middles of the sectors

    def __len__(self) -> int:
        return len(self.t)

    def centred(self, raw: Tensor, error: float = 0.0) -> CentredRows:
        """Return rows over (x, e) as rows over (x, w).

        Args:
            raw: the rows.
            error: Frobenius norm of their error.
        """
        return self._centred(*self._taken(raw, error))

    def _centred(self, raw: Tensor, error: float) -> CentredRows:
        r"""Return centred rows.

        With N and M the raw and centred rows of all units, :math:`M = (1 - N_w c)^{-1} N`, so an error E of N makes
        one of at most :math:`(1 + \|M_w c\|)(1 + \|c M\|) \|E\|` in M.
        """
        if not len(self):
            return CentredRows(raw, error, self._across(raw))
        weighted = raw[:, self.inputs :] * self.centre
        found = raw.clone()
        for i, j in self.blocks:  # the rows of a block are zero from its own entries on
            found[:, : self.inputs + i] += weighted[:, i:j] @ self.rows[i:j, : self.inputs + i]
        return CentredRows(found, self._centred_error(weighted, error), self._across(found))

    def _centred_error(self, weighted: Tensor, error: float) -> float:
        """Return the error of centred rows, from the raw ones times the middles of the sectors and from their error."""
        rounding = gamma(len(self) + 4) * math.hypot(self.weighted, float(weighted.norm())) * self._size
        moved = math.hypot(self.raw_error, error) * (1 + self._carried.norm)
        return 1.01 * (1 + self._raised.norm) * (moved + rounding)

    def _taken(self, raw: Tensor, error: float) -> tuple[Tensor, float]:
        """Return rows and their error with units of a first layer as inputs."""
        raw = padded_columns(raw, self.inputs + len(self))
        if self.first is None:
            return raw, error
        found = self.first.applied(raw)
        return found, self.first.error_of(raw, found, error)

    def radii(self, given: CentredRows, solved: Tensor | None = None) -> Tensor:
        r"""Return bounds of :math:`a \cdot (x, w)` for rows a; what :meth:`_solved` returns may be given."""
        return _above(self._squares(given, solved), given.error * self._stretch())

    def reached(self, raw: Tensor) -> Tensor:
        r"""Return bounds of what the remainders alone add up to, :math:`a \cdot e` for rows a.

        Centred, they are rows :math:`a c M_x` over x, of which only products with :math:`M_x` are needed: the Gram
        matrix of the latter has them.
        """
        weighted, rows = raw * self.centre, raw.clone()
        for i, j in self.blocks[1:]:
            rows[:, :i] += weighted[:, i:j] @ self.rows[i:j, self.inputs : self.inputs + i]
        across = self.gram @ weighted.T
        through = self.radius[:, None] * (across + self._onward(self.t[:, None] * rows.T))
        solved = torch.linalg.solve_triangular(self.factor, through, upper=False)
        squares = (across * weighted.T).sum(0) + rows.square() @ self.t + solved.square().sum(0)
        # Sums of products of both signs: their rounding is relative to the rows, not to the sums.
        lost = 2 * math.sqrt(gamma(self.inputs + 2 * len(self) + 16)) * self._size
        return _above(squares, self._centred_error(weighted, 0.0) * self._stretch()) + lost * weighted.norm(dim=1)

    def _stretch(self) -> float:
        """Return a bound on the square root of the norm of the matrix of the ellipsoid."""
        return max(1.0, float(self.t.max()) ** 0.5 if len(self) else 1.0) * (ROOM**-0.5 if len(self) else 1.0)

    def _across(self, rows: Tensor) -> Tensor:
        """Return the products of the rows of all units with other rows, over x alone."""
        return self.rows[:, : self.inputs] @ rows[:, : self.inputs].T

    def _through(self, rows: Tensor, across: Tensor) -> Tensor:
        """Return ``m D a`` for rows a with known products over x, as columns."""
        return self.radius[:, None] * (across + self._onward(self.t[:, None] * rows[:, self.inputs :].T))

    def _onward(self, w: Tensor) -> Tensor:
        """Return what remainders, as columns, add to the inputs of all units: each reads those before it alone."""
        found = w.new_zeros(len(self), w.shape[1])
        for i, j in self.blocks[1:]:
            found[i:j] = self.rows[i:j, self.inputs : self.inputs + i] @ w[:i]
        return found

    def _back(self, q: Tensor) -> Tensor:
        """Return the adjoint of :meth:`_onward`."""
        found = q.new_zeros(len(self), q.shape[1])
        for i, j in self.blocks[1:]:
            found[:i] += self.rows[i:j, self.inputs : self.inputs + i].T @ q[i:j]
        return found

    def _squares(self, given: CentredRows, solved: Tensor | None = None) -> Tensor:
        """Return the quadratic form at each row; what :meth:`_solved` returns may be given."""
        rows = given.rows
        plain = rows[:, : self.inputs].square().sum(1)
        if not len(self):
            return plain
        solved = self._solved(given) if solved is None else solved
        return plain + rows[:, self.inputs :].square() @ self.t + solved.square().sum(0)

    def _solved(self, given: CentredRows) -> Tensor:
        """Return the columns whose squares are the part of the quadratic form with the inverse of R."""
        return torch.linalg.solve_triangular(self.factor, self._through(given.rows, given.across), upper=False)

    def grow(
        self,
        raw: Tensor,
        centre: Tensor,
        radius: Tensor,
        error: float,
        centred: CentredRows | None = None,
        *,
        asked: Tensor | None = None,
    ) -> None:
        """Add units with their rows and secant sectors.

        Args:
            raw: their inputs over (x, e).
            centre: middle of each sector.
            radius: half of its width.
            error: Frobenius norm of the error of the raw rows.
            centred: their rows as :meth:`centred` returned them, if no other units were added since.
            asked: rows over (x, e) whose ranges come next: for them a large first layer is absorbed into the input.
        """
        u, old = len(raw), len(self)
        if not u:
            return
        if asked is not None and self._took_in(raw, centre, radius, error, asked):
            return
        raw, error = self._taken(raw, error)
        if centred is None:
            centred = self._centred(raw, error)
        rows, self.error, over_x = centred.rows, centred.error, centred.across
        self.raw_error = math.hypot(self.raw_error, error)
        if old:
            self.weighted = math.hypot(self.weighted, float((raw[:, self.inputs :] * self.centre).norm()))
        m = radius[:, None] * rows
        own = rows[:, : self.inputs] @ rows[:, : self.inputs].T
        P = radius[:, None] * own * radius + (m[:, self.inputs :] * self.t) @ m[:, self.inputs :].T
        across = torch.zeros(u, 0, dtype=torch.float64)
        if old:
            across = torch.linalg.solve_triangular(self.factor, self._through(m, over_x * radius), upper=False).T
            P = P + across @ across.T
        P = (P + P.T) / 2
        t = _shares(P, (1e-3 * radius * float(rows.norm(dim=1).max())).square())
        block = -P
        block.diagonal().add_((1 - ROOM) * t)
        lower = torch.linalg.cholesky(block)
        self.factor = _stacked(old + u, self.factor, torch.cat([-across, lower], 1))
        self.rows = _stacked(self.inputs + old + u, self.rows, rows)
        self.centre, self.radius = torch.cat([self.centre, centre]), torch.cat([self.radius, radius])
        self.t = torch.cat([self.t, t])
        self.blocks.append((old, old + u))
        self._errors.append(self.error)
        self.gram = _stacked(old + u, self.gram, torch.cat([over_x.T, own], 1))
        self.gram[:old, old:] = over_x
        self._size = math.hypot(self._size, float(rows.norm()))
        self._raised.add((rows[:, self.inputs :] * self.centre[:old]).abs_())
        self._carried.add((centre[:, None] * rows).abs_())

    def _took_in(self, raw: Tensor, centre: Tensor, radius: Tensor, error: float, asked: Tensor) -> bool:
        """Absorb a large first layer into the input, and return whether that was done."""
        if self.first is not None or len(self) or not is_large(len(raw), self.inputs):
            return False
        asked = padded_columns(asked, self.inputs + len(raw))
        along = asked[:, : self.inputs].norm(dim=1, keepdim=True)  # what counts is the change relative to it
        asked = torch.where(along > 0, asked / along, 0.0)
        guess = first_guess(raw, radius, asked, centre)
        self.first = FirstLayer.of(raw, centre, radius, guess, error)
        if self.first is None:
            return False
        self.inputs += len(raw)
        self.rows = self.rows.new_zeros(0, self.inputs)
        return True

    def room_needed(self) -> float:
        """Return the rounding error relative to the margin reserved for it: the ellipsoid is valid up to one."""
        if not len(self):
            return 0.0
        m = self.radius[:, None] * self.rows
        root, moved = self.t.sqrt(), 0.0
        for (i, j), error in zip(self.blocks, self._errors, strict=True):  # each reads the input and those before it
            most = max(1.0, float(root[:i].max()) if i else 1.0)
            moved = math.hypot(moved, float((self.radius / root)[i:j].max()) * error * most)
        size = float((m * torch.cat([m.new_ones(self.inputs), self.t.sqrt()]) / self.t.sqrt()[:, None]).square().sum())
        rounding = gamma(m.shape[1] + len(self) + 16) * (size + 3 * len(self))
        return (2.1 * moved + rounding) / ROOM

    def refactored(self, t: Tensor) -> bool:
        """Replace the shares if the form stays definite, and return whether it does."""
        after = self.rows[:, self.inputs :]
        R = self.gram.clone()
        for place, (i, j) in enumerate(self.blocks):
            weighed = after[i:j, :i] * t[:i]
            for k, m in self.blocks[1 : place + 1]:
                part = weighed[:, :k] @ after[k:m, :k].T
                R[i:j, k:m] += part
                if k < i:
                    R[k:m, i:j] += part.T
        R *= -self.radius[:, None]
        R *= self.radius
        R.diagonal().add_((1 - ROOM) * t)
        factor, info = torch.linalg.cholesky_ex(R)
        if int(info):
            return False
        self.t, self.factor = t, factor
        return True

    def tuned(self, given: CentredRows, rounds: int) -> Tensor:
        """Return bounds as :meth:`radii` does, the smallest over some rounds of better shares for these rows."""
        rows, across = given.rows, given.across
        if not len(self) or not len(rows):
            return self.radii(given)
        solved = self._solved(given)
        best = self.radii(given, solved)
        level, kept = float(best.log().mean()), (self.t, self.factor)
        for _ in range(rounds):
            back = self.radius[:, None] * torch.linalg.solve_triangular(self.factor.T, solved, upper=True)
            scale = best.clamp_min(1e-300)
            w = self.t[:, None] * (rows[:, self.inputs :].T + self._back(back)) / scale
            q = self.radius[:, None] * ((across + self.gram @ back) / scale + self._onward(w))
            free, held = (v.square().sum(1) for v in (w, q))
            floor = 1e-6 * (held.mean() + free.mean()) + 1e-300  # units that do neither stay as they are
            move = ((held + floor) / (free + floor)).clamp(0.05, 20.0).sqrt()
            if not self.refactored(self.t * move):
                break
            solved = self._solved(given)
            radii = self.radii(given, solved)
            best = torch.minimum(best, radii)
            gained, level = level - float(radii.log().mean()), min(level, float(radii.log().mean()))
            if gained > 0:
                kept = (self.t, self.factor)
            if gained < WORTHWHILE:
                break
        self.t, self.factor = kept
        return best


def _shares(P: Tensor, least: Tensor) -> Tensor:
    """Return shares of new units: the more they read, the larger.

    Args:
        P: the form of what they read; its diagonal has the squares.
        least: lower limits of the shares, however little a unit reads: rounding is relative to units that read more.
    """
    root = P.diagonal().clamp_min(0).sqrt()
    share = torch.maximum(0.5 * root * root.sum() + 0.5 * P.abs().sum(1) + 1e-30, least)
    side = share.sqrt()
    return share * (largest(P / side[:, None] / side) / FILL + 1e-30)


def _stacked(columns: int, above: Tensor, below: Tensor) -> Tensor:
    """Return two matrices on top of each other, filled with zeros up to a number of columns."""
    found = above.new_zeros(len(above) + len(below), columns)
    found[: len(above), : above.shape[1]] = above
    found[len(above) :, : below.shape[1]] = below
    return found


def largest(matrix: Tensor) -> float:
    """Estimate the largest eigenvalue of a positive semidefinite matrix; the estimate is not certified."""
    if len(matrix) <= SMALL:
        return float(torch.linalg.eigvalsh(matrix)[-1])
    v = matrix.abs().sum(1)
    for _ in range(POWER):
        v = matrix @ (v / v.norm())
    return 1.1 * float(v.norm())


class _SpectralNormBound:
    """Sums of the absolute entries of a matrix to which rows are added, and a bound on its spectral norm."""

    def __init__(self) -> None:
        self.columns = torch.zeros(0, dtype=torch.float64)
        self.largest_row = self.frobenius = 0.0

    def add(self, size: Tensor) -> None:
        """Add rows, given by their absolute entries; the earlier ones are zero in new columns."""
        if not size.numel():
            return
        columns = size.sum(0)
        columns[: len(self.columns)] += self.columns
        self.columns = columns
        self.largest_row = max(self.largest_row, float(size.sum(1).max()))
        self.frobenius = math.hypot(self.frobenius, float(size.norm()))

    @property
    def norm(self) -> float:
        """Return the Frobenius norm, or the root of the largest row sum times the largest column sum if smaller."""
        schur = math.sqrt(float(self.columns.max()) * self.largest_row) if len(self.columns) else 0.0
        return min(schur, self.frobenius) * (1 + 1e-12)


def _above(squares: Tensor, pad: float) -> Tensor:
    """Return roots, raised by their rounding and by a pad."""
    return squares.clamp_min(0).sqrt() * (1 + 1e-7) + pad
