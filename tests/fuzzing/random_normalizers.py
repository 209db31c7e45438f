"""Random normalizers of every kind, from their own layers and written out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fuzzing.draw import Draw, Function, Shape, randomized


def normalizer(draw: Draw, shape: Shape) -> nn.Module:
    """Return a normalizer for samples of a shape."""
    choices: list[Callable[[Draw, Shape], nn.Module]] = [_last_axes, _written_out, _l2]
    if len(shape) > 1:
        choices += [_grouped, _channels_first]
    choices.append(_batch)
    if len(shape) == 3:
        choices.append(_response)
    return draw.choice(choices)(draw, shape)


def _batch(draw: Draw, shape: Shape) -> nn.Module:
    """Return BatchNorm with random running statistics."""
    kinds = {1: nn.BatchNorm1d, 2: nn.BatchNorm1d, 3: nn.BatchNorm2d, 4: nn.BatchNorm3d}
    return randomized(kinds[len(shape)](shape[0], eps=draw.eps(), affine=draw.chance(0.8)), draw).eval()


def _last_axes(draw: Draw, shape: Shape) -> nn.Module:
    """Return LayerNorm or RMSNorm over some last axes."""
    count = draw.integer(1, len(shape))
    over = list(shape[-count:])
    if draw.chance():
        return randomized(nn.LayerNorm(over, eps=draw.eps(), elementwise_affine=draw.chance(0.7)), draw)
    eps = None if draw.chance(0.2) else draw.eps()
    return randomized(nn.RMSNorm(over, eps=eps, elementwise_affine=draw.chance(0.7)), draw)


def _grouped(draw: Draw, shape: Shape) -> nn.Module:
    """Return GroupNorm or InstanceNorm."""
    channels = shape[0]
    if draw.chance(0.4) and math.prod(shape[1:]) > 1:
        kind = {2: nn.InstanceNorm1d, 3: nn.InstanceNorm2d, 4: nn.InstanceNorm3d}[len(shape)]
        tracked = draw.chance(0.2)
        return randomized(
            kind(channels, eps=draw.eps(), affine=draw.chance(), track_running_stats=tracked), draw
        ).eval()
    groups = draw.choice([g for g in range(1, channels + 1) if channels % g == 0])
    return randomized(nn.GroupNorm(groups, channels, eps=draw.eps(), affine=draw.chance(0.7)), draw)


def _channels_first(draw: Draw, shape: Shape) -> nn.Module:
    """Return LayerNorm over the channels of each place, by permutation or written out."""
    gamma, eps = draw.gamma(shape[0]), draw.eps()
    beta = draw.tensor(shape[0])
    tail = (1,) * (len(shape) - 1)

    def permuted(m: Any, x: Tensor) -> Tensor:
        return F.layer_norm(x.movedim(1, -1), (shape[0],), m.gamma, m.beta, eps).movedim(-1, 1)

    def by_hand(m: Any, x: Tensor) -> Tensor:
        centered = x - x.mean(1, keepdim=True)
        scaled = centered / torch.sqrt(centered.pow(2).mean(1, keepdim=True) + eps)
        return m.gamma.reshape(-1, *tail) * scaled + m.beta.reshape(-1, *tail)

    return Function("channels first", draw.choice([permuted, by_hand]), gamma=gamma, beta=beta)


def _written_out(draw: Draw, shape: Shape) -> nn.Module:
    """Return a normalizer over the last axis written in elementary operations."""
    n, eps = shape[-1], draw.eps()
    biased = draw.chance() or n == 1
    dims = (-1,) if len(shape) == 1 or draw.chance(0.7) else (-2, -1)

    def mean(x: Tensor) -> Tensor:
        return x.mean(dims, keepdim=True)

    def var(x: Tensor) -> Tensor:
        return x.var(dims, keepdim=True, unbiased=not biased)

    forms: dict[str, Callable[[Any, Tensor], Tensor]] = {
        "rms": lambda m, x: m.gamma * (x * torch.rsqrt(mean(x.pow(2)) + eps)),
        "rms/": lambda m, x: x / torch.sqrt(mean(x * x) + eps) * m.gamma,
        "rms pow": lambda m, x: x * (mean(x.square()) + eps).pow(-0.5),
        "rms outside": lambda m, x: x / (mean(x.square()).sqrt() + eps),
        "layer": lambda m, x: (x - mean(x)) * torch.rsqrt(var(x) + eps) * m.gamma,
        "layer/": lambda m, x: (x - mean(x)) / (var(x) + eps).sqrt() + m.gamma,
        "layer outside": lambda m, x: m.gamma * (x - mean(x)) / (var(x).sqrt() + eps),
        "layer max": lambda m, x: (x - mean(x)) / torch.sqrt(var(x).clamp_min(eps)),
        "layer std": lambda m, x: (x - mean(x)) / (x.std(dims, keepdim=True, unbiased=not biased) + eps),
        "float": lambda m, x: x.double() * torch.rsqrt(mean(x.double().pow(2)) + eps),
        "odd": lambda m, x: (x - x.mean(tuple(range(1, x.ndim)), keepdim=True)) * torch.rsqrt(var(x) + eps),
        "half centred": lambda m, x: (x - 0.5 * mean(x)) * torch.rsqrt(var(x) + eps),
    }
    name = draw.choice(sorted(forms))
    return Function(f"{name} dims={dims}", forms[name], gamma=draw.gamma(n))


def _l2(draw: Draw, shape: Shape) -> nn.Module:
    """Return division by the l2 norm along an axis."""
    axis, eps = draw.integer(1, len(shape)), draw.eps()
    forms: dict[str, Callable[[Any, Tensor], Tensor]] = {
        "normalize": lambda m, x: F.normalize(x, dim=axis, eps=eps),
        "cosine": lambda m, x: m.g * (x / (x.norm(dim=axis, keepdim=True) + eps)),
        "sum": lambda m, x: x / (x.pow(2).sum(axis, keepdim=True) + eps).sqrt(),
        "clamped": lambda m, x: x / x.norm(dim=axis, keepdim=True).clamp_min(eps),
    }
    name = draw.choice(sorted(forms))
    return Function(f"{name} axis={axis}", forms[name], g=draw.gamma(1))


def _response(draw: Draw, shape: Shape) -> nn.Module:
    """Return global response normalization, channels first or last."""
    last = draw.chance()
    space, channel = ((1, 2), -1) if last else ((2, 3), 1)
    size = shape[-1] if last else shape[0]
    gamma, beta, eps = draw.gamma(size), draw.tensor(size), draw.eps()
    tail = (size,) if last else (size, 1, 1)

    def response(m: Any, x: Tensor) -> Tensor:
        norms = torch.norm(x, p=2, dim=space, keepdim=True)
        ratio = norms / (norms.mean(dim=channel, keepdim=True) + eps)
        return m.gamma.reshape(tail) * (x * ratio) + m.beta.reshape(tail) + x

    return Function("response", response, gamma=gamma, beta=beta)
