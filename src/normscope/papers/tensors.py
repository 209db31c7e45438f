"""Float64 tensors for the checks, and the tolerance below which a number counts as zero."""

from functools import partial

import torch
from torch import Tensor

#: Numbers below this are zero up to rounding.
ZERO = 1e-10
#: The stabilizer of normalizers, as torch has it.
EPS = 1e-5
#: ``identity(m, n)`` is the papers' ``I_k``, truncated or padded with zeros.
zeros, ones, identity = (partial(make, dtype=torch.float64) for make in (torch.zeros, torch.ones, torch.eye))


def numbers(*values: float) -> Tensor:
    """Return a float64 vector.

    >>> numbers(1, 2).dtype
    torch.float64
    """
    return torch.tensor(values, dtype=torch.float64)


def gaussian(seed: int, *shape: int) -> Tensor:
    """Return standard normal numbers in float64 without using the global generator.

    >>> bool((gaussian(1, 3) == gaussian(1, 3)).all())
    True
    """
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def largest(values: Tensor) -> float:
    """Return the largest magnitude of a tensor's entries.

    >>> largest(torch.tensor([1.0, -2.0]))
    2.0
    """
    return float(values.abs().max())
