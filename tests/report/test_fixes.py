"""Fixes as text."""

from normscope.doctor.fixes.change import Change, Refusal
from normscope.doctor.fixes.run import FixResult
from normscope.report.fixes import LISTED, fix_text


def test_changes_code_and_refusals_are_told() -> None:
    """And how far the outputs moved; long lists are cut unless everything is asked for."""
    changes = tuple(Change("fold", f"bn{i}", "folded", {}, f"replace bn{i}", "changed") for i in range(LISTED + 3))
    result = FixResult("net", changes, (Refusal("balance", "", "used twice"),), 1e-7, 32, {})
    text = fix_text(result)
    assert text.splitlines()[0] == f"fold, {LISTED + 3} changes; further training is changed"
    assert text.count("and 3 more (--all)") == 2
    assert "  balance model: used twice" in text
    assert text.splitlines()[-1] == f"net: {LISTED + 3} changes; outputs moved by 1e-07 (relative) on 32 samples"
    assert f"bn{LISTED + 2}: folded" in fix_text(result, everything=True)
