"""One factory for every normalizer: a layer for activations, or a parametrization of the weights before it."""

from typing import TypeVar

import torch
from torch import nn
from torch.nn.utils import parametrizations

#: Every normalizer by its short name.
NORMS = ("bn", "ln", "gn", "in", "rms", "wn", "sn", "none")
#: Those that act on the weights and leave the activations alone.
WEIGHT_NORMS = ("wn", "sn")

Layer = TypeVar("Layer", bound=nn.Module)


class ChannelRMSNorm(nn.Module):
    r"""Divide each pixel by the root mean square of its channels: :math:`\gamma x / \sqrt{\tfrac1C|x|^2 + \epsilon}`.

    >>> y = ChannelRMSNorm(4)(torch.full((1, 4, 2, 2), 3.0))
    >>> bool(torch.allclose(y, torch.ones_like(y)))
    True
    """

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize ``x`` of shape (N, C, H, W) over C."""
        mean_square = x.square().mean(dim=1, keepdim=True)
        return x * torch.rsqrt(mean_square + self.eps) * self.weight[:, None, None]


def known_norm(norm: str, among: tuple[str, ...] = NORMS) -> str:
    """Return ``norm`` if it is one of ``among``.

    >>> known_norm("bn")
    'bn'
    """
    if norm not in among:
        raise ValueError(f"Expected norm to be one of {', '.join(among)}, got {norm!r}.")
    return norm


def group_count(channels: int, most: int = 32, least: int = 2) -> int:
    """Return the largest divisor of ``channels`` that is at most ``most`` and leaves ``least`` channels in a group.

    Groups of one channel would make GroupNorm an InstanceNorm, and in a vector groups of two would leave only signs.

    >>> [group_count(c) for c in (1, 16, 24, 64, 512)]
    [1, 8, 12, 32, 32]
    """
    limit = min(most, max(channels // least, 1))
    return max(divisor for divisor in range(1, limit + 1) if channels % divisor == 0)


def normalizer(norm: str, features: int, dimensions: int) -> nn.Module:
    """Return the normalization layer to put after a linear (1) or a two-dimensional convolution layer (2).

    LayerNorm of images is GroupNorm with one group (all channels and pixels together); RMSNorm of images divides
    each pixel by the root mean square of its channels. Weight normalizers and ``"none"`` leave the activations alone.

    Args:
        norm: one of :data:`NORMS`.
        features: number of features or channels.
        dimensions: 1 for (N, C), 2 for (N, C, H, W).

    Raises:
        ValueError: for an unknown name, or InstanceNorm of vectors (its output would be constant).

    >>> normalizer("gn", 64, 2).num_groups
    32
    >>> normalizer("wn", 64, 1)
    Identity()
    """
    known_norm(norm)
    if dimensions not in (1, 2):
        raise ValueError(f"Expected dimensions to be 1 (vectors) or 2 (images), got {dimensions}.")
    if norm in (*WEIGHT_NORMS, "none"):
        return nn.Identity()
    if norm == "gn":
        return nn.GroupNorm(group_count(features, least=8 if dimensions == 1 else 2), features)
    if dimensions == 1:
        if norm == "in":
            raise ValueError(
                "norm='in' needs several values per channel; a vector has one and would become constant. "
                "Use 'ln' or a convolutional model."
            )
        if norm == "bn":
            return nn.BatchNorm1d(features)
        return token_normalizer(norm, features)
    if norm == "ln":
        return nn.GroupNorm(1, features)
    if norm == "in":
        return nn.InstanceNorm2d(features, affine=True)
    return nn.BatchNorm2d(features) if norm == "bn" else ChannelRMSNorm(features)


def token_normalizer(norm: str, features: int, eps: float = 1e-5) -> nn.Module:
    """Return the normalization layer for tokens (N, T, C), each token on its own.

    >>> token_normalizer("ln", 8).normalized_shape
    (8,)
    """
    known_norm(norm, ("ln", "rms", "none"))
    if norm == "none":
        return nn.Identity()
    return nn.LayerNorm(features, eps=eps) if norm == "ln" else nn.RMSNorm(features, eps=eps)


def weighted(layer: Layer, norm: str) -> Layer:
    """Return ``layer`` with its weight parametrized if ``norm`` acts on weights, unchanged otherwise.

    >>> from torch.nn.utils.parametrize import is_parametrized
    >>> is_parametrized(weighted(nn.Linear(3, 2), "wn")), is_parametrized(weighted(nn.Linear(3, 2), "bn"))
    (True, False)
    """
    known_norm(norm)
    if norm == "wn":
        parametrizations.weight_norm(layer)
    elif norm == "sn":
        parametrizations.spectral_norm(layer)
    return layer
