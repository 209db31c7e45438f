"""The network compressed to few bits: every folded tensor rounded to its own grid."""

from __future__ import annotations

import torch
from torch import Tensor

from normscope.analysis.bounds.paths import folded_tensors
from normscope.graph.capture import Captured

#: Bits for each number that are tried, and bits of the scale of a tensor.
WIDTHS, SCALE_BITS = (2, 3, 4, 6, 8), 32


def quantized(captured: Captured, width: int) -> tuple[dict[str, Tensor], int]:
    """Return the tensors of a network rounded to ``2^width - 1`` levels each, and how many bits that takes.

    Args:
        captured: the network; BatchNorm is folded, so that rescalings before it change nothing.
        width: bits for each number.

    Returns:
        The tensors, in the dtype of the inputs, and the bits of their code.

    Raises:
        RefusedError: if BatchNorm cannot be folded.
    """
    tensors, statistics = folded_tensors(captured)
    top = 2 ** (width - 1) - 1
    bits, dtype = 0, captured.example[0].dtype
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            continue
        if name not in statistics:
            scale = torch.tensor(float(tensor.abs().max()) / top or 1.0, dtype=torch.float32).double()
            tensor = (tensor / scale).round().clamp(-top, top) * scale
            bits += tensor.numel() * width + SCALE_BITS
        tensors[name] = tensor.to(dtype)
    return tensors, bits
