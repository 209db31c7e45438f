"""Rates in norms of weights, as printed."""

from __future__ import annotations

import pytest

from normscope.core.errors import InputError
from normscope.core.value import Kind, Value
from normscope.generalization import weight_norm_rates


def test_product_over_root() -> None:
    """In the log domain, and printed: an order is no bound."""
    rate = weight_norm_rates([Value.of(1e3, Kind.CERTIFIED)] * 200, 10**4)
    assert rate.log10 == pytest.approx(598.0)
    assert rate.kind is Kind.PRINTED
    assert rate.assumptions


def test_refused() -> None:
    """No sample."""
    with pytest.raises(InputError, match="at least one sample"):
        weight_norm_rates([], 0)
