"""Presets by cost."""

from __future__ import annotations

import pytest

from normscope.core.errors import InputError
from normscope.monitor.presets import PRESETS, preset_of
from normscope.monitor.quantities import QUANTITIES


def test_budgets_and_quantities() -> None:
    assert preset_of("economy").budget == 0.02
    assert preset_of("standard").budget == 0.05
    assert not any(QUANTITIES[name].gradient for name in PRESETS["economy"].quantities)
    assert set(PRESETS["economy"].quantities) < set(PRESETS["standard"].quantities) < set(PRESETS["full"].quantities)
    assert set(PRESETS["full"].quantities) <= set(QUANTITIES)
    assert [p.certify > 0 for p in PRESETS.values()] == [False, False, True]


def test_others_are_refused() -> None:
    with pytest.raises(InputError, match="economy, standard, full"):
        preset_of("cheap")
