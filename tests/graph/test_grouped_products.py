"""Grouped matrix products in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from normscope.graph.grouped_products import call_in_float64, grouped_product


def test_every_row_meets_the_matrix_of_its_expert() -> None:
    """Also where an expert has no rows, and rows after the last expert's are zero."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(7, 3, dtype=torch.float64, generator=generator)
    matrices = torch.randn(4, 3, 2, dtype=torch.float64, generator=generator)
    found = grouped_product(rows, matrices, torch.tensor([2, 2, 5, 6]))
    expert = [0, 0, 2, 2, 2, 3]
    truth = torch.stack([rows[i] @ matrices[e] for i, e in enumerate(expert)] + [torch.zeros(2, dtype=torch.float64)])
    assert torch.allclose(found, truth, rtol=1e-14, atol=1e-14)


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="this torch has no grouped product")
def test_torch_computes_what_it_can() -> None:
    """Float64 is written out, float32 is torch's own, and both agree."""
    generator = torch.Generator().manual_seed(1)
    rows, matrices = torch.randn(8, 16, generator=generator), torch.randn(2, 16, 8, generator=generator)
    ends = {"offs": torch.tensor([3, 8], dtype=torch.int32)}
    short = call_in_float64(F.grouped_mm, (rows, matrices), ends)
    wide = call_in_float64(F.grouped_mm, (rows.double(), matrices.double()), ends)
    assert (short.dtype, wide.dtype) == (torch.float32, torch.float64)
    assert torch.allclose(short.double(), wide, rtol=1e-4, atol=1e-4)
    assert call_in_float64(torch.add, (rows, 1.0), {}).equal(rows + 1.0)
