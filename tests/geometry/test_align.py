"""Alignment: a randomly transformed copy comes back exactly, another network does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope.core.errors import InputError
from normscope.geometry.align import align, interpolation
from normscope.geometry.candidates.permutations import permutation, permuted, places_of, spaces_of
from normscope.geometry.candidates.scales import ChannelScales
from normscope.geometry.channels.labelling import label_channels
from normscope.geometry.discover import Symmetries, symmetry
from normscope.zoo.catalogue import build, example_input
from symmetric_networks import Attention, randomized


def transformed(found: Symmetries, seed: int = 3) -> dict[str, Tensor]:
    """Return a copy moved by every group at once, with random coefficients and orders."""
    function, generator = found.function, torch.Generator().manual_seed(seed)
    labels = label_channels(function).labels
    point: dict[str, Tensor] = dict(function.tensors)
    for group in found.groups:
        if group.family is None:
            continue
        size = 0.5 * getattr(group.family, "width", 1) ** -0.5
        drawn = torch.randn(group.family.size, generator=generator, dtype=torch.float64) * size
        point |= group.family.move(point, drawn, 1.0)
        if isinstance(group.family, ChannelScales):
            rates = group.family.of_labels(drawn)
            for mean, variance, inputs in group.family.labels.statistics:
                factor = rates[inputs.clamp_min(0)].exp()
                point |= {mean: point[mean] * factor, variance: point[variance] * factor.square()}
    places = places_of(function, labels)
    verified = {group.parameters for group in found.groups if group.kind == "permutation"}
    for space in spaces_of(labels, places):
        if space.parameters in verified:
            order = torch.randperm(len(space.units), generator=generator).tolist()
            point |= permuted(places, point, permutation(space, order))
    return point


def gpt2() -> tuple[nn.Module, Tensor]:
    """Return a small GPT-2 and a batch."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=2, n_embd=16, n_head=2, vocab_size=20, n_positions=6, use_cache=False, bos_token_id=0, eos_token_id=0
    )
    return GPT2LMHeadModel(config).eval(), torch.randint(20, (4, 6))


def qwen3() -> tuple[nn.Module, Tensor]:
    """Return a small network as Llama with normalized queries and keys, and a batch."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {"hidden_size": 16, "head_dim": 8, "intermediate_size": 12, "vocab_size": 20, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 6}
    return Qwen3ForCausalLM(Qwen3Config(**sizes, **heads, use_cache=False)).eval(), torch.randint(20, (4, 6))


def zoo(name: str, **options: int) -> Symmetries:
    """Return the symmetries of a network of the zoo."""
    model = randomized(build(name, **options)).float()
    return symmetry(model, example_input(name, 3, **options), batch=3)


VIT = {"image_size": 16, "patch": 8, "width": 12, "depth": 2, "heads": 2, "classes": 4}


@pytest.mark.turns(6)
@pytest.mark.parametrize(
    ("name", "options"),
    [("resnet20", {"width": 4}), ("lstm", {"hidden": 8}), ("vit_tiny", VIT)],
    ids=["resnet20", "lstm", "vit"],
)
def test_a_transformed_copy_comes_back(name: str, options: dict[str, int]) -> None:
    _comes_back(zoo(name, **options))


@pytest.mark.turns(5)
@pytest.mark.parametrize("build", [gpt2, qwen3])
def test_a_transformed_language_model_comes_back(build: Callable[[], tuple[nn.Module, Tensor]]) -> None:
    torch.manual_seed(0)
    model, x = build()
    _comes_back(symmetry(randomized(model), x))


def _comes_back(found: Symmetries) -> None:
    """Assert that a copy moved by all groups is recognised, and that one that computes something else is not."""
    copy = transformed(found)
    result = align(found, copy)
    assert result.before > 0.1
    assert result.after < 1e-12
    assert result.moved > 0
    name = max(found.function.names, key=lambda n: copy[n].numel())
    torch.manual_seed(1)
    other = align(found, {**copy, name: copy[name] * (1 + 0.1 * torch.randn(copy[name].shape))})
    assert other.after > 1e-3


def test_biases_that_are_added_to_each_other_come_back() -> None:
    torch.manual_seed(0)
    found = symmetry(randomized(Recurrent()), torch.randn(4, 5, 3, dtype=torch.float64))
    point: dict[str, Tensor] = dict(found.function.tensors)
    (shift,) = (g.family for g in found.groups if g.kind == "shift")
    assert shift is not None
    result = align(found, {**point, **shift.move(point, torch.randn(shift.size, dtype=torch.float64), 1.0)})
    assert result.before > 0.1
    assert result.same


class Recurrent(nn.Module):
    """A layer, an LSTM and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        return self.head(self.layer(x)[0])


@pytest.mark.turns(3)
@pytest.mark.parametrize("options", [{"width": 8}, {"norm": nn.RMSNorm, "bias": False}, {"turned": True}])
def test_attention(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 4, 8, dtype=torch.float64)
    _comes_back(symmetry(randomized(Attention(**options)), x))


def test_weight_normalization() -> None:
    torch.manual_seed(0)
    normed = nn.utils.parametrizations.weight_norm
    model = nn.Sequential(normed(nn.Linear(3, 4)), nn.LayerNorm(4), nn.ReLU(), normed(nn.Linear(4, 3)))
    _comes_back(symmetry(randomized(model), torch.randn(32, 3).double(), batch=32))


def test_another_network_stays_apart_but_comes_nearer() -> None:
    torch.manual_seed(0)
    make = lambda: nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)).double()  # noqa: E731
    one, two = make(), make()
    found = symmetry(one, torch.randn(16, 3).double(), batch=16)
    result = align(found, two.state_dict())
    assert not result.same
    assert result.after < result.before
    losses = interpolation(found, result.state, found.function.targets(), 5)
    assert len(losses) == 5


def test_wrong_architecture() -> None:
    found = symmetry(nn.Linear(3, 2), torch.randn(4, 3))
    with pytest.raises(InputError, match="lack"):
        align(found, {})
    with pytest.raises(InputError, match="shapes"):
        align(found, nn.Linear(4, 2).state_dict())
