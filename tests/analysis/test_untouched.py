"""Nothing a user passes in is changed by an analysis, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from fingerprints import fingerprint
from networks import Lambda, points
from normscope import analyze, check, weight_lipschitz
from normscope.core.errors import NormscopeError

DATA = points(8, 4).float()


def _with_hooks_and_gradients() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    model(DATA).sum().backward()
    model[0].register_forward_hook(lambda module, args, out: None)
    model[1].register_forward_pre_hook(lambda module, args: None)
    model[3].weight.register_hook(lambda gradient: gradient)
    model.register_full_backward_hook(lambda module, into, out: None)
    return model


def _counting() -> nn.Module:
    def count(s: Lambda, x: torch.Tensor) -> torch.Tensor:
        s.calls.add_(1)
        s.last = x
        return s.a(x)

    model = Lambda(count, a=nn.Linear(4, 2), calls=torch.zeros(()))
    model.last = torch.zeros(1)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "batch norm in training": lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)).train(),
    "dropout in training": lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2), nn.Dropout(0.1)).train(),
    "spectral norm": lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 6)), nn.ReLU()).train(),
    "weight norm": lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 6)), nn.ReLU()),
    "hooks and gradients": _with_hooks_and_gradients,
    "frozen": lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6)).requires_grad_(False),
    "half": lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6)).bfloat16(),
    "state of its own": _counting,
    "in place": lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2)),
    "mixed modes": lambda: nn.Sequential(nn.BatchNorm1d(4).eval(), nn.Linear(4, 4), nn.BatchNorm1d(4).train()),
}


@pytest.mark.turns(5)
@pytest.mark.parametrize("settings", [{}, {"mode": "batch"}, {"mode": "frozen-batch"}], ids=lambda s: s.get("mode", ""))
@pytest.mark.parametrize("name", MODELS)
def test_model_data_and_process_are_as_before(name: str, settings: dict[str, str]) -> None:
    """Parameters, buffers, gradients, modes, hooks, attributes, data and random states have the same bits."""
    torch.manual_seed(0)
    model, data = MODELS[name](), DATA.clone()
    before = fingerprint(model, data)
    analyze(model, data, **settings)  # type: ignore[arg-type]
    assert fingerprint(model, data) == before


def test_also_without_data_and_after_an_error() -> None:
    """However the analysis ends."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout()).train()
    before = fingerprint(model)
    analyze(model)
    assert fingerprint(model) == before
    with pytest.raises(NormscopeError):
        analyze(model, torch.zeros(2, 5))
    assert fingerprint(model) == before


def test_the_data_may_be_frozen_in_place_operations_notwithstanding() -> None:
    """A network that overwrites its input works on a copy."""
    data = DATA.clone()
    analyze(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2)), data)
    assert torch.equal(data, DATA)


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    "context", [torch.no_grad, torch.inference_mode, lambda: torch.device("meta")], ids=("no_grad", "inference", "meta")
)
def test_the_same_numbers_wherever_the_caller_stands(context: Callable[[], Any]) -> None:
    """Without gradients, in inference mode with data made there, and where new tensors have no values."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 2))
    plain, weights, findings = analyze(model, DATA), weight_lipschitz(model, DATA), check(model, DATA)
    with context():
        data = DATA.clone()
        assert analyze(model, data).end_to_end == plain.end_to_end
        assert weight_lipschitz(model, data).weights == weights.weights
        assert check(model, data).findings == findings.findings
        assert torch.is_grad_enabled() == (context not in (torch.no_grad, torch.inference_mode))
    assert plain.end_to_end["lower"] is not None
    assert plain.end_to_end["lower"].value > 0


def test_small_networks_are_computed_on_one_thread_and_the_caller_keeps_theirs() -> None:
    """Threads that wait for each other cost more than they bring; afterwards there are as many as before."""
    seen = []

    class Watched(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(torch.get_num_threads())
            return super().forward(x)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        analyze(Watched(3, 2), points(4, 3).float(), points=1, ascent=0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1}
