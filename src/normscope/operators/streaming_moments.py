"""Streaming moments: mean, variance and extremes per channel, merged batch by batch in constant memory."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(eq=False)
class Moments:
    """Mean, biased variance and extremes of each channel over all samples and places seen so far.

    The merge is Chan's: with counts n, m and difference d of the means,
    ``M2 = M2_a + M2_b + d^2 n m / (n + m)``, in float64.

    >>> moments = Moments()
    >>> moments.update(torch.tensor([[1.0], [2.0]]))
    >>> moments.update(torch.tensor([[6.0]]))
    >>> moments.mean.tolist(), round(moments.variance.item(), 12)
    ([3.0], 4.666666666667)
    """

    count: int = 0
    mean: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    squares: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    low: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    high: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))

    @property
    def variance(self) -> Tensor:
        """Return the biased variance of each channel."""
        return self.squares / max(self.count, 1)

    def update(self, rows: Tensor) -> None:
        """Add observations.

        Args:
            rows: shape (observations, channels).
        """
        rows = rows.detach().to(torch.float64)
        n = rows.shape[0]
        if n == 0:
            return
        mean = rows.mean(0)
        squares = (rows - mean).square().sum(0)
        low, high = rows.amin(0), rows.amax(0)
        if self.count == 0:
            self.count, self.mean, self.squares, self.low, self.high = n, mean, squares, low, high
            return
        total = self.count + n
        difference = mean - self.mean
        self.squares = self.squares + squares + difference.square() * (self.count * n / total)
        self.mean = self.mean + difference * (n / total)
        self.low, self.high = torch.minimum(self.low, low), torch.maximum(self.high, high)
        self.count = total


def channel_rows(x: Tensor, axis: int) -> Tensor:
    """Return a tensor as (observations, channels), the channels along ``axis``; a number is one channel seen once.

    >>> channel_rows(torch.ones(2, 3, 4), 1).shape, channel_rows(torch.tensor(1.0), 0).shape
    (torch.Size([8, 3]), torch.Size([1, 1]))
    """
    if x.ndim == 0:
        return x.reshape(1, 1)
    return x.movedim(axis, -1).reshape(-1, x.shape[axis])
