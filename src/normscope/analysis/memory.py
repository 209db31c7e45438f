"""The memory an analysis will take, told before it is taken."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from normscope.core.memory import held, readable, require
from normscope.graph.guard import COPY_LIMIT, state_tensors
from normscope.linalg.streamed import BLOCK_NUMBERS
from normscope.lipschitz.segments import LARGEST_COPIED
from normscope.lipschitz.tokens import KEPT_BYTES

#: What the libraries that capture a graph take when they are first used.
LIBRARIES = 120e6
#: Bytes of a number in the precision norms are certified in.
_DOUBLE = 8.0


def announced(model: nn.Module, what: str) -> str:
    """Return how much memory an analysis of a model will take at its peak, after seeing that it fits.

    Args:
        model: the model to be analyzed.
        what: what is done, the subject of a sentence.

    Raises:
        NotEnoughMemoryError: if it does not fit.

    >>> announced(nn.Linear(2, 2), "This").startswith("peak memory about")
    True
    """
    more = additional_peak([tensor for _, tensor in state_tensors(model)])
    require(more, what, "Use a machine with more memory, or analyze parts of the model.")
    return f"peak memory about {readable(held() + more)}"


def additional_peak(tensors: Iterable[Tensor]) -> float:
    r"""Return about how many bytes an analysis takes at most besides the model itself.

    Copies of small models that guard their state and the matrices kept of composed maps stay all the time. Beside
    them stands the largest of: all weights in float64 (to differentiate the network), and the largest matrix with its
    Gram matrix while it is certified.

    >>> additional_peak([]) == LIBRARIES
    True
    """
    floating = [t for t in tensors if t.is_floating_point()]
    size = float(sum(t.numel() * t.element_size() for t in floating))
    numbers = float(sum(t.numel() for t in floating))
    copies = 2.0 * size if size <= COPY_LIMIT else 0.0
    kept = min(float(KEPT_BYTES), 4.0 * _DOUBLE * numbers)
    matrices = [(float(t.numel()), float(min(t.shape))) for t in floating if t.ndim == 2]
    largest = max((_matrix(*matrix) for matrix in matrices), default=0.0)
    return LIBRARIES + copies + kept + max(_DOUBLE * numbers, largest)


def _matrix(entries: float, side: float) -> float:
    """Return what certifying the norm of a matrix takes: itself in float64, and its Gram matrix four times."""
    copied = entries if entries <= LARGEST_COPIED else 3.0 * BLOCK_NUMBERS
    return _DOUBLE * max(3.0 * copied, 2.0 * copied + 4.0 * side**2)
