"""The zoo: every built-in network by name. Importing this module does not import torch."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from normscope.core.errors import FactoryError, ModelNotFoundError, suggestion

if TYPE_CHECKING:
    import torch
    from torch import nn

_IMAGE_32 = (3, 32, 32)
_IMAGE_224 = (3, 224, 224)
_CIFAR: dict[str, Any] = {"classes": 10, "image_size": 32}
_DEEP: dict[str, Any] = {"blocks": (3, 4, 6, 3)}
_BOTTLENECKS: dict[str, Any] = {**_DEEP, "bottleneck": True}
_B3: dict[str, Any] = {"image_size": 300, "width": 1.2, "depth": 1.4}
_ATTO: dict[str, Any] = {"width": 40, "blocks": (2, 2, 6, 2), "response": True}
_TOKENS = ("gpt", "llama_like")
#: What an argument must be where the default is a number of this type.
_NUMBERS: dict[type, tuple[type, str]] = {int: (Integral, "an integer"), float: (Real, "a number")}


@dataclass(frozen=True)
class ZooEntry:
    """One network of the zoo; its code is imported when it is first built."""

    name: str  #: what to write after ``zoo:``
    module: str  #: the file of its factory, in ``normscope.zoo.networks``
    factory: str  #: a class or a function; every argument has a default
    defaults: Mapping[str, Any]  #: arguments that take the place of the factory's own defaults
    #: shape of one example, without the batch, for the default arguments; a built network carries its own as
    #: ``network.input_shape``
    input_shape: tuple[int, ...]
    description: str  #: one line

    @property
    def input_dtype(self) -> str:
        """Return ``"float32"``, or ``"int64"`` for token ids (in ``range(network.vocabulary)``)."""
        return "int64" if self.name in _TOKENS else "float32"

    def resolve(self) -> Callable[..., Any]:
        """Import and return the factory."""
        return getattr(importlib.import_module(f"normscope.zoo.networks.{self.module}"), self.factory)

    def build(self, **kwargs: Any) -> nn.Module:
        """Call the factory; ``kwargs`` override the entry's own defaults."""
        return self.resolve()(**{**self.defaults, **kwargs})


#: Name, file, factory, defaults, input shape and description of every network.
_TABLE: tuple[tuple[str, str, str, dict[str, Any], tuple[int, ...], str], ...] = (
    ("relu10", "mlp", "relu10", {}, _IMAGE_32, "the papers' network: 10 linear layers, 512 wide, ReLU"),
    ("mlp", "mlp", "mlp", {}, (1, 28, 28), "multilayer perceptron 784-256-128-10"),
    ("cnn", "cnn", "CNN", {}, _IMAGE_32, "three convolutions and a linear layer"),
    ("wn_cnn", "cnn", "CNN", {"norm": "wn"}, _IMAGE_32, "the same with weight normalization"),
    ("sn_cnn", "cnn", "CNN", {"norm": "sn"}, _IMAGE_32, "the same with spectral normalization"),
    ("resnet20", "cifar_resnet", "CifarResNet", {}, _IMAGE_32, "CIFAR ResNet-20, shortcuts without parameters"),
    ("resnet18", "resnet", "ResNet", {}, _IMAGE_224, "ResNet-18"),
    ("resnet34", "resnet", "ResNet", _DEEP, _IMAGE_224, "ResNet-34"),
    ("resnet50", "resnet", "ResNet", _BOTTLENECKS, _IMAGE_224, "ResNet-50"),
    ("resnet18_cifar", "resnet", "ResNet", _CIFAR, _IMAGE_32, "ResNet-18 for 32x32 images"),
    ("resnet34_cifar", "resnet", "ResNet", _CIFAR | _DEEP, _IMAGE_32, "ResNet-34 for 32x32 images"),
    ("resnet50_cifar", "resnet", "ResNet", _CIFAR | _BOTTLENECKS, _IMAGE_32, "ResNet-50 for 32x32 images"),
    ("preact_resnet18", "preact_resnet", "PreactivationResNet", {}, _IMAGE_32, "pre-activation ResNet-18"),
    ("vgg11", "vgg", "VGG", {}, _IMAGE_32, "VGG-11 for 32x32 images"),
    ("mobilenet_v2", "mobilenet", "MobileNetV2", {}, _IMAGE_224, "MobileNetV2: depthwise convolutions, ReLU6"),
    ("efficientnet_b0", "efficientnet", "EfficientNet", {}, _IMAGE_224, "EfficientNet-B0: SiLU, gates"),
    ("efficientnet_b3", "efficientnet", "EfficientNet", _B3, (3, 300, 300), "EfficientNet-B3: SiLU, gates"),
    ("convnext_tiny", "convnext", "ConvNeXt", {}, _IMAGE_224, "ConvNeXt-T: depthwise 7x7, LayerNorm"),
    ("convnextv2_atto", "convnext", "ConvNeXt", _ATTO, _IMAGE_224, "ConvNeXt V2 atto: response normalization"),
    ("densenet", "densenet", "DenseNet", {}, _IMAGE_32, "small DenseNet: concatenation"),
    ("inception", "inception", "Inception", {}, _IMAGE_32, "parallel branches, concatenated"),
    ("unet", "unet", "UNet", {}, _IMAGE_32, "small U-Net: transposed convolutions, skips"),
    ("autoencoder", "autoencoder", "Autoencoder", {}, (1, 28, 28), "convolutional autoencoder"),
    ("regnet", "regnet", "RegNet", {}, _IMAGE_32, "grouped convolutions"),
    ("nfnet", "nfnet", "NFNet", {}, _IMAGE_32, "normalizer-free: standardized weights"),
    ("vit_tiny", "vit", "VisionTransformer", {}, _IMAGE_224, "ViT-Ti/16: pre-norm, class token"),
    ("mixer", "mixer", "Mixer", {}, _IMAGE_32, "small MLP-Mixer"),
    ("transformer_encoder", "transformer", "SequenceClassifier", {}, (16, 16), "nn.TransformerEncoder"),
    ("gpt", "gpt", "GPT", {}, (16,), "decoder-only transformer, causal, learned positions"),
    ("llama_like", "llama", "LlamaLike", {}, (16,), "RMSNorm by hand, rotary positions, grouped queries, SwiGLU"),
    ("lstm", "recurrent", "Recurrent", {}, (8, 8), "nn.LSTM over a sequence"),
    ("gru", "recurrent", "Recurrent", {"kind": "gru"}, (8, 8), "nn.GRU over a sequence"),
    ("lstm_cell", "recurrent", "Unrolled", {}, (8, 8), "LSTM cell written out"),
    ("gru_cell", "recurrent", "Unrolled", {"kind": "gru"}, (8, 8), "GRU cell written out"),
)
#: Every network by name.
ZOO: dict[str, ZooEntry] = {row[0]: ZooEntry(*row) for row in _TABLE}


def entry(name: str) -> ZooEntry:
    """Return the entry of this name.

    >>> entry("relu10").input_shape
    (3, 32, 32)
    """
    if name not in ZOO:
        raise ModelNotFoundError(f"No network {name!r} in the zoo. {suggestion(name, sorted(ZOO), most=len(ZOO))}")
    return ZOO[name]


def build(name: str, *, seed: int = 0, arguments: Mapping[str, Any] | None = None, **kwargs: Any) -> nn.Module:
    """Return a network of the zoo with random weights that depend on ``seed`` alone; global generators are unchanged.

    Args:
        name: a key of :data:`ZOO`.
        seed: of the initial weights.
        arguments: of the network's factory, by name.
        **kwargs: more of them, e.g. ``norm="ln"``.

    Raises:
        ModelNotFoundError: if the zoo has no such network.
        FactoryError: if an argument is unknown or out of range.

    >>> build("relu10", norm="bn", width=8, in_features=64).input_shape
    (1, 8, 8)
    """
    from normscope.zoo.randomness import seeded

    network = entry(name)
    known = inspect.signature(network.resolve()).parameters
    given = {**(arguments or {}), **kwargs}
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise FactoryError(f"Unknown arguments for {name}: {', '.join(unknown)}. It accepts {', '.join(known)}.")
    for key, value in given.items():
        kind, what = _NUMBERS.get(type(network.defaults.get(key, known[key].default)), (object, ""))
        if not isinstance(value, kind):
            raise FactoryError(f"Expected {key} to be {what}, got {value!r}.")
    with seeded(seed):
        try:
            return network.build(**given)
        except (ValueError, TypeError, RuntimeError, ArithmeticError, LookupError, AttributeError) as error:
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise FactoryError(f"Cannot build {name}: {first}.") from error


def example_input(name: str, batch_size: int = 2, *, seed: int = 0, **kwargs: Any) -> torch.Tensor:
    """Return a random batch that the network ``build(name, **kwargs)`` accepts.

    Args:
        name: a key of :data:`ZOO`.
        batch_size: number of examples.
        seed: of the values.
        **kwargs: the arguments the network is built with.

    >>> example_input("lstm", 3).shape
    torch.Size([3, 8, 8])
    """
    import torch

    with torch.device("meta"):
        network: Any = build(name, **kwargs)
    generator = torch.Generator().manual_seed(seed)
    shape = (batch_size, *network.input_shape)
    if entry(name).input_dtype == "int64":
        return torch.randint(network.vocabulary, shape, generator=generator)
    return torch.randn(shape, generator=generator)
