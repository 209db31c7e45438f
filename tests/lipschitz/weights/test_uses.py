"""Uses: every weight is found, tied ones once, and none that acts is forgotten."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, seeded
from normscope.lipschitz.weights.uses import kind_of


def _ones(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.float64)


def test_tied_weights_are_one_weight_with_two_uses(found: Any) -> None:
    """An embedding that is also the head."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 5, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.embedding(x)))

    _, weights = found(Tied().double(), torch.tensor([[1, 2]]))
    assert len(weights.leaves) == 1
    assert [use.kind for use in weights.uses] == ["diagonal", "matrix"]


def test_parametrized_weights_are_meant_as_they_act(found: Any) -> None:
    """Weight normalization: the effective weight, with its own shape."""
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), nn.ReLU())
    _, weights = found(model.double(), _ones(1, 4))
    effective = [leaf for leaf in weights.leaves if leaf.effective]
    assert [leaf.shape for leaf in effective] == [(3, 4)]
    assert [leaf.name for leaf in weights.leaves if not leaf.effective] == ["0.bias"]


def test_what_acts_through_a_constant_counts_too(found: Any, dense: Any) -> None:
    """A weight used on a constant and on the input has both uses, the constant's with its derivative."""
    start = torch.linspace(-1.0, 1.0, 4, dtype=torch.float64)
    model = seeded(Lambda(lambda m, x: m.f(x) + torch.tanh(m.f(m.start)), f=nn.Linear(4, 3), start=start))
    _, weights = found(model, _ones(1, 4))
    kinds = {leaf.name: [weights.uses[i].kind for i in weights.of(k)] for k, leaf in enumerate(weights.leaves)}
    assert sorted(kinds["f.weight"]) == ["constant", "matrix"]
    name = next(i for i, use in enumerate(weights.uses) if use.kind == "constant" and use.copies > 0)
    leaf = weights.leaves[weights.uses[name].leaf].name
    constant = seeded(Lambda(lambda m, x: torch.tanh(m.f(m.start)) + 0 * x.sum(), f=nn.Linear(4, 3), start=start))
    constant.load_state_dict(model.state_dict())
    truth = dense(constant, leaf, _ones(1, 4))
    assert truth <= weights.uses[name].copies <= truth * (1 + 1e-9)


def test_unknown_uses_say_why(found: Any) -> None:
    """A weight that only decides has no rule: no place, and a reason."""
    model = seeded(Lambda(lambda m, x: torch.where(m.w > 0, x, -x), w=nn.Parameter(torch.ones(4))))
    _, weights = found(model, _ones(1, 4))
    assert [use.kind for use in weights.uses] == ["unknown"]
    assert "as a condition" in weights.uses[0].reason


def test_weights_inside_a_normalizer_written_out_have_no_place(found: Any) -> None:
    """A learned stabilizer: the normalizer is one operation of its input, so its inside leads nowhere."""
    model = seeded(
        Lambda(
            lambda m, x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + m.eps).sqrt(),
            eps=nn.Parameter(torch.tensor([0.1])),
        )
    )
    with torch.no_grad():
        model.eps.fill_(0.1)
    _, weights = found(model, torch.linspace(0, 1, 8, dtype=torch.float64).reshape(2, 4))
    assert len(weights.leaves) == 1
    written_out = any(site.written_out for site in weights.program.sites)
    assert not written_out or all(use.kind == "unknown" for use in weights.uses)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_weights_are_used_at_every_step(kind: Any, found: Any) -> None:
    """The input weight meets all steps at once, the recurrent one each step."""
    _, weights = found(Lambda(lambda m, x: m.r(x)[0], r=kind(3, 2, batch_first=True)).double(), _ones(1, 4, 3))
    count = {leaf.name: len(weights.of(i)) for i, leaf in enumerate(weights.leaves)}
    assert count == {"r.weight_ih_l0": 1, "r.weight_hh_l0": 4, "r.bias_ih_l0": 1, "r.bias_hh_l0": 4}


def test_kinds() -> None:
    """Operations by how they depend on an argument."""
    assert kind_of("add", "other") == "diagonal"
    assert kind_of("where", "condition") == "unknown"
    assert kind_of("conv2d", "input") == "unknown"
    assert kind_of("matmul", "other") == "matrix"
