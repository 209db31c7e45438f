"""``python -m benchmarks.doctor.times``: CPU seconds of a check after torch is loaded, one thread."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import normscope
from benchmarks.doctor.case import convnet, images


def _resnet50() -> tuple[nn.Module, Tensor]:
    import transformers

    return transformers.ResNetForImageClassification(transformers.ResNetConfig()), torch.randn(8, 3, 224, 224)


def _vit_b() -> tuple[nn.Module, Tensor]:
    import transformers

    return transformers.ViTForImageClassification(transformers.ViTConfig()), torch.randn(8, 3, 224, 224)


NETWORKS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "two convolutions at 8x8": lambda: (convnet(), images(64)),
    "ResNet-50 at 224x224": _resnet50,
    "ViT-B/16 at 224x224": _vit_b,
}


def main(names: list[str]) -> int:
    """Print the CPU time of a check without data and with eight samples."""
    torch.set_num_threads(1)
    normscope.check(nn.Linear(2, 2))  # loads what torch loads late
    print("| network | no data | 8 samples |\n|---|---|---|")
    for name, build in NETWORKS.items():
        if names and not any(part in name for part in names):
            continue
        model, data = build()
        seconds = []
        for given, options in ((None, {"input_shape": tuple(data.shape[1:])}), (data, {})):
            start = time.process_time()
            normscope.check(model.eval(), given, **options)
            seconds.append(time.process_time() - start)
        print(f"| {name} | {seconds[0]:.1f} s | {seconds[1]:.1f} s |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
