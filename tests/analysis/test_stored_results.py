"""Stored results: read back as they were, refused when they are something else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from curved import classifier, labelled
from networks import points
from normscope import analyze
from normscope.analysis.checkpoint import analyze_checkpoint
from normscope.analysis.stored_results import is_panel, read_panel, read_result
from normscope.cli.main import app
from normscope.core.errors import InputError
from normscope.curvature.run import curvature
from normscope.weight_normalization import WeightNormNetwork, verify
from report.samples import result
from report.test_bounds import bounds_result


def test_a_model_and_a_checkpoint_come_back_equal(tmp_path: Path) -> None:
    """Every number to the last bit."""
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU()).eval()
    found = analyze(model, points(2, 2, 6, 6).float())
    assert read_result(found.save(tmp_path / "model.json")).to_dict() == found.to_dict()
    torch.save(model.state_dict(), tmp_path / "m.pt")
    weights = analyze_checkpoint(tmp_path / "m.pt")
    assert read_result(weights.save(tmp_path / "weights.json")) == weights


def test_what_is_shown_beside_a_result_comes_back_equal(tmp_path: Path) -> None:
    """Curvature, bounds and the theory of weight normalization; a capacity result is not among them."""
    proved = verify(WeightNormNetwork(3, width=8, depth=2, seed=0), torch.eye(3), torch.ones(3, 1))
    for found in (curvature(classifier(), labelled(), density=1, probes=2), bounds_result(), proved):
        file = found.save(tmp_path / "x.json")
        assert is_panel(file)
        assert read_panel(file).to_dict() == found.to_dict()
    (tmp_path / "x.json").write_text('{"kind": "capacity"}')
    assert not is_panel(tmp_path / "x.json")
    with pytest.raises(InputError, match=r"x\.json is not a result of normscope curvature, bounds"):
        read_panel(tmp_path / "x.json")


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[]", b"{}", b'{"kind": "other"}'])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    """With what was expected; how their bytes fail to be JSON is of no use."""
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.json is not a result of `normscope analyze`\.$"):
        read_result(tmp_path / "x.json")


def test_results_of_another_version_are_refused_with_the_version(tmp_path: Path) -> None:
    """They are results all the same."""
    (tmp_path / "x.json").write_text('{"kind": "capacity", "schema_version": 99}')
    with pytest.raises(InputError, match=r"got 99.*Write it again"):
        read_result(tmp_path / "x.json")


def test_no_file(tmp_path: Path) -> None:
    """Missing, or a folder."""
    with pytest.raises(InputError, match="File not found"):
        read_result(tmp_path / "x.json")
    with pytest.raises(InputError, match="directory"):
        read_result(tmp_path)
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(InputError, match="is a training run: use `normscope watch`"):
        read_result(tmp_path)


def _damages() -> dict[str, Callable[[dict[str, Any]], None]]:
    """Return ways in which a result is changed by hand, by another program, or by a fault."""
    return {
        "no layers": lambda r: r.pop("layers"),
        "layers are a number": lambda r: r.update(layers=3),
        "a layer is a text": lambda r: r.update(layers=["a"]),
        "a layer without its bound": lambda r: r["layers"][0].pop("upper"),
        "a bound is a text": lambda r: r["layers"][0].update(upper="2"),
        "a bound without its kind": lambda r: r["layers"][0]["upper"].pop("kind"),
        "a logarithm is a list": lambda r: r["layers"][0]["upper"].update(log=[1]),
        "a logarithm is no number": lambda r: r["layers"][0]["upper"].update(log=float("nan")),
        "a constant is a number": lambda r: r["end_to_end"].update({"global": 3.0}),
        "coverage is nothing": lambda r: r.update(coverage=None),
        "messages are numbers": lambda r: r.update(messages=[1, 2]),
        "names are numbers": lambda r: r["normalizers"][0].update(name=3),
        "details are a list": lambda r: r["normalizers"][0].update(details=[]),
        "the model is a list": lambda r: r.update(model=[]),
        "effects are a text": lambda r: r.update(effect="x"),
        "curves are a list": lambda r: r["depth"].update(curves=[]),
        "a curve is short of a kind": lambda r: r["depth"]["curves"]["global"].pop("kind"),
        "a new field": lambda r: r["layers"][0].update(more=1),
    }


@pytest.mark.parametrize("verb", ["report", "compare"])
@pytest.mark.parametrize("name", _damages())
def test_damaged_results_are_told_in_a_line(name: str, verb: str, tmp_path: Path) -> None:
    """By the verbs that read them; no traceback, and nothing is written."""
    data = json.loads(json.dumps(result().to_dict()))
    _damages()[name](data)
    file, page = tmp_path / "r.json", tmp_path / "page.html"
    file.write_text(json.dumps(data), encoding="utf-8")
    given = [str(file), "--out", str(page)] if verb == "report" else [str(file), str(file), "--out", str(tmp_path)]
    done = CliRunner().invoke(app, [verb, *given])
    assert done.exit_code == 2, done.output
    assert "r.json" in done.stderr.replace("\n", "")
    assert "Traceback" not in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


def test_a_result_nested_without_end(tmp_path: Path) -> None:
    """Which no reader of JSON takes."""
    file = tmp_path / "r.json"
    file.write_text("[" * 200_000 + "]" * 200_000, encoding="utf-8")
    with pytest.raises(InputError, match=r"r\.json"):
        read_result(file)
