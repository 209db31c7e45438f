"""``bounds``: what is refused and why, nothing touched, resumed from a folder, stopped without loss."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import normscope
from normscope.analysis.bounds import rows as table_rows
from normscope.analysis.bounds.run import bounds
from normscope.core.errors import InputError
from normscope.generalization import voronoi


def test_partition_built_on_the_data_is_refused(trained: Any) -> None:
    """Whether it says so or a centre is a sample; the other rows stay."""
    model, train, test = trained
    for partition in (
        voronoi(torch.rand(5, 2), [0, 0], [1, 1], from_data=True),
        voronoi(train[0][:5], [0, 0], [1, 1]),
    ):
        found = bounds(model, train=train, test=test, partition=partition, only=["held-out", "Theorem 20, repaired"])
        row = found.rows["Theorem 20, repaired"]
        assert row.status == "refused"
        assert "before seeing the data" in row.reason
        assert found.rows["held-out"].status == "certificate"


def test_unbounded_loss_is_refused(trained: Any) -> None:
    """Cross-entropy, unless it is clipped; then the expected loss is bounded, not the error."""
    model, train, test = trained
    name = "Theorem 20, repaired"
    without, clipped = (
        bounds(model, train=train, test=test, box=(0.0, 1.0), loss="cross-entropy", clip=c, only=[name]).rows[name]
        for c in (None, 0.01)
    )
    assert without.status == "refused"
    assert "clip" in without.reason
    assert clipped.status == "certificate"
    assert clipped.of == "expected clipped cross-entropy"


def test_batch_statistics_are_refused(trained: Any) -> None:
    """By mode, and where a layer has no others."""
    model, train, test = trained
    with pytest.raises(InputError, match="batch mode is not supported"):
        bounds(model, train=train, test=test, mode="batch")
    net = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(InputError, match="no running statistics"):
        bounds(net, train=train, test=test)


def test_test_data_used_for_tuning_is_refused(trained: Any) -> None:
    """Once it is declared."""
    model, train, test = trained
    found = bounds(model, train=train, test=test, tuned_on_test=True, only=["held-out"]).rows["held-out"]
    assert found.status == "refused"
    assert "tuning" in found.reason


def test_other_models_are_refused(trained: Any) -> None:
    """Regression targets, outputs that are no scores, no module at all, unknown rows, a wrong box."""
    _, (x, y), test = trained
    with pytest.raises(InputError, match="classification"):
        bounds(nn.Linear(2, 2), train=(x, x[:, 0]), test=test)
    with pytest.raises(InputError, match="classifiers"):
        bounds(nn.Linear(2, 1), train=(x, y), test=test)
    with pytest.raises(InputError, match="Module, got int"):
        bounds(3, train=(x, y), test=test)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"Unknown bound .*separate names by ;\): held-out; "):
        bounds(nn.Linear(2, 2), train=(x, y), test=test, only=["held out"])
    with pytest.raises(InputError, match="low < high"):
        bounds(nn.Linear(2, 2), train=(x, y), test=test, box=(1.0, 0.0))
    with pytest.raises(InputError, match="empty"):
        bounds(nn.Linear(2, 2), train=[], test=test)


def test_data_that_is_none(trained: Any) -> None:
    """Each fault is said in one sentence, before anything is computed or written."""
    model, (x, y), (u, v) = trained
    holes, labels = x.clone(), y.clone()
    holes[5, 0] = math.nan
    labels[3] = -1
    for words, given in (
        ("labels from 0 to 1 in train, got -1", {"train": (x, labels)}),
        ("labels from 0 to 1 in test, got 2", {"test": (u, v + 1)}),
        ("test data is empty", {"test": (u[:0], v[:0])}),
        ("training data is empty", {"train": (x[:0], y[:0])}),
        ("finite inputs in train", {"train": (holes, y)}),
        ("finite inputs in test", {"test": (u / 0, v)}),
        ("in test, got", {"test": (torch.cat([u, u], 1), v)}),
        ("as many labels as inputs", {"train": [(x, y[:-1])]}),
        ("more than once", {"train": iter([(x, y)])}),
        ("more than once", {"train": None}),
        ("need labels", {"train": [{"x": x, "y": y}]}),
        ("a box", {"box": (0.0,)}),
        ("a box", {"box": (torch.zeros(3), 1.0)}),
        ("finite ends", {"box": (0.0, math.inf)}),
        ("a loss among", {"loss": "mse"}),
    ):
        with pytest.raises(InputError, match=words):
            bounds(model, **{"train": (x, y), "test": (u, v), **given})


def test_test_data_that_is_training_data(trained: Any) -> None:
    """What needs fresh samples is refused if most are not; a few are only told."""
    model, (x, y), (u, v) = trained
    names = ["held-out", "Theorem 20, held-out distances"]
    found = bounds(model, train=(x, y), test=(x[:300], y[:300]), box=(0.0, 1.0), only=names)
    assert [r.status for r in found.rows] == ["refused", "refused"]
    assert "300 of 300 test samples are training samples" in found.rows[0].reason
    mixed = bounds(model, train=(x, y), test=(torch.cat([u, x[:7]]), torch.cat([v, y[:7]])), only=names[:1])
    assert mixed.rows[0].status == "certificate"
    assert mixed.messages == ("7 of 307 test samples are training samples too",)
    assert not bounds(model, train=(x, y), test=(u, v), only=names[:1]).messages


def test_networks_of_little_use(trained: Any) -> None:
    """Scores that do not depend on the input, or are not numbers; few samples."""
    _, (x, y), test = trained
    net = nn.Linear(2, 2)
    for p in net.parameters():
        nn.init.zeros_(p)
    found = bounds(net, train=(x, y), test=test, box=(0.0, 1.0))
    assert found.truth["train_error"] == 1.0  # ties are wrong
    assert "is zero" in found.rows["Bartlett et al."].reason
    few = bounds(nn.Linear(2, 2), train=(x[:7], y[:7]), test=test, box=(0.0, 1.0))
    assert "at least 8" in few.rows["PAC-Bayes"].reason
    huge = nn.Linear(2, 2)
    nn.init.constant_(huge.weight, 3e38)
    with pytest.raises(InputError, match="not finite"):
        bounds(huge, train=(x * 100, y), test=test)


def test_shuffled_loaders(trained: Any) -> None:
    """Rows that read the data again count both networks in one pass: enough bits, no disagreement."""
    model, train, test = trained
    loaders = [DataLoader(TensorDataset(*pair), 100, shuffle=True) for pair in (train, test)]
    found = bounds(model, train=loaders[0], test=loaders[1], only=["compression"])
    plain = bounds(model, train=train, test=test, only="compression")
    assert found.rows[0].details == plain.rows[0].details


def test_without_a_box(trained: Any) -> None:
    """What needs one is refused, never guessed from the data."""
    model, train, test = trained
    found = bounds(model, train=train, test=test, only=["Theorem 20, repaired", "Neyshabur et al.", "Bartlett et al."])
    assert [r.status for r in found.rows] == ["refused", "certificate", "refused"]
    assert all("box" in r.reason for r in found.rows if r.status == "refused")


def test_box_of_pixels() -> None:
    """Known from their normalization."""
    data = normscope.load_data("digits", split="train", limit=60)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    found = bounds(net, train=data, test=normscope.load_data("digits", limit=40), only=["Theorem 20, repaired"])
    assert found.rows[0].details["diameter"] == pytest.approx(8.0)


def test_nothing_is_touched_and_the_seed_decides(trained: Any) -> None:
    """State, mode and the global generator; two calls give the same table."""
    model, train, test = trained
    model.train()
    before, state = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    first = bounds(model, train=train, test=test, box=(0.0, 1.0))
    assert model.training
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert first.to_json() == bounds(model, train=train, test=test, box=(0.0, 1.0)).to_json()
    model.eval()


def test_stopped_and_resumed(trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C keeps the rows that are finished; the same call makes only the others."""
    model, train, test = trained
    calls: list[str] = []

    def row(name: str, make: Any) -> Any:
        def counted(setting: Any) -> Any:
            calls.append(name)
            if name == "VC dimension" and calls.count(name) == 1:
                raise KeyboardInterrupt
            return make(setting)

        return name, counted

    monkeypatch.setattr("normscope.analysis.bounds.run.ROWS", [row(n, m) for n, m in table_rows.ROWS[-9:]])
    first = bounds(model, train=train, test=test, box=(0.0, 1.0), folder=tmp_path)
    assert "stopped after" in first.messages[0]
    second = bounds(model, train=train, test=test, box=(0.0, 1.0), folder=tmp_path)
    assert not second.messages
    assert len(calls) == len(set(calls)) + 1
