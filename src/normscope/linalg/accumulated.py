"""Inner products and norms of long vectors, accumulated in float64 whatever their dtype.

Summed in float32, an inner product of a million numbers is right to four digits, and so is every Lanczos basis built
with it. Here short pieces are multiplied in the precision they are stored in and the pieces are added in float64, which
costs no more than a plain product and errs by about one unit in the last place.
"""

import torch
from torch import Tensor

#: Entries of one piece: short enough that its sum is exact to rounding, long enough to keep the processor busy.
PIECE = 8192
#: Entries of one piece of a norm.
SHORT = 512


def dots(basis: Tensor, vector: Tensor) -> Tensor:
    r"""Return :math:`V x` in float64 for the rows of a basis.

    >>> dots(torch.eye(2), torch.tensor([3.0, 4.0])).tolist()
    [3.0, 4.0]
    """
    total = torch.zeros(len(basis), dtype=torch.float64, device=basis.device)
    if basis.dtype == torch.float64:
        return basis @ vector
    for start in range(0, vector.numel(), PIECE):
        total += (basis[:, start : start + PIECE] @ vector[start : start + PIECE]).double()
    return total


def dot(a: Tensor, b: Tensor) -> float:
    """Return the inner product of two vectors.

    >>> dot(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    11.0
    """
    return float(dots(a.reshape(1, -1), b.reshape(-1)))


def length(vector: Tensor) -> float:
    """Return the Euclidean norm of a vector.

    >>> length(torch.tensor([3.0, 4.0]))
    5.0
    """
    flat = vector.reshape(-1)
    if flat.dtype == torch.float64 or flat.numel() < SHORT:
        return float(torch.linalg.vector_norm(flat, dtype=torch.float64))
    whole = flat.numel() // SHORT * SHORT  # converting the whole vector would take four times as long
    pieces = torch.linalg.vector_norm(flat[:whole].view(-1, SHORT), dim=1).double()
    rest = torch.linalg.vector_norm(flat[whole:], dtype=torch.float64).reshape(1)
    return float(torch.linalg.vector_norm(torch.cat([pieces, rest])))


def orthogonalized(vector: Tensor, basis: Tensor) -> Tensor:
    """Project a vector, in place, onto the orthogonal complement of orthonormal rows, by two passes of Gram-Schmidt.

    >>> orthogonalized(torch.tensor([3.0, 4.0]), torch.tensor([[1.0, 0.0]])).tolist()
    [0.0, 4.0]
    """
    if len(basis):
        for _ in range(2):
            vector.sub_(dots(basis, vector).to(basis.dtype) @ basis)
    return vector
