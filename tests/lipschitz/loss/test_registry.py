"""Rules by name and by class: one for each key."""

from __future__ import annotations

import pytest
from torch import nn

from normscope.core.errors import RuleError
from normscope.lipschitz.loss import known_losses
from normscope.lipschitz.loss.registry import MODULES, NAMED, Case, register_loss


def test_every_rule_answers() -> None:
    """Each name with two outputs; each module class of PyTorch with its defaults."""
    assert set(known_losses()) == set(NAMED)
    for name in known_losses():
        assert NAMED[name](2).log is not None
    for cls, rule in MODULES.items():
        assert rule(cls(), Case(2)).statement.startswith("normscope Proposition LOSS-")


def test_keys_are_taken_once() -> None:
    """A second rule is refused before it does harm."""
    for key in ("l1", nn.L1Loss):
        with pytest.raises(RuleError, match="already"):
            register_loss(key)  # type: ignore[arg-type]
