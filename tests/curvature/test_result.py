"""Results are plain data."""

from __future__ import annotations

import json
from pathlib import Path

from normscope.curvature.result import CurvatureResult, Eigenvalue


def test_it_is_strict_json_and_knows_whether_it_converged(tmp_path: Path) -> None:
    rows = (Eigenvalue(2.0, 1e-3, 1e-6, True), Eigenvalue(1.0, float("inf"), 1.0, False))
    data = {"samples": 1, "batches": 1, "dropout_masks": 0}
    found = CurvatureResult({"name": "net", "class": "Net", "parameters": 3}, data, "batch", "hessian", 1.0, 0.5, rows)
    assert not found.converged
    read = json.loads(found.save(tmp_path / "c.json").read_text())
    assert read["kind"] == "curvature"
    assert read["largest"][1]["residual"] == "inf"
    assert "NOT CONVERGED" in str(found)
    assert "<table>" in found._repr_html_()
