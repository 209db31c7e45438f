"""The state of a run: going on from it is the same as never having stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from normscope.core.errors import InputError
from normscope.zoo.train import he_normal_, train
from normscope.zoo.training_state import Progress, restore_state, save_state

X = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def _model() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 2))
    he_normal_(model, torch.Generator().manual_seed(1))
    return model


class KilledError(Exception):
    """Stands for a process that ends between two steps."""


def test_going_on_gives_the_curve_and_the_weights_of_an_unbroken_run(tmp_path: Path) -> None:
    """Also when it was stopped in the middle of an epoch, with dropout and batch statistics."""
    whole = _model()
    curve: list[tuple[int, float]] = []
    unbroken = train(whole, X, Y, epochs=5, batch=16, after_step=lambda *point: curve.append(point))

    broken: list[tuple[int, float]] = []

    def die(step: int, loss: float) -> None:
        broken.append((step, loss))
        if step == 8:  # three steps an epoch: the third is half done
            raise KilledError

    file = tmp_path / "run" / "state.pt"
    with pytest.raises(KilledError):
        train(_model(), X, Y, epochs=5, batch=16, after_step=die, state=file)
    again = nn.Sequential(*_model())
    resumed: list[tuple[int, float]] = []
    run = train(again, X, Y, epochs=5, batch=16, after_step=lambda *point: resumed.append(point), state=file)
    assert resumed[0][0] == 7
    assert broken[:6] + resumed == curve
    assert run.losses == unbroken.losses
    assert run.steps == unbroken.steps
    for key, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[key]), key


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    """Its file says so; a longer one goes on."""
    file = tmp_path / "state.pt"
    first = train(_model(), X, Y, epochs=2, state=file)
    model = _model()
    steps: list[int] = []
    assert train(model, X, Y, epochs=2, state=file, after_step=lambda n, _: steps.append(n)).losses == first.losses
    assert steps == []
    assert len(train(model, X, Y, epochs=3, state=file).losses) == 3


def test_other_settings_or_another_network_are_refused(tmp_path: Path) -> None:
    """With what differs."""
    file = tmp_path / "state.pt"
    train(_model(), X, Y, epochs=1, state=file)
    with pytest.raises(InputError, match=r"lr=0\.001 \(now 0\.1\)"):
        train(_model(), X, Y, epochs=2, lr=0.1, state=file)
    with pytest.raises(InputError, match="another network"):
        train(nn.Sequential(nn.Linear(5, 2)), X, Y, epochs=2, state=file)


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    """Weights alone, or no tensors at all."""
    model, order = _model(), torch.Generator()
    optimizer = torch.optim.Adam(model.parameters())
    for name, content in (("weights.pt", model.state_dict()), ("list.pt", [1, 2])):
        torch.save(content, tmp_path / name)
        with pytest.raises(InputError, match="state of a training run"):
            restore_state(tmp_path / name, model, optimizer, order, {})
    (tmp_path / "torn.pt").write_bytes(b"PK")
    with pytest.raises(InputError):
        restore_state(tmp_path / "torn.pt", model, optimizer, order, {})


def test_a_failed_write_leaves_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no other file."""
    model, order = _model(), torch.Generator()
    optimizer = torch.optim.Adam(model.parameters())
    file = tmp_path / "state.pt"
    save_state(file, model, optimizer, order, Progress([0.5], 3, 1.0), {"seed": 0})
    before = file.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        save_state(file, model, optimizer, order, Progress(), {"seed": 0})
    assert file.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["state.pt"]
    assert restore_state(file, model, optimizer, order, {"seed": 0}) == Progress([0.5], 3, 1.0)
