"""A posterior trained for its bound: nothing of the given network enters, the numbers are those of its draws."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import weight_norm

from normscope.analysis.bounds import trained_posterior as module
from normscope.analysis.bounds.measured_network import MeasuredNetwork
from normscope.analysis.bounds.result import RefusedError
from normscope.analysis.bounds.run import bounds
from normscope.analysis.bounds.trained_posterior import redrawn, trained_posterior
from normscope.core.errors import InputError

from .conftest import captured_of

NAME = "PAC-Bayes, trained"


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep it short."""
    for name, value in (("MOST_DRAWS", 100), ("FEW", 50), ("PASSES", 1), ("PRIOR_RATE", 2e-2)):
        monkeypatch.setattr(module, name, value)


def _quiet(text: str) -> None:
    pass


def test_nothing_of_the_network_enters(trained: Any) -> None:
    """Two networks of one architecture give the same posterior, and nothing of them is touched."""
    model, train, test = trained
    other = redrawn(model, 7).eval()
    before, state = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    program = MeasuredNetwork(captured_of(model, 4, 2), _quiet).context.program
    found = [
        trained_posterior(m, captured_of(m, 4, 2), (train, test), 0.2, program, 0, _quiet)
        for m in (model, model, other)
    ]
    assert found[0] == found[1]
    names = ("divergence", "loss", "prior_error", "samples", "level", "steps")
    assert [getattr(found[0], n) for n in names] == [getattr(found[2], n) for n in names]
    assert found[0].apart < found[2].apart  # the other one is not trained
    assert found[0].samples == 400
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_every_parameter_is_drawn_anew(trained: Any) -> None:
    """Or it is refused: what a reset does not reach would carry the data into the prior."""
    model, _, _ = trained
    net = redrawn(model, 0)
    assert all(not torch.equal(a, b) for a, b in zip(net.parameters(), model.parameters(), strict=True))
    assert torch.equal(net[1].running_mean, torch.zeros(16))
    with pytest.raises(RefusedError, match=r"0\.scale is not redrawn"):
        redrawn(nn.Sequential(_Scaled(), nn.Linear(2, 2)), 0)
    with pytest.raises(RefusedError, match=r"weight_g is not redrawn|cannot be copied"):
        redrawn(nn.Sequential(weight_norm(nn.Linear(2, 4)), nn.ReLU(), nn.Linear(4, 2)), 0)


class _Scaled(nn.Module):
    """A parameter that nothing resets."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a multiple."""
        return self.scale * x


def test_rows(trained: Any) -> None:
    """Four forms of another network and one of this, above the truth; refused where it was not asked for."""
    model, train, test = trained
    found = bounds(model, train=train, test=test, posterior=0.6, only=[NAME])
    names = ["McAllester", "kl", "quadratic", "lambda", "and disagreement"]
    assert [r.name for r in found.rows] == [f"{NAME}, {n}" for n in names]
    assert all(r.status == "certificate" for r in found.rows)
    last = found.rows[-1]
    assert last.of == "this network"
    assert found.rows[1].of == "another randomized network"
    assert found.rows[1].bound.value <= found.rows[0].bound.value
    assert found.truth["test_error"] < last.bound.value < 1
    assert last.bound.value > found.rows[1].bound.value
    tuned = bounds(model, train=train, test=test, posterior=0.1, only=[NAME], tuned_on_test=True)
    assert tuned.rows[-1].status == "refused"
    without = bounds(model, train=train, test=test, only=[NAME])
    assert without.rows[0].status == "not requested"
    assert "--posterior" in without.rows[0].reason
    with pytest.raises(InputError, match="seconds"):
        bounds(model, train=train, test=test, posterior=-1.0)


def test_too_few_samples(trained: Any) -> None:
    """A half with fewer than eight samples bounds nothing."""
    model, (x, y), test = trained
    found = bounds(model, train=(x[:15], y[:15]), test=test, posterior=0.1, only=[NAME])
    assert "at least 16" in found.rows[0].reason
