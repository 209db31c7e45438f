"""Every rule, by code."""

from __future__ import annotations

from normscope.checks.rule import Rule
from normscope.checks.rules import (
    broken_symmetry,
    cancelled_bias,
    cancelled_weight_norm,
    commuting,
    dead_unit,
    drifted_statistics,
    eps_for_dtype,
    group_size,
    hot_channel,
    not_captured,
    not_finite,
    not_lipschitz,
    not_understood,
    small_batch,
    small_direction,
    spectral_convolution,
    train_mode,
    twice_in_a_row,
    unbounded_attention,
    undecayed_weight,
    unnormalized_segment,
    variance_near_eps,
    weight_decay,
)

_MODULES = (
    broken_symmetry,
    cancelled_bias,
    cancelled_weight_norm,
    commuting,
    dead_unit,
    drifted_statistics,
    eps_for_dtype,
    group_size,
    hot_channel,
    not_captured,
    not_finite,
    not_lipschitz,
    not_understood,
    small_batch,
    small_direction,
    spectral_convolution,
    train_mode,
    twice_in_a_row,
    unbounded_attention,
    undecayed_weight,
    unnormalized_segment,
    variance_near_eps,
    weight_decay,
)

#: Every rule by its code, in order.
RULES: dict[str, Rule] = {rule.code: rule for rule in sorted((m.RULE for m in _MODULES), key=lambda r: r.code)}
