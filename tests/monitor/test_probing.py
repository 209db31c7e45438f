"""The probe batch, and the state it is run in."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from monitor.moments import batch, small
from normscope.core.errors import InputError
from normscope.monitor.graph_view import GraphView
from normscope.monitor.module_view import ModuleView
from normscope.monitor.probing import apart_from_training, probe_inputs, view_of


class WithLabels(nn.Module):
    """Computes its own loss, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Return logits, and a loss of its own."""
        logits = self.fc(x)
        found = {"logits": logits}
        return found if labels is None else {"loss": 5.0 * nn.functional.cross_entropy(logits, labels), **found}


def test_the_batch_is_a_copy() -> None:
    x, y = batch()
    inputs, labels = probe_inputs((x, y), small())
    x.zero_()
    y.zero_()
    assert inputs.args[0].abs().sum() > 0
    assert labels.sum() > 0


def test_a_model_that_takes_labels_computes_its_own_loss() -> None:
    model, x, y = WithLabels(), torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    inputs, labels = probe_inputs({"x": x, "labels": y}, model)
    assert "labels" in inputs.kwargs
    truth = 5.0 * nn.functional.cross_entropy(model(x)["logits"], labels)
    view = view_of(model, {"x": x, "labels": y}, None, "batch")
    assert isinstance(view, GraphView)
    assert torch.allclose(view.run_probe().loss, truth)
    mine = lambda out, labels: (out if isinstance(out, Tensor) else out["logits"]).sum()  # noqa: E731
    assert torch.allclose(
        view_of(model, {"x": x, "labels": y}, mine, "batch").run_probe().loss, model(x)["logits"].sum()
    )


def test_a_loader_is_not_a_batch() -> None:
    loader = DataLoader(TensorDataset(torch.zeros(4, 3)))
    for probe in (None, loader):
        with pytest.raises(InputError, match="a fixed batch"):
            probe_inputs(probe, nn.Linear(3, 2))
    with pytest.raises(InputError, match="does not run"):
        probe_inputs(torch.zeros(2, 5), nn.Linear(3, 2))


def test_modules_are_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from normscope.core.errors import CaptureError
    from normscope.monitor import probing

    def refuse(*given: object) -> None:
        raise CaptureError("data decides\nmore")

    monkeypatch.setattr(probing, "GraphView", refuse)
    view = view_of(small(), batch(), None, "batch")
    assert isinstance(view, ModuleView)
    assert "data decides" in view.notes[0]


def test_random_states_and_precision_are_put_back() -> None:
    state = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    with torch.autocast("cpu", torch.bfloat16), apart_from_training(torch.device("cpu")):
        random.random()
        np.random.rand()
        torch.rand(2)
        assert (torch.eye(2) @ torch.eye(2)).dtype == torch.float32
    assert random.getstate() == state[0]
    assert np.array_equal(np.random.get_state()[1], state[1])
    assert torch.equal(torch.get_rng_state(), state[2])


def test_gradients_are_possible_under_inference_mode() -> None:
    view = view_of(small(), batch(), None, "batch")
    with torch.inference_mode(), apart_from_training(torch.device("cpu")):
        assert view.run_probe(gradient=True).gradients
