"""Parameters that a model also reads where its graph does not show it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from architectures import ARCHITECTURES
from networks import Lambda, seeded
from normscope.graph.capture import capture
from normscope.graph.hidden_reads import hidden_reads, note_on
from normscope.graph.inputs import ModelInputs, iterate

#: Networks that read the weight or the bias of ``l`` outside of their graph, and which of them.
HIDDEN: dict[str, tuple[Callable[[Lambda, Tensor], Tensor], str]] = {
    "NumPy": (lambda m, x: m.l(x) * float(m.l.weight.detach().numpy().max()), "l.weight"),
    "list": (lambda m, x: m.l(x) * sum(m.l.bias.tolist()), "l.bias"),
    "branch": (lambda m, x: m.l(x) if m.l.bias.sum() > 0 else 2 * m.l(x), "l.bias"),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_weights_read_outside_of_the_graph_are_found(name: str) -> None:
    """The model changes with them, and its graph does not."""
    forward, parameter = HIDDEN[name]
    model = seeded(Lambda(forward, l=nn.Linear(4, 3), other=nn.Linear(4, 3)))
    kept = {key: value.clone() for key, value in model.state_dict().items()}
    inputs = ModelInputs((torch.ones(2, 4, dtype=torch.float64),))
    assert hidden_reads(model, inputs, capture(model, inputs)) == (parameter,)
    assert all(torch.equal(value, kept[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["cnn", "wn_cnn", "lstm", "gpt", "transformer_encoder"])
def test_graphs_follow_the_weights_of_usual_networks(name: str) -> None:
    """Nothing is read that they do not contain."""
    model, data = ARCHITECTURES[name].build()
    inputs = next(iter(iterate(data, model)))
    assert hidden_reads(model.eval(), inputs, capture(model, inputs)) == ()


def test_a_model_that_cannot_be_copied_is_not_tested() -> None:
    """A weight computed by a hook is no leaf any more once the model was run."""
    model = nn.utils.weight_norm(nn.Linear(3, 2))
    model(torch.ones(1, 3))
    inputs = ModelInputs((torch.ones(2, 3),))
    assert hidden_reads(model, inputs, capture(model, inputs)) is None
    assert "cannot be copied" in next(note_on(None))
    assert not list(note_on(()))
