"""The JSON Schema of result.json: real results fit it, and every field they have is described."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from normscope.analysis import analyze
from normscope.analysis.checkpoint import analyze_checkpoint
from normscope.cli.main import app
from normscope.core.json_form import SCHEMA_VERSION
from normscope.core.result import Result
from normscope.zoo.catalogue import build, example_input

SCHEMA = json.loads((Path(__file__).parents[1] / "docs" / "result.schema.json").read_text())


def _strict(schema: Any) -> Any:
    """Return the schema with fields it does not describe forbidden, to find those that are missing from it."""
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _strict(value) for key, value in schema.items()}
    return closed | ({"additionalProperties": False} if isinstance(schema.get("properties"), dict) else {})


def _check(document: dict[str, Any]) -> None:
    plain = json.loads(json.dumps(document, allow_nan=False))
    jsonschema.Draft202012Validator(SCHEMA).validate(plain)
    # oneOf hides where it failed: choose the branch by kind
    branch = {"$ref": f"#/$defs/{plain['kind']}", "$defs": _strict(SCHEMA["$defs"])}
    jsonschema.Draft202012Validator(branch).validate(plain)


class Unknown(nn.Module):
    """A network with an operation that has no rule, and one that is not Lipschitz."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the model."""
        return torch.special.bessel_j0(self.linear(x)) + x.sign()


def _zoo(name: str, **arguments: Any) -> Callable[[], Result]:
    return lambda: analyze(build(name, **arguments).eval(), example_input(name, 4, **arguments))


RESULTS: dict[str, Callable[[], Result]] = {
    "batch norm": _zoo("relu10", norm="bn", width=6, depth=3, in_features=4),
    "group norm": _zoo("cnn", norm="gn", width=4),
    "tokens": _zoo("gpt", width=8, layers=1, heads=2, vocabulary=11),
    "weight norm": _zoo("wn_cnn", width=4),
    "without normalizers": _zoo("mlp", hidden=(4,), in_features=4),
    "unknown operation": lambda: analyze(Unknown(), torch.ones(3, 4)),
    "no data": lambda: analyze(nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))),
}


def test_the_schema_is_one() -> None:
    """The file is a valid schema of the version the code writes."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$defs"]["capacity"]["properties"]["schema_version"]["const"] == SCHEMA_VERSION


def test_every_field_is_described() -> None:
    """Each property has a description of its own."""

    def undescribed(node: Any, path: str) -> list[str]:
        if isinstance(node, list):
            return [found for i, item in enumerate(node) for found in undescribed(item, f"{path}/{i}")]
        if not isinstance(node, dict):
            return []
        found = []
        if isinstance(node.get("properties"), dict):
            found = [f"{path}/{k}" for k, v in node["properties"].items() if "description" not in v]
        return found + [item for key, value in node.items() for item in undescribed(value, f"{path}/{key}")]

    assert undescribed(SCHEMA, "") == []


@pytest.mark.turns(5)
@pytest.mark.parametrize("name", RESULTS)
def test_real_results_fit(name: str) -> None:
    """Results of real networks fit, with no field left undescribed."""
    _check(RESULTS[name]().to_dict())


def test_the_command_line_writes_what_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file with origin and data source fits too."""
    monkeypatch.chdir(tmp_path)
    model = "zoo:relu10[width=6,depth=3,in_features=64,norm=ln]"
    command = ["analyze", model, "--data", "digits", "--limit", "20", "-q", "--out", "."]
    assert CliRunner().invoke(app, command).exit_code == 0
    _check(json.loads(Path("result.json").read_text()))


def test_checkpoints_fit(tmp_path: Path) -> None:
    """A checkpoint with every role fits."""
    tensors = {
        "conv.weight": torch.ones(2, 3, 3, 3),
        "fc.weight": torch.zeros(2, 3),
        "fc.bias": torch.ones(2),
        "norm.weight": torch.ones(2),
        "bn.running_var": torch.ones(2),
        "bn.num_batches_tracked": torch.tensor(3),
        "wte.weight": torch.ones(5, 2),
        "odd": torch.ones(2, 2, 2),
    }
    torch.save(tensors, tmp_path / "m.pt")
    _check(analyze_checkpoint(tmp_path / "m.pt").to_dict())


def test_what_does_not_fit_is_refused() -> None:
    """The schema can fail: a missing field, NaN in place of a number, a kind that does not exist."""
    good = json.loads(json.dumps(RESULTS["no data"]().to_dict()))
    for spoil in (
        lambda d: d.pop("coverage"),
        lambda d: d["end_to_end"]["global"].update(log10="nan"),
        lambda d: d["layers"][0]["upper"].update(kind="surely"),
        lambda d: d.update(schema_version=2),
    ):
        bad = json.loads(json.dumps(good))
        spoil(bad)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(SCHEMA).validate(bad)
