"""Grouped matrix products, as used by mixtures of experts, in float64: torch has them only in lower precisions."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

#: Torch's own grouped products.
_GROUPED = tuple(f for f in (getattr(torch, "_grouped_mm", None), getattr(F, "grouped_mm", None)) if f is not None)


def grouped_product(rows: Tensor, matrices: Tensor, offs: Tensor) -> Tensor:
    """Return rows times the matrix of their expert.

    Args:
        rows: the rows of all experts, one expert after the other.
        matrices: one for each expert.
        offs: where the rows of each expert end; what follows the last is zero.

    >>> grouped_product(torch.ones(3, 1), torch.tensor([[[2.0]], [[5.0]]]), torch.tensor([1, 3])).flatten().tolist()
    [2.0, 5.0, 5.0]
    """
    ends = offs.tolist()
    pieces = zip([0, *ends[:-1]], ends, matrices, strict=True)
    return torch.cat([*(rows[start:end] @ matrix for start, end, matrix in pieces), rows[ends[-1] :] @ matrices[0] * 0])


def call_in_float64(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function of torch; grouped products of float64 are written out."""
    if function not in _GROUPED or args[0].dtype is not torch.float64:
        return function(*args, **kwargs)
    return grouped_product(args[0], args[1], kwargs["offs"])
