"""Guesses: the shapes that layers and configurations tell, drawn the same every time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from fingerprints import fingerprint
from normscope.graph.candidates import Sampler, from_configuration, from_layers, from_shape, layer_shapes

LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(6, 2), (6,)),
    "image in a line": (nn.Linear(784, 2), (1, 28, 28)),
    "colour image in a line": (nn.Linear(3072, 2), (3, 32, 32)),
    "convolution": (nn.Conv2d(5, 2, 3), (5, 224, 224)),
    "transposed": (nn.ConvTranspose2d(5, 2, 3), (5, 32, 32)),
    "signal": (nn.Conv1d(5, 2, 3), (5, 16000)),
    "volume": (nn.Conv3d(5, 2, 3), (5, 16, 16, 16)),
    "recurrent": (nn.GRU(5, 2), (16, 5)),
    "attention": (nn.MultiheadAttention(4, 2), (16, 4)),
    "layer norm": (nn.LayerNorm((3, 4)), (16, 3, 4)),
    "rms norm": (nn.RMSNorm(4), (4,)),
    "group norm": (nn.GroupNorm(1, 4), (4, 28, 28)),
    "batch norm": (nn.BatchNorm1d(4), (4,)),
    "batch norm of volumes": (nn.BatchNorm3d(4), (4, 8, 64, 64)),
}


@pytest.mark.parametrize(("layer", "shape"), LAYERS.values(), ids=LAYERS.keys())
def test_layers_tell_shapes(layer: nn.Module, shape: tuple[int, ...]) -> None:
    """Among the candidates is the one a user would have passed, and the layer is not run."""
    assert shape in list(layer_shapes(layer))
    assert list(layer_shapes(nn.ReLU())) == []


def test_draws_are_the_same_every_time_and_touch_no_generator() -> None:
    """In the dtype of the model."""
    model = nn.Linear(3, 2).double()
    before = fingerprint(model)
    first, second = Sampler(model, 4).numbers((3,)), Sampler(model, 4).numbers((3,))
    assert torch.equal(first, second)
    assert (first.dtype, tuple(first.shape)) == (torch.float64, (4, 3))
    ids = Sampler(model, 100).ids((7,), 5)
    assert (int(ids.min()), int(ids.max())) == (0, 4)
    assert fingerprint(model) == before


def test_a_given_shape_becomes_ids_or_numbers() -> None:
    """As the first layer or the given dtype says."""
    embedding = nn.Sequential(nn.Embedding(5, 2))
    assert from_shape(embedding, Sampler(embedding, 2), (3,), None)[""].dtype == torch.int64
    assert from_shape(embedding, Sampler(embedding, 2), (3,), torch.float32)[""].dtype == torch.float32
    linear = nn.Linear(3, 2)
    assert from_shape(linear, Sampler(linear, 2), (3,), torch.int32)[""].dtype == torch.int32


class Configured(nn.Module):
    """A model with a configuration, as in transformers."""

    def __init__(self, name: str, **config: object) -> None:
        super().__init__()
        self.main_input_name = name
        self.config = SimpleNamespace(**config)

    def forward(self, **inputs: Tensor) -> None:
        """Take anything."""


CONFIGURATIONS: dict[str, tuple[nn.Module, dict[str, tuple[int, ...]]]] = {
    "text": (Configured("input_ids", vocab_size=9), {"input_ids": (2, 16)}),
    "short text": (Configured("input_ids", vocab_size=9, n_positions=4), {"input_ids": (2, 4)}),
    "image": (Configured("pixel_values", image_size=20, num_channels=1), {"pixel_values": (2, 1, 20, 20)}),
    "wide image": (Configured("pixel_values", image_size=(8, 10)), {"pixel_values": (2, 3, 8, 10)}),
    "spectrum": (Configured("input_features", num_mel_bins=8, max_source_positions=5), {"input_features": (2, 8, 10)}),
    "sound": (Configured("input_values"), {"input_values": (2, 16000)}),
    "translation": (
        Configured("input_ids", vocab_size=9, is_encoder_decoder=True),
        {"input_ids": (2, 16), "decoder_input_ids": (2, 16)},
    ),
}


@pytest.mark.parametrize(("model", "shapes"), CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def test_configurations_tell_inputs(model: nn.Module, shapes: dict[str, tuple[int, ...]]) -> None:
    """By name, the first guess as written there."""
    first = next(from_configuration(model, Sampler(model, 2)))
    assert {name: tuple(value.shape) for name, value in first.items()} == shapes


def test_models_without_configuration_yield_nothing() -> None:
    """Neither do parameter-free models from their layers."""
    assert list(from_configuration(nn.Linear(2, 2), Sampler(nn.ReLU(), 2))) == []
    assert list(from_layers(nn.Sequential(nn.ReLU()), Sampler(nn.ReLU(), 2))) == []
    pair = [tuple(g[""].shape) for g in from_layers(nn.EmbeddingBag(4, 2), Sampler(nn.ReLU(), 2))]
    assert pair == [(2, 16), (2,)]
