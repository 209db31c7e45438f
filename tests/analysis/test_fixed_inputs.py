"""Masks and places are held as they are in one sample, and everything said of the network says so."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel

import normscope
from fuzzing.draw import Draw
from networks import captured_of, seeded
from normscope.analysis.fixed_inputs import fixed_inputs, same_values, values_of
from normscope.operators.program import build_program


class Masked(nn.Module):
    """A linear map of which a mask hides a part."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        """Hide what the mask says."""
        return self.a(x).masked_fill(hidden > 0, 0.0)


class Gather(nn.Module):
    """Entries at given places: one entry eight times is longer than eight entries once."""

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        """Take them."""
        return x.gather(1, places)


class Pooled(nn.Module):
    """The mean of the tokens that are not padding, which only the tokens tell."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.l = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        """Look up, pool."""
        mask = (ids != 0).to(self.l.weight.dtype).unsqueeze(-1)
        return (self.l(self.e(ids)) * mask).sum(1) / mask.sum(1)


class Plain(nn.Module):
    """Tokens and a linear map."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.l = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        """Look up and map."""
        return self.l(self.e(ids).view(ids.shape[0], ids.shape[1], 8)) * torch.ones_like(ids).unsqueeze(-1)


def _hidden() -> Tensor:
    hidden = torch.zeros(8, 8, dtype=torch.bool)
    hidden[0, 1:] = True
    return hidden


PLACES = torch.cat([torch.arange(8)[None], torch.zeros(7, 8, dtype=torch.long)])


@pytest.mark.parametrize("kind", ["bool", "integer", "places"])
def test_attained_values_stay_below_what_is_certified_for_the_first_samples_mask(kind: str) -> None:
    """The other samples' masks give larger constants: no evidence against this one, which says whose it is."""
    x = Draw(0).tensor(8, 8)
    model = seeded(Gather() if kind == "places" else Masked())
    given = PLACES if kind == "places" else _hidden().long() if kind == "integer" else _hidden()
    name = "places" if kind == "places" else "hidden"
    result = normscope.analyze(model, (x, given))
    upper = result.end_to_end["global"]
    assert upper is not None
    assert upper.domain == f"inputs with {name} as in the first sample"
    truth = torch.autograd.functional.jacobian(lambda z: model(z, given[:1]), x[:1]).reshape(8, 8)
    norm = float(torch.linalg.matrix_norm(truth, 2))
    assert norm <= upper.value <= norm * (1 + 1e-3)
    for key in ("lower", "lower_everywhere", "jacobian"):
        lower = result.end_to_end[key]
        assert lower is not None
        assert lower.value <= upper.value
    other = torch.autograd.functional.jacobian(lambda z: model(z, given[1:2]), x[:1]).reshape(8, 8)
    assert float(torch.linalg.matrix_norm(other, 2)) > upper.value  # so the words are needed
    assert result.input["held_fixed"] == [name]
    assert any(f"with {name} as in the first sample" in text for text in result.messages)


def test_what_is_made_of_tokens_besides_their_embedding_is_held_too() -> None:
    """A pooling mask computed from ids: only samples with the same mask are candidates."""
    model = seeded(Pooled())
    ids = torch.full((4, 6), 3)
    ids[1:, 1:] = 0  # one token left: the mean over it is longer
    ids[3] = 5  # other tokens, the same mask as the first
    result = normscope.analyze(model, ids)
    upper, lower = result.end_to_end["global"], result.end_to_end["lower_everywhere"]
    assert upper is not None
    assert lower is not None
    assert lower.value <= upper.value < float(torch.linalg.matrix_norm(model.l.weight.detach(), 2))  # type: ignore[union-attr]
    assert upper.domain == "inputs whose ids give the same masks and places as the first sample"
    captured = captured_of(model, ids)
    found = fixed_inputs(captured, build_program(captured.graph, captured.tensors, captured.at_batch(1)))
    first = values_of(captured, found.names, [ids[:1]])
    assert [same_values(first, values_of(captured, found.names, [ids[i : i + 1]])) for i in range(4)] == [
        True,
        False,
        False,
        True,
    ]


def test_tokens_that_are_only_embedded_are_not_held() -> None:
    """Neither are shapes, and constants made in the shape of the ids."""
    result = normscope.analyze(seeded(Plain()), torch.arange(12).reshape(3, 4))
    assert result.end_to_end["global"].domain == "all inputs"  # type: ignore[union-attr]
    assert result.input["held_fixed"] == []


@pytest.mark.turns(2)
def test_an_attention_mask_is_called_by_its_name() -> None:
    """A transformer with padded samples."""
    config = BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=16, attn_implementation="eager",
    )  # fmt: skip
    model = seeded(BertModel(config, add_pooling_layer=False))
    ids = torch.arange(18).reshape(3, 6) + 3
    mask = torch.ones(3, 6, dtype=torch.long)
    mask[1, 3:] = 0
    result = normscope.analyze(model, {"input_ids": ids, "attention_mask": mask}, points=2, ascent=3)
    upper, lower = result.end_to_end["variance_floor"], result.end_to_end["lower"]
    assert upper is not None
    assert lower is not None
    assert upper.domain.startswith("inputs with attention_mask as in the first sample")
    assert lower.value <= upper.value < float("inf")
    bare = normscope.analyze(model, {"input_ids": ids}, points=1, ascent=0)
    assert bare.input["held_fixed"] == []


def test_weights_are_measured_at_samples_with_the_mask_that_is_held() -> None:
    """What is attained in a weight lies below what is certified."""
    result = normscope.weight_lipschitz(seeded(Masked()), (Draw(0).tensor(8, 8), _hidden()))
    assert result.samples["data"] == 1
    for row in result.weights:
        assert row.attained is not None
        assert row.best is not None
        assert row.attained.log <= row.best.log
