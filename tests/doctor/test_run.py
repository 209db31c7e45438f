"""``check`` as a whole: its result, its settings, and that it leaves everything as it was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import torch
from torch import nn

from checking import initialized, noise
from normscope import check
from normscope.core.errors import InputError
from normscope.core.finding import Severity
from normscope.doctor import run as run_module
from normscope.doctor.catalogue import RULES
from normscope.doctor.settings import Settings, baseline_text
from normscope.testing.state import fingerprint

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "findings.schema.json").read_text())


def _network() -> nn.Module:
    return initialized(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)))


def test_the_json_form_fits_its_schema() -> None:
    """With findings, without, and without a graph; a spoiled one does not fit."""
    validator = jsonschema.Draft202012Validator(SCHEMA)
    broken = nn.Linear(2, 2)
    with torch.no_grad():
        broken.weight[0, 0] = float("inf")
    for result in (check(_network(), noise(4, 3, 6, 6)), check(nn.Linear(2, 2)), check(broken)):
        document = json.loads(result.to_json())
        validator.validate(document)
        assert set(document) == set(SCHEMA["properties"])
        for one in document["findings"]:
            assert set(one) == set(SCHEMA["$defs"]["finding"]["properties"])
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(document | {"failed": "perhaps"})


def test_selection_baseline_and_places() -> None:
    """What is hidden is counted."""
    plain = check(_network(), noise(4, 3, 6, 6))
    assert "NS101" in {f.code for f in plain.findings}
    assert plain.failed
    only = check(_network(), noise(4, 3, 6, 6), select=["NS2"])
    assert {f.code for f in only.findings} <= {"NS201", "NS202", "NS203", "NS204"}
    hidden = check(_network(), noise(4, 3, 6, 6), settings=Settings(per_place={"0": ("NS101",)}))
    assert hidden.hidden == 1
    assert not hidden.failed


def test_a_baseline_hides_what_is_known(tmp_path: Path) -> None:
    """And fails no more."""
    plain = check(_network(), noise(4, 3, 6, 6))
    file = tmp_path / "known.json"
    file.write_text(baseline_text(plain.findings))
    again = check(_network(), noise(4, 3, 6, 6), settings=Settings(baseline=file))
    assert (again.findings, again.hidden, again.failed) == ((), len(plain.findings), False)


def test_nothing_of_the_user_is_touched() -> None:
    """Weights, buffers, modes, gradients, the optimizer, the random state."""
    model = _network().train()
    model(noise(4, 3, 6, 6)).sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    before, state, groups = fingerprint(model), torch.get_rng_state(), str(optimizer.state_dict())
    check(model, noise(64, 3, 6, 6), optimizer)
    assert fingerprint(model) == before
    assert torch.equal(torch.get_rng_state(), state)
    assert str(optimizer.state_dict()) == groups


def test_a_rule_that_fails_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is listed with its error."""

    def broken(rule: object, subject: object) -> list[object]:
        raise RuntimeError("no idea")

    rules = dict(RULES) | {"NS202": replace(RULES["NS202"], look=broken)}  # type: ignore[arg-type]
    monkeypatch.setattr(run_module, "RULES", rules)
    result = check(_network(), noise(4, 3, 6, 6))
    assert result.skipped["NS202"] == "failed: RuntimeError: no idea"
    assert "NS101" in {f.code for f in result.findings}


def test_wrong_use_is_told() -> None:
    """No module, unknown codes, data that does not fit."""
    with pytest.raises(InputError, match=r"torch\.nn\.Module"):
        check("zoo:resnet18")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="NS101"):
        check(_network(), select=["NS9"])
    with pytest.raises(InputError):
        check(_network(), noise(4, 5))


def test_counts() -> None:
    """By severity."""
    result = check(_network(), noise(4, 3, 6, 6))
    assert sum(result.count(s) for s in Severity) == len(result.findings)
    assert result.count(Severity.ERROR) == 0
