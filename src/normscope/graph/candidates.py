"""Example inputs for a model without data: from its configuration, or from its first layers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normscope.graph.signature import input_device, input_dtype, signature_of, sized_layers

SEQUENCE = 16
_IMAGE_SIZES = (224, 32, 64, 28, 96, 128, 299, 256, 384, 512, 16)
_SIGNAL_SIZES = (128, 1024, 16000, 64, 32, 16)
_VOLUME_SIZES = ((16, 112, 112), (8, 64, 64), (16, 16, 16), (32, 32, 32), (64, 64, 64))
#: How many of a model's first layers are used to guess the shape of the input.
_ASKED = 4


class Sampler:
    """Draws example tensors for one model: the same ones every time.

    >>> Sampler(nn.Linear(2, 2), batch=3).numbers((2,)).shape
    torch.Size([3, 2])
    """

    def __init__(self, model: nn.Module, batch: int) -> None:
        self.batch = batch
        self.device = input_device(model)
        self.dtype = input_dtype(model)

    def numbers(self, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        """Draw normal numbers of a shape without the batch axis."""
        generator = torch.Generator().manual_seed(0)
        return torch.randn((self.batch, *shape), generator=generator).to(self.device, dtype or self.dtype)

    def ids(self, shape: Sequence[int], vocabulary: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """Draw indices below a vocabulary's size."""
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randint(max(1, vocabulary), (self.batch, *shape), generator=generator)
        return drawn.to(self.device, dtype)


def from_shape(
    model: nn.Module, sampler: Sampler, shape: Sequence[int], dtype: torch.dtype | None
) -> dict[str, Tensor]:
    """Return the one input of a given shape, under its name in the model's forward (empty if it has none)."""
    vocabulary = _vocabulary(model)
    integer = not dtype.is_floating_point if dtype is not None else vocabulary is not None
    name = getattr(model, "main_input_name", "") if hasattr(model, "config") else ""
    if integer:
        return {name: sampler.ids(shape, vocabulary or 2, dtype or torch.int64)}
    return {name: sampler.numbers(shape, dtype)}


def from_configuration(model: nn.Module, sampler: Sampler) -> Iterator[dict[str, Tensor]]:
    """Yield the inputs a model's ``config`` (transformers) or ``pretrained_cfg`` (timm) describes.

    Yields:
        Inputs by name; the empty name stands for the first positional argument.
    """
    for holder in (getattr(model, "pretrained_cfg", None), getattr(model, "default_cfg", None)):
        size = _read(holder, "input_size")
        if isinstance(size, tuple | list):
            yield {"": sampler.numbers(tuple(size))}
    config = getattr(model, "config", None)
    name = getattr(model, "main_input_name", None)
    if config is None or not isinstance(name, str):
        return
    for main in _main_inputs(config, name, sampler):
        inputs = {name: main}
        if {"input_ids", "pixel_values"} <= set(signature_of(model).keywords):  # text and images, as CLIP takes them
            inputs["input_ids"] = _text(_part(config, "text_config"), sampler)
            inputs["pixel_values"] = next(_images(_part(config, "vision_config"), sampler))
        if getattr(config, "is_encoder_decoder", False):
            inputs["decoder_input_ids"] = _text(config, sampler)
        yield inputs


def from_layers(model: nn.Module, sampler: Sampler) -> Iterator[dict[str, Tensor]]:
    """Yield inputs that fit one of the first layers of a model, the likeliest first.

    Yields:
        One input under the empty name, which stands for every required argument.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    >>> [tuple(inputs[""].shape) for inputs in from_layers(model, Sampler(model, 2))][0]
    (2, 784)
    """
    for index, (_, layer) in enumerate(sized_layers(model)):
        if index == _ASKED:
            return
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            yield {"": sampler.ids((SEQUENCE,), layer.num_embeddings)}
            yield {"": sampler.ids((), layer.num_embeddings)}
        else:
            for shape in layer_shapes(layer):
                yield {"": sampler.numbers(shape)}


def layer_shapes(layer: nn.Module) -> Iterator[tuple[int, ...]]:
    """Yield shapes, without the batch axis, that a layer accepts.

    >>> list(layer_shapes(nn.Linear(5, 2)))
    [(5,), (16, 5)]
    """
    if isinstance(layer, nn.modules.conv._ConvNd):
        yield from _grids(layer.in_channels, len(layer.kernel_size))
    elif isinstance(layer, nn.Linear):
        yield from ((layer.in_features,), (SEQUENCE, layer.in_features))
        for channels in (1, 3):
            side = round((layer.in_features / channels) ** 0.5)
            if side > 1 and channels * side * side == layer.in_features:
                yield channels, side, side
    elif isinstance(layer, nn.RNNBase):
        yield SEQUENCE, layer.input_size
    elif isinstance(layer, nn.MultiheadAttention):
        yield SEQUENCE, layer.embed_dim
    elif isinstance(layer, nn.LayerNorm | nn.RMSNorm):
        yield from (tuple(layer.normalized_shape), (SEQUENCE, *layer.normalized_shape))
    elif isinstance(layer, nn.GroupNorm):
        yield from _grids(layer.num_channels, 2)
    elif isinstance(layer, nn.modules.batchnorm._BatchNorm):
        yield (layer.num_features,)
        for axes in (1, 2, 3):
            yield from _grids(layer.num_features, axes)


def _grids(channels: int, axes: int) -> Iterator[tuple[int, ...]]:
    """Yield usual sizes of signals, images or volumes with some channels."""
    if axes == 1:
        yield from ((channels, size) for size in _SIGNAL_SIZES)
    elif axes == 2:
        yield from ((channels, size, size) for size in _IMAGE_SIZES)
    else:
        yield from ((channels, *size) for size in _VOLUME_SIZES)


def _main_inputs(config: Any, name: str, sampler: Sampler) -> Iterator[Tensor]:
    """Yield the main input of a transformers model by its name."""
    if name == "pixel_values":
        yield from _images(_part(config, "vision_config"), sampler)
    elif name == "input_features":
        bins = _read(config, "num_mel_bins") or _read(config, "input_feat_per_channel") or 80
        frames = 2 * (_read(config, "max_source_positions") or 64)
        yield sampler.numbers((bins, frames))
        yield sampler.numbers((frames, bins))
    elif name == "input_values":
        yield sampler.numbers((16000,))
        yield sampler.numbers((_read(config, "num_mel_bins") or 128, _read(config, "max_length") or 1024))
    else:
        yield _text(_part(config, "text_config"), sampler)


def _text(config: Any, sampler: Sampler) -> Tensor:
    """Return token ids that fit a configuration."""
    longest = _read(config, "max_position_embeddings") or _read(config, "n_positions") or SEQUENCE
    return sampler.ids((min(SEQUENCE, longest),), _read(config, "vocab_size") or 2)


def _images(config: Any, sampler: Sampler) -> Iterator[Tensor]:
    """Yield images that fit a configuration, in usual sizes if it does not give the size."""
    channels = _read(config, "num_channels") or 3
    size = _read(config, "image_size")
    if isinstance(size, tuple | list):
        yield sampler.numbers((channels, *size))
    for side in (size,) if isinstance(size, int) else _IMAGE_SIZES:
        yield sampler.numbers((channels, side, side))


def _part(config: Any, name: str) -> Any:
    """Return a part of a configuration, or the whole if it has no such part."""
    return _read(config, name) or config


def _read(holder: Any, name: str) -> Any:
    """Return a field of a dictionary or an object, or ``None``."""
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


def _vocabulary(model: nn.Module) -> int | None:
    """Return the number of tokens if the model's first layer is an embedding."""
    layer = next((layer for _, layer in sized_layers(model)), None)
    return layer.num_embeddings if isinstance(layer, nn.Embedding | nn.EmbeddingBag) else None
