"""``fix`` as a whole, on trained networks."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from checking import noise
from fingerprints import fingerprint
from networks import Lambda, seeded
from normscope import fix
from normscope.core.errors import CaptureError, InputError
from normscope.doctor.fixes import run as run_module
from normscope.doctor.fixes.change import Change, Draft
from normscope.doctor.fixes.run import KINDS
from normscope.zoo import catalogue as zoo


def _trained(name: str, x: Tensor, **arguments: object) -> nn.Module:
    """Return a network of the zoo after some steps of training, weights and statistics moved."""
    model = zoo.build(name, **arguments)
    labels = (x.flatten(1).mean(1) > 0).long()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    model.train()
    for _ in range(8):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x).flatten(1), labels).backward()
        optimizer.step()
    if name == "mlp":  # as trained, its pairs are within a factor of two of balance
        with torch.no_grad():
            model.hidden[0][0].weight.mul_(20)
    return model.eval()


NETWORKS = {
    "resnet20": ({"blocks": 1, "width": 4}, (3, 32, 32), {"fold", "unit-norm"}),
    "cnn": ({"norm": "bn", "image_size": 8, "width": 4}, (3, 8, 8), {"drop-bias", "fold", "unit-norm"}),
    "mlp": ({"hidden": (12, 8), "in_features": 16}, (1, 4, 4), {"balance"}),
}


@pytest.mark.turns(6)
@pytest.mark.parametrize("name", NETWORKS)
def test_trained_networks_keep_their_outputs(name: str) -> None:
    """All fixes at once, and each alone; on samples that no fix has seen; the model itself is left alone."""
    arguments, shape, possible = NETWORKS[name]
    x = noise(16, *shape)
    model = _trained(name, x, **arguments)
    mark = fingerprint(model)
    done: set[str] = set()
    for only in ((), *((kind,) for kind in KINDS)):
        result = fix(model, x, only=only)
        done |= {change.kind for change in result.changes}
        other = copy.deepcopy(model)
        other.load_state_dict(result.state)
        y = noise(8, *shape, seed=11)
        before, after = model(y).detach(), other(y).detach()
        assert float((before - after).abs().max() / before.abs().max()) < 1e-5, only
        assert result.difference <= 1e-5
        changed = {n for c in result.changes for n in c.tensors}
        same = {n for n, t in model.state_dict().items() if torch.equal(t, result.state[n])}
        assert set(model.state_dict()) - same <= changed
    assert done == possible
    assert fingerprint(model) == mark


def test_a_change_that_does_not_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a fix believes: the outputs decide."""

    def wrong(draft: Draft) -> None:
        draft.apply(Change("fold", "0", "doubled", {"0.weight": draft.double("0.weight") * 2}))
        draft.apply(Change("fold", "2", "as it is", {"2.weight": draft.double("2.weight")}))

    monkeypatch.setattr(run_module, "KINDS", {"fold": wrong})
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    result = fix(model, noise(4, 3))
    assert [c.place for c in result.changes] == ["2"]
    assert [r.place for r in result.refusals] == ["0"]
    assert torch.equal(result.state["0.weight"], model[0].weight)


def test_a_change_that_holds_on_the_data_only_is_refused() -> None:
    """Far from it the model takes another branch, without the normalizer."""

    def forward(m: Lambda, x: Tensor) -> Tensor:
        h = m.first(x)
        return m.last((m.norm(h) if x.abs().max() < 50 else h).relu())

    model = seeded(Lambda(forward, first=nn.Linear(6, 6), norm=nn.BatchNorm1d(6), last=nn.Linear(6, 2)))
    result = fix(model, noise(16, 6).double(), only="fold")
    assert not result.changes
    assert "would change" in result.refusals[0].reason


def test_files(tmp_path: Path) -> None:
    """Both formats hold the state; tied weights too; others are refused."""
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    result = fix(model, noise(4, 3))
    for ending, load in ((".safetensors", load_file), (".pt", torch.load)):
        loaded = load(result.save(tmp_path / "deep" / f"a{ending}"))
        assert all(torch.equal(loaded[k], v) for k, v in result.state.items())
    with pytest.raises(InputError, match="safetensors"):
        result.save(tmp_path / "a.bin")
    assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == ["a.pt", "a.safetensors"]


def test_the_json_form_holds_no_weights() -> None:
    """Names only."""
    result = fix(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), input_shape=(3, 6, 6))
    document = json.loads(result.to_json())
    assert (document["kind"], document["schema_version"]) == ("fix", 1)
    assert {c["kind"] for c in document["changes"]} == {"drop-bias", "fold"}
    assert all(isinstance(n, str) for c in document["changes"] for n in c["tensors"])
    dropped = next(c for c in document["changes"] if c["kind"] == "drop-bias")
    assert dropped["code"] == ""  # folding uses the bias again


def test_one_fix_may_be_named_without_a_list() -> None:
    """A text is one name, not its letters."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    assert {change.kind for change in fix(model, input_shape=(3, 8, 8), only="drop-bias").changes} == {"drop-bias"}


def test_wrong_use_is_told() -> None:
    """Unknown fixes, half precision, no graph."""
    with pytest.raises(InputError, match="drop-bias, fold"):
        fix(nn.Linear(2, 2), only=["everything"])
    with pytest.raises(InputError, match="float32"):
        fix(nn.Linear(2, 2).half())
    with pytest.raises(InputError, match="Module"):
        fix("model")  # type: ignore[arg-type]
    with pytest.raises(CaptureError, match="graph"):
        fix(nn.Linear(3, 2), input_shape=(4,))


@pytest.mark.parametrize("ending", [".pt", ".safetensors"])
@pytest.mark.parametrize(
    "error", [RuntimeError("PytorchStreamWriter failed writing file"), OSError(28, "No space left")]
)
def test_a_full_disk_is_an_error_of_the_file(
    ending: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever class the writers raise, and nothing is left behind."""

    def full(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("torch.save", full)
    monkeypatch.setattr("safetensors.torch.save_file", full)
    result = fix(nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(OSError, match=r"disk full|No space left"):
        result.save(tmp_path / f"w{ending}")
    assert not list(tmp_path.iterdir())
