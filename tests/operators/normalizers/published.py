"""Normalizers as papers and libraries write them: modules to be recognised, each from its published definition."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _maps(values: Tensor) -> Tensor:
    """Return one value per channel with axes for positions."""
    return values.view(1, -1, 1, 1)


class ScaledStdConv(nn.Conv2d):
    """Scaled weight standardization (Brock et al. 2021), written with batch_norm on the reshaped weight."""

    def __init__(self, *args: Any, eps: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gain = nn.Parameter(torch.full((self.out_channels, 1, 1, 1), 1.3))
        self.scale, self.eps = 1.7 / math.sqrt(self.weight[0].numel()), eps

    def forward(self, x: Tensor) -> Tensor:
        """Convolve with the standardized weight."""
        weight = F.batch_norm(
            self.weight.reshape(1, self.out_channels, -1), None, None, weight=(self.gain * self.scale).view(-1),
            training=True, momentum=0.0, eps=self.eps,
        ).reshape_as(self.weight)  # fmt: skip
        return self._conv_forward(x, weight, self.bias)


class WSConv(nn.Conv2d):
    """The same as the first authors write it: ``w * scale - mean * scale``, the variance kept above eps."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolve with the standardized weight."""
        mean = self.weight.mean((1, 2, 3), keepdim=True)
        variance = self.weight.var((1, 2, 3), keepdim=True, unbiased=False)
        scale = torch.rsqrt(torch.clamp(variance * self.weight[0].numel(), min=1e-4))
        return self._conv_forward(x, self.weight * scale - mean * scale, self.bias)


class StdConv(nn.Conv2d):
    """Weight standardization (Qiao et al. 2019) as BiT has it."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolve with the standardized weight."""
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True, unbiased=False)
        return self._conv_forward(x, (self.weight - mean) / torch.sqrt(variance + 1e-10), self.bias)


class FilterResponseNorm(nn.Module):
    """Filter response normalization with thresholded linear unit (Singh and Krishnan 2020)."""

    def __init__(self, channels: int, eps: float = 1e-6, *, per_channel: bool = False) -> None:
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.tau = nn.Parameter(torch.zeros(channels))
        self.eps = nn.Parameter(torch.full((1, channels, 1, 1) if per_channel else (1,), eps))

    def forward(self, x: Tensor) -> Tensor:
        """Divide each channel by its root mean square."""
        square = x.pow(2).mean((2, 3), keepdim=True)
        x = x * torch.rsqrt(square + self.eps.abs())
        return torch.maximum(x * _maps(self.gamma) + _maps(self.beta), _maps(self.tau))


def instance_std(x: Tensor, eps: float) -> Tensor:
    """Return the standard deviation of each channel of each sample."""
    return (x.float().var((2, 3), keepdim=True, unbiased=False) + eps).sqrt().to(x.dtype).expand_as(x)


def group_std(x: Tensor, groups: int, eps: float, *, centred: bool = True) -> Tensor:
    """Return the standard deviation (or root mean square) of each group of channels of each sample."""
    n, c, h, w = x.shape
    grouped = x.reshape(n, groups, c // groups, h, w)
    if centred:
        spread = (grouped.var((2, 3, 4), keepdim=True, unbiased=False) + eps).sqrt()
    else:
        spread = (grouped.square().mean((2, 3, 4), keepdim=True) + eps).sqrt()
    return spread.expand_as(grouped).reshape(n, c, h, w)


class EvoNorm(nn.Module):
    """The EvoNorms of Liu et al. 2020 with running statistics: B0, B1, B2, S0, S1, S2."""

    def __init__(self, form: str, channels: int, groups: int = 2, eps: float = 1e-3) -> None:
        super().__init__()
        self.form, self.groups, self.eps = form, groups, eps
        self.gamma, self.beta = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.v = nn.Parameter(torch.ones(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the form."""
        fixed = _maps((self.running_var + self.eps).sqrt()).expand_as(x)  # type: ignore[operator]
        if self.form == "B0":
            x = x / torch.maximum(fixed, x * _maps(self.v) + instance_std(x, self.eps))
        elif self.form == "B1":
            x = x / fixed.max((x + 1) * (x.square().mean((2, 3), keepdim=True) + self.eps).sqrt())
        elif self.form == "B2":
            x = x / fixed.max((x.square().mean((2, 3), keepdim=True) + self.eps).sqrt() - x)
        elif self.form == "S0":
            x = x * (x * _maps(self.v)).sigmoid() / group_std(x, self.groups, self.eps)
        elif self.form == "S1":
            x = F.silu(x) / group_std(x, self.groups, self.eps)
        else:
            x = F.silu(x) / group_std(x, self.groups, self.eps, centred=False)
        return x * _maps(self.gamma) + _maps(self.beta)


class SimpleNorm(nn.Module):
    """Division by the standard deviation without removing the mean, as timm's SimpleNorm."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        """Divide by the root of the variance."""
        return x * torch.rsqrt(torch.var(x, dim=-1, keepdim=True) + self.eps) * self.weight


class CRMSNorm(nn.Module):
    """Compressed RMSNorm (Jiang et al. 2023): RMSNorm of ``(x, -sum x)``, whose last entry is not kept."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        """Divide by the root mean square of what was compressed."""
        n = x.shape[-1] + 1
        square = (x.square().sum(-1, keepdim=True) + x.sum(-1, keepdim=True).square()) / n
        return x * torch.rsqrt(square + self.eps) * self.weight


class ScaleNorm(nn.Module):
    """ScaleNorm (Nguyen and Salazar 2019): ``g x/||x||``, the gain at one of three places."""

    def __init__(self, form: str, eps: float = 1e-5) -> None:
        super().__init__()
        self.form, self.eps = form, eps
        self.g = nn.Parameter(torch.tensor(3.0))

    def forward(self, x: Tensor) -> Tensor:
        """Divide by the length."""
        length = torch.linalg.norm(x, dim=-1, keepdim=True).clamp(min=self.eps)
        if self.form == "first":
            return self.g * x / length
        return x * (self.g / length) if self.form == "inverse" else x / length * self.g


class PowerNorm(nn.Module):
    """PowerNorm (Shen et al. 2020): the running quadratic mean in evaluation, that of the batch in training."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), eps
        self.register_buffer("running_phi", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Divide by the running root mean square."""
        phi = x.square().mean((0, 1)) if self.training else self.running_phi
        return self.weight * (x / (phi + self.eps).sqrt()) + self.bias  # type: ignore[operator]


class SwitchNorm(nn.Module):
    """Switchable normalization (Luo et al. 2018): a mixture of instance, layer and running batch statistics."""

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels)), eps
        self.mean_weight, self.var_weight = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize by the mixture."""
        n, c, h, w = x.shape
        flat = x.view(n, c, -1)
        mean_in, var_in = flat.mean(-1, keepdim=True), flat.var(-1, keepdim=True)
        mean_ln = mean_in.mean(1, keepdim=True)
        var_ln = (var_in + mean_in**2).mean(1, keepdim=True) - mean_ln**2
        mean_bn, var_bn = self.running_mean.view(1, c, 1), self.running_var.view(1, c, 1)  # type: ignore[operator]
        a, b = self.mean_weight.softmax(0), self.var_weight.softmax(0)
        mean = a[0] * mean_in + a[1] * mean_ln + a[2] * mean_bn
        variance = b[0] * var_in + b[1] * var_ln + b[2] * var_bn
        flat = (flat - mean) / (variance + self.eps).sqrt()
        return flat.view(n, c, h, w) * _maps(self.weight) + _maps(self.bias)


class AdaIN(nn.Module):
    """Adaptive instance normalization (Huang and Belongie 2017): scale and shift are the style's."""

    def __init__(self, form: str, channels: int) -> None:
        super().__init__()
        self.form, self.style = form, nn.Linear(channels, 2 * channels)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize, and give it the style's statistics."""
        n, c, h, w = x.shape
        if self.form == "statistics":  # of another image, here a part of the same
            content, style = x[:, : c // 2], x[:, c // 2 :]
            std, mean = (style.var((2, 3), keepdim=True) + 1e-5).sqrt(), style.mean((2, 3), keepdim=True)
            return std * (content - content.mean((2, 3), keepdim=True)) / instance_std(content, 1e-5) + mean
        scale, shift = self.style(torch.tanh(x.mean((2, 3)))).chunk(2, 1)
        if self.form == "product":
            return F.instance_norm(x) * (1 + torch.tanh(scale))[..., None, None] + shift[..., None, None]
        flat = x.reshape(1, n * c, h, w)
        return F.batch_norm(flat, None, None, torch.tanh(scale).reshape(-1), shift.reshape(-1), True).view_as(x)


class FrozenBatchNorm(nn.Module):
    """BatchNorm with statistics, scale and shift in buffers, as detection libraries have it."""

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        for name in ("weight", "running_var"):
            self.register_buffer(name, torch.ones(channels))
        for name in ("bias", "running_mean"):
            self.register_buffer(name, torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Scale and shift each channel."""
        w, b, rv, rm = (_maps(getattr(self, n)) for n in ("weight", "bias", "running_var", "running_mean"))
        scale = w * (rv + self.eps).rsqrt()
        return x * scale + (b - rm * scale)


class NormalizedArray(nn.Module):
    """A LayerNorm of a learned array, added to the input as a position code."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.code, self.norm = nn.Parameter(torch.randn(1, width)), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Add the normalized array."""
        return x + self.norm(self.code)
