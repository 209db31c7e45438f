"""Inputs scaled so that the largest has norm one, as the paper's experiments have them."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def into_unit_ball(images: Tensor) -> Tensor:
    r"""Return :math:`x / \max_i \lVert x_i \rVert`, so that every example has norm at most one.

    Args:
        images: examples (N, ...).

    >>> import torch
    >>> into_unit_ball(torch.tensor([[3.0, 4.0], [0.0, 2.5]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.5000]])
    """
    largest = float(images.flatten(1).norm(dim=1).max()) if images.numel() else 0.0
    return images / largest if largest > 0 else images


def enlarged(images: Tensor, side: int) -> Tensor:
    """Return square images with three channels and sides of so many pixels, by repetition of what there is.

    Args:
        images: (N, C, H, W) with one or three channels.
        side: a multiple of H and W.

    >>> import torch
    >>> enlarged(torch.ones(2, 1, 8, 8), 16).shape
    torch.Size([2, 3, 16, 16])
    """
    larger = F.interpolate(images, size=(side, side), mode="nearest")
    return larger.expand(-1, 3, -1, -1).contiguous() if larger.shape[1] == 1 else larger
