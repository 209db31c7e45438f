"""What finding and verifying all symmetries costs: CPU time over that of a forward pass, per parameter tensor."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.machine import Clock, environment, timed
from normscope.geometry.discover import symmetry_groups
from normscope.geometry.function import function_of
from normscope.graph.capture import capture
from normscope.graph.inputs import ModelInputs
from normscope.zoo.catalogue import build

Say = Callable[[str], None]
Case = tuple[nn.Module, Tensor]


def _images(name: str, size: int, batch: int = 8, **options: Any) -> Case:
    """Return a network of the zoo and a batch of images."""
    return build(name, **options), torch.randn(batch, 3, size, size)


def _gpt2(layers: int, width: int, heads: int, tokens: int, length: int) -> Case:
    """Return a GPT-2 and a batch."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": layers, "n_embd": width, "n_head": heads, "vocab_size": tokens, "n_positions": length}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **ends, use_cache=False)).eval(), torch.randint(tokens, (8, length))


def _qwen3(layers: int, width: int, heads: int, tokens: int, length: int) -> Case:
    """Return a network as Llama with normalized queries and keys, and a batch."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {"hidden_size": width, "head_dim": width // heads, "intermediate_size": 3 * width, "vocab_size": tokens}
    counts = {"num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads // 2}
    config = Qwen3Config(**sizes, **counts, max_position_embeddings=length, use_cache=False)
    return Qwen3ForCausalLM(config).eval(), torch.randint(tokens, (8, length))


_SMALL_VIT = {"image_size": 16, "patch": 8, "width": 12, "depth": 2, "heads": 2, "classes": 4}
NETWORKS: dict[str, Callable[[], Case]] = {
    "ResNet-18, 8 images of 32 x 32": lambda: _images("resnet18_cifar", 32),
    "ResNet-20, 8 images of 32 x 32": lambda: _images("resnet20", 32),
    "ConvNeXt-T, 4 images of 64 x 64": lambda: _images("convnext_tiny", 64, 4),
    "EfficientNet-B0, 8 images of 96 x 96": lambda: _images("efficientnet_b0", 96),
    "ViT-Ti/16, 8 images of 112 x 112": lambda: _images("vit_tiny", 112, image_size=112),
    "GPT-2, 12 layers of 256, 8 x 64 tokens": lambda: _gpt2(12, 256, 8, 512, 64),
    "Qwen3, 12 layers of 256, 8 x 64 tokens": lambda: _qwen3(12, 256, 8, 512, 64),
    "toy ViT, 2 layers of 12, 5 tokens": lambda: _images("vit_tiny", 16, **_SMALL_VIT),
    "toy GPT-2, 2 layers of 32, 8 tokens": lambda: _gpt2(2, 32, 2, 32, 8),
    "toy Qwen3, 2 layers of 32, 8 tokens": lambda: _qwen3(2, 32, 2, 32, 8),
}


@dataclass(frozen=True)
class Settings:
    """Which networks are measured."""

    names: tuple[str, ...] = tuple(NETWORKS)


QUICK = Settings(names=("toy ViT, 2 layers of 12, 5 tokens",))


def _generic(model: nn.Module) -> nn.Module:
    """Return a model whose vectors of parameters are neither zeros nor ones, as after training."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in model.parameters():
            if value.ndim < 2:
                value.add_(0.3 * torch.randn(value.shape, generator=generator))
    return model


def measure(name: str) -> dict[str, Any]:
    """Return what the search costs on one network, once it is captured, with permutations, gradient and Hessian."""
    torch.manual_seed(0)
    model, x = NETWORKS[name]()
    function = function_of(capture(_generic(model), ModelInputs((x,))))
    moved = {key: value.clone() for key, value in function.point.items()}  # so that every node is computed
    with torch.no_grad():
        function.flat(moved)
        forward = statistics.median(timed(lambda: function.flat(moved))[1].cpu for _ in range(5))
    start = Clock.now()
    groups = symmetry_groups(function, lambda text: None)
    spent, tensors = start.since().cpu, len(function.names)
    return {
        "name": name,
        "tensors": tensors,
        "parameters": sum(function.tensors[n].numel() for n in function.names),
        "dimension": sum(group.dimension for group in groups),
        "forward": forward,
        "cpu": spent,
        "ratio": spent / forward / tensors,
    }


def run(settings: Settings, say: Say) -> Iterator[dict[str, Any]]:
    """Measure one network after the other; yield after each."""
    rows = []
    for name in settings.names:
        rows.append(measure(name))
        say(f"{name}: {rows[-1]['cpu']:.1f} CPU s, {rows[-1]['ratio']:.2f} forward passes per tensor")
        yield {"environment": environment(), "rows": rows}
