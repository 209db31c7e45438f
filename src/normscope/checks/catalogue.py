"""Every rule, by code."""

from __future__ import annotations

from normscope.checks.rule import Rule
from normscope.checks.rules import (
    cancelled_bias,
    group_size,
    not_captured,
    not_finite,
    train_mode,
    variance_near_eps,
    weight_decay,
)

_MODULES = (
    not_captured,
    not_finite,
    cancelled_bias,
    group_size,
    train_mode,
    variance_near_eps,
    weight_decay,
)

#: Every rule by its code, in order.
RULES: dict[str, Rule] = {rule.code: rule for rule in sorted((m.RULE for m in _MODULES), key=lambda r: r.code)}
