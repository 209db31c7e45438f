"""Mean, standard deviation and root mean square of the rows of a matrix, with proved enclosures."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from normscope.core.rounding import UNIT, sum_units, tree_sum


@dataclass(frozen=True)
class RowSpread:
    """The deviations of each row from its centre and their root mean square, with enclosure."""

    direction: Tensor  #: deviations of shape (rows, n), each row divided by a power of two near its largest entry
    value: Tensor  #: the root mean square of the deviations, of shape (rows,)
    low: Tensor  #: a proved lower bound of it; exactly zero where the row has no deviation
    high: Tensor  #: a proved upper bound of it
    direction_error: Tensor  #: bound on the relative error of each row of ``direction`` in the 2-norm


def standard_deviation(x: Tensor) -> RowSpread:
    r"""Return the centred rows and the biased standard deviation ``sigma`` of each row.

    ``sigma^2 = (1/n) sum_i (x_i - mean)^2``. The mean is subtracted twice: after the first time the numbers are
    small, ``fl(x_i - m) = (x_i - m)(1 + delta)``, so the second subtraction leaves an error relative to the
    deviations themselves, not to the mean; a row ``1e8 + noise`` loses nothing.

    Returns:
        The :class:`RowSpread`, whose ``low`` and ``high`` enclose ``sigma`` of the exact real numbers in ``x``.

    >>> s = standard_deviation(torch.tensor([[1.0, 3.0], [5.0, 5.0]], dtype=torch.float64))
    >>> s.value.tolist(), s.low[1].item()
    ([1.0, 0.0], 0.0)
    """
    n = x.shape[-1]
    x, exponent = _scaled(x)
    first = x - (tree_sum(x) / n)[..., None]
    second = first - (tree_sum(first) / n)[..., None]
    constant = (x == x[..., :1]).all(dim=-1)
    second = torch.where(constant[..., None], torch.zeros_like(second), second)
    rough = (tree_sum(first**2) / n).sqrt()
    return _spread(second, torch.where(constant, torch.zeros_like(rough), rough), exponent)


def root_mean_square(x: Tensor) -> RowSpread:
    """Return ``rms = ||x|| / sqrt(n)`` of each row (its deviations from zero are the row itself).

    >>> root_mean_square(torch.tensor([[3.0, -3.0]], dtype=torch.float64)).value.item()
    3.0
    """
    x, exponent = _scaled(x)
    return _spread(x, torch.zeros_like(x[..., 0]), exponent)


def _scaled(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row divided by a power of two above its largest entry, and the exponents (squares then fit)."""
    exponent = torch.frexp(x.abs().amax(dim=-1)).exponent
    return _ldexp(x, -exponent[..., None]), exponent


def _ldexp(x: Tensor, exponent: Tensor) -> Tensor:
    """Return ``x 2^exponent``, exactly (``torch.ldexp`` forms the power in float32 and may round or overflow)."""
    return torch.from_numpy(np.ldexp(x.numpy(), exponent.numpy()))


def _spread(deviations: Tensor, rough: Tensor, exponent: Tensor) -> RowSpread:
    """Return the spread of scaled deviations that were computed from numbers of root mean square ``rough``."""
    n = deviations.shape[-1]
    deviations, shift = _scaled(deviations)
    value = (tree_sum(deviations**2) / n).sqrt()
    rough = _ldexp(rough, -shift)
    units = sum_units(n) * UNIT
    error = units * (value + rough)
    low, high = (value - error).clamp_min(0.0), value + error
    moving = value > 0
    relative = torch.where(moving, error / torch.where(moving, value, 1.0), 0.0)
    back = exponent + shift
    return RowSpread(deviations, _ldexp(value, back), _ldexp(low, back), _ldexp(high, back), relative)


def inverse_scale(std_low: Tensor, eps: float) -> Tensor:
    """Return an upper bound of ``1 / sqrt(std^2 + eps)`` for every ``std >= std_low``; infinity for ``0 / 0``.

    >>> inverse_scale(torch.tensor([0.0, 3.0], dtype=torch.float64), 16.0).tolist()[1] >= 0.2
    True
    """
    root = torch.hypot(std_low, torch.full_like(std_low, eps).sqrt())
    return torch.nextafter((1.0 / root) * (1.0 + 16.0 * UNIT), torch.full_like(root, torch.inf))
