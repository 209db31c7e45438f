"""Room for large tensors in large pages: the system gives them out far faster than many small ones."""

import math
import mmap

import torch
from torch import Tensor

#: Bytes from which on memory comes from the system anew each time, and is asked for in large pages.
LARGE = 2**25


def empty(*shape: int) -> Tensor:
    """Return a tensor in float64 whose entries are not set.

    >>> empty(2, 3).shape
    torch.Size([2, 3])
    """
    size = 8 * math.prod(shape)
    advice = getattr(mmap, "MADV_HUGEPAGE", None)  # of Linux
    if size < LARGE or advice is None:
        return torch.empty(shape, dtype=torch.float64)
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(advice)
    except OSError:  # a system without them, or too little memory: torch says so
        return torch.empty(shape, dtype=torch.float64)
    return torch.frombuffer(memory, dtype=torch.float64).view(shape)
