"""``check`` as a whole: its result, its settings, and that it leaves everything as it was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import torch
from torch import nn

import normscope
from checking import initialized, noise
from fingerprints import fingerprint
from normscope import check
from normscope.analysis.context import AnalysisRequest, prepare
from normscope.core.errors import InputError
from normscope.core.finding import Severity
from normscope.doctor import run as run_module
from normscope.doctor.catalogue import RULES
from normscope.doctor.run import UnhealthyError, assert_healthy
from normscope.doctor.settings import Settings, baseline_text

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "findings.schema.json").read_text())


def _network() -> nn.Module:
    layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    return initialized(nn.Sequential(*layers))


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


def test_a_quick_check_reads_no_data_and_runs_no_slow_rule() -> None:
    """What it finds, a whole check finds too; a prepared model is not captured again."""
    model, data = _network(), noise(4, 3, 6, 6)
    prepared = prepare(AnalysisRequest(model, data))
    quick, whole = check(model, data, quick=True, prepared=prepared), check(model, data, prepared=prepared)
    slow = {code for code, rule in RULES.items() if rule.slow}
    assert slow
    assert not slow & set(quick.ran)
    assert slow <= set(whole.ran)
    assert quick.skipped["NS203"] == "needs data (--data)"
    assert [f.code for f in quick.findings] == ["NS101"]
    assert {f.key for f in quick.findings} <= {f.key for f in whole.findings}
    assert whole.findings == check(model, data).findings


def test_findings_are_told_as_they_come(tmp_path: Path) -> None:
    """Those of modules before the graph is captured, each once, and nothing that settings or a baseline hide."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=0.99))
    events: list[str] = []
    result = check(model, noise(4, 3, 6, 6), progress=events.append, tell=lambda f: events.append(f.code))
    assert events.index("NS212") < events.index("capturing the graph") < events.index("NS101")
    codes = [e for e in events if e in RULES]
    assert sorted(codes) == sorted({*codes}) == sorted({f.code for f in result.findings})
    (tmp_path / "known.json").write_text(baseline_text(result.findings))
    told: list[str] = []
    settings = Settings(baseline=tmp_path / "known.json")
    check(model, noise(4, 3, 6, 6), settings=settings, tell=lambda f: told.append(f.code))
    check(model, noise(4, 3, 6, 6), ignore=["NS1", "NS2"], tell=lambda f: told.append(f.code))
    assert told == []


def test_selection_baseline_and_places() -> None:
    """What is hidden is counted."""
    plain = check(_network(), noise(4, 3, 6, 6))
    assert "NS101" in {f.code for f in plain.findings}
    assert plain.failed
    only = check(_network(), noise(4, 3, 6, 6), select=["NS2"])
    assert check(_network(), noise(4, 3, 6, 6), select="NS2").ran == only.ran
    assert all(f.code.startswith("NS2") for f in only.findings)
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

    rules = dict(RULES) | {"NS202": replace(RULES["NS202"], check=broken)}  # type: ignore[arg-type]
    monkeypatch.setattr(run_module, "RULES", rules)
    result = check(_network(), noise(4, 3, 6, 6))
    assert result.skipped["NS202"] == "failed: RuntimeError: no idea"
    assert "NS101" in {f.code for f in result.findings}


def test_wrong_use_is_told() -> None:
    """No module, unknown codes, data that does not fit."""
    with pytest.raises(InputError, match=r"torch\.nn\.Module"):
        check("zoo:resnet18")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="torch optimizer"):
        check(nn.Linear(2, 2), optimizer="sgd")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="none of its parameters belongs to the model"):
        check(nn.Linear(2, 2), optimizer=torch.optim.SGD(nn.Linear(2, 2).parameters()))
    with pytest.raises(InputError, match="NS101"):
        check(_network(), select=["NS9"])
    with pytest.raises(InputError):
        check(_network(), noise(4, 5))


def test_counts() -> None:
    """By severity."""
    result = check(_network(), noise(4, 3, 6, 6))
    assert sum(result.count(s) for s in Severity) == len(result.findings)
    assert result.count(Severity.ERROR) == 0


def test_findings_of_one_rule_are_told_as_one() -> None:
    """At the first of their places, with all of them; a baseline knows each by itself."""
    twice = nn.Sequential(*(m for _ in range(3) for m in (nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())))
    (one,) = check(twice, noise(16, 4), select=["NS101"]).findings
    assert (one.place, one.places) == ("0", ("0", "3", "6"))
    assert "also 3, 6" in one.message
    assert len(check(twice, noise(16, 4), select=["NS101"], group=False).findings) == 3
    assert baseline_text([one]).count("NS101") == 3


def test_wrappers_are_opened_and_a_layer_that_raises_is_named() -> None:
    """Compiled and parallel models; the error of one layer on the data."""
    inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    for wrapped in (nn.DataParallel(inner), torch.compile(inner)):
        assert [f.place for f in check(wrapped, noise(16, 4), select=["NS101"]).findings] == ["0"]
    raises = nn.Sequential(nn.Conv2d(3, 4, 8), nn.InstanceNorm2d(4))
    (one,) = check(raises, noise(4, 3, 8, 8)).findings
    assert (one.code, one.place, one.severity) == ("NS001", "1", Severity.ERROR)


def test_the_purpose_is_checked_and_kept() -> None:
    """In the result, and among those there are."""
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4)).train()
    result = check(model, noise(16, 4), purpose="inference")
    assert [(f.code, f.place) for f in result.findings if f.severity is Severity.ERROR] == [("NS204", "1")]
    assert json.loads(result.to_json())["purpose"] == "inference"
    with pytest.raises(InputError, match="finetune"):
        check(model, purpose="fun")


def test_an_assertion_raises_with_one_line_for_each_finding_as_grave() -> None:
    """And returns the result where there is none; codes can be left out, and the severity chosen."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
    with pytest.raises(UnhealthyError, match=r"NS101 warning \(proved\) 0: .*Fix: build the layer") as caught:
        assert_healthy(model, noise(16, 4))
    assert isinstance(caught.value, AssertionError)
    assert caught.value.result.failed
    assert not assert_healthy(model, noise(16, 4), ignore=["NS101"]).failed
    assert {f.code for f in assert_healthy(model, noise(16, 4), fail_on="error").findings} == {"NS101"}
    assert normscope.assert_healthy is assert_healthy
