"""Remark 7 of than2025: when products of scales grow or vanish exponentially with depth, and when they do not."""

from __future__ import annotations

import math
from collections.abc import Sequence

from normscope.core.errors import InputError
from normscope.core.statement import statement


@statement("than2025", "Remark 7", holds="scales bounded away from one: all >= 1 + c, or all <= 1 - c, with c > 0")
def remark_7(scales: Sequence[float]) -> tuple[float, float]:
    """Return the rates between which a product grows: ``min`` and ``max`` of ``log a_k``.

    ``exp(K low) <= prod a_k <= exp(K high)``. Only a positive ``low`` (or negative ``high``) that does not depend on
    the depth makes growth (or decay) exponential: scales above one are not enough, ``prod (1 + 2^-k)`` is
    below 2.385.

    Args:
        scales: ``a_1, ..., a_K``, positive.

    Returns:
        ``(low, high)``.

    Raises:
        InputError: if there is none, or one is not positive.

    >>> remark_7([2.0, 2.0]) == (math.log(2), math.log(2))
    True
    >>> remark_7([1 + 2.0**-k for k in range(1, 40)])[0] < 1e-11
    True
    """
    if not scales or not all(a > 0 and math.isfinite(a) for a in scales):
        raise InputError(f"Expected positive scales, at least one; got {list(scales)[:4]}.")
    return min(map(math.log, scales)), max(map(math.log, scales))
