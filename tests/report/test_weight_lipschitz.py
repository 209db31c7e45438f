"""The report on weights: one row for each, what is attained beside what is proved."""

from __future__ import annotations

import torch
from torch import nn

from networks import seeded
from normscope.analysis.weight_lipschitz import weight_lipschitz
from normscope.report.table import plain_text
from normscope.report.weight_lipschitz import weight_sections


def _network(depth: int) -> nn.Module:
    parts: list[nn.Module] = []
    for _ in range(depth):
        parts += [nn.Linear(3, 3, bias=False), nn.LayerNorm(3)]
    return seeded(nn.Sequential(*parts))


def test_every_weight_has_a_row_in_both_tables() -> None:
    """In the weight itself and in the output of its layer, with notes on scale."""
    text = plain_text(weight_sections(weight_lipschitz(_network(2), torch.eye(3).double())))
    assert text.count("\n  0.weight  ") == 2
    assert "all weights together" in text
    assert "scale-invariant" in text
    assert "Theorem 12" in text


def test_without_data_there_is_one_table() -> None:
    """Nothing about weights themselves is shown."""
    text = plain_text(weight_sections(weight_lipschitz(_network(1), input_shape=(3,))))
    assert "in the outputs of their layers" in text
    assert "in the weights\n" not in text
    assert "all weights\n" not in text


def test_long_tables_are_cut() -> None:
    """Thirty rows, and a word on the others; all of them if asked."""
    result = weight_lipschitz(_network(12), torch.eye(3).double()[:1])
    short, full = weight_sections(result), weight_sections(result, everything=True)
    tables = [[len(s.table.rows) for s in part if s.title.startswith("in the")] for part in (short, full) if part]
    assert tables == [[30, 30], [36, 36]]
    assert any("6 more rows" in line for s in short for line in s.after)
