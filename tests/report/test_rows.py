"""The rows of the page: in the order of the network, hottest channels first."""

from __future__ import annotations

from dataclasses import replace

from normscope.core.depth_curve import Depth
from normscope.report.rows import HOTTEST, hot_rows, layer_rows
from normscope.report.text import compare_rows
from report.samples import deep, result


def test_rows_follow_the_network() -> None:
    """Layers and normalizers in one list, numbered from one; without places, layers come first."""
    assert [(r.place, r.name, r.role) for r in layer_rows(result())] == [
        (1, "fc", "layer"),
        (2, "norm", "normalizer"),
        (3, "out", "layer"),
    ]
    assert [r.name for r in layer_rows(replace(result(), depth=Depth()))] == ["fc", "out", "norm"]


def test_rows_hold_the_values_of_the_result() -> None:
    """The very same objects, and the facts in words."""
    fc, norm, out = layer_rows(result())
    found = result()
    assert (fc.proved, fc.attained, fc.folded) == (found.layers[0].upper, found.layers[0].lower, None)
    assert out.folded == found.layers[1].folded
    assert (norm.printed, norm.is_bound, norm.floor) == (
        found.normalizers[0].printed,
        False,
        found.normalizers[0].on_floor,
    )
    assert (norm.size, norm.note) == ("4 per group", "eps 1.000×10⁻⁵, least std seen 0.5")


def test_the_hottest_channels_come_first() -> None:
    """At most some of them, by how far they stand out in factor or variance."""
    rows, total = hot_rows(deep(20))
    assert (len(rows), total) == (HOTTEST, 40)
    assert [r["heat"] for r in rows] == sorted((r["heat"] for r in rows), reverse=True)
    ((only,), one) = hot_rows(result())
    assert (only["heat"], only["factor"], only["variance"], one) == (40.0, "9", "-", 1)


def test_side_by_side_leaves_out_what_nobody_has() -> None:
    """A constant that one of two results has is there, with a gap for the other."""
    rows = dict(compare_rows([result(), result(end_to_end={"global": None}, effect={})]))
    assert rows["certified, all inputs"][1] is None
    assert "printed (Corollary 11)" not in rows
    assert rows["bound with normalizers over bound without"][1] is None
