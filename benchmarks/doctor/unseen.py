"""Eleven bugs written from their threads before anyone looked at what the doctor says of them."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from benchmarks.doctor.case import RMSNorm, Setup, case, convnet, images, mlp, named, sequences, train


class _ReduceDim(nn.Module):
    """A projection of expert features, normalized to length one."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 24)
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """Project and normalize."""
        return nn.functional.normalize(self.fc(x), dim=self.dim)


@case("gabeur/mmt/issues/1", "NS211", "reduce")
def tokens_normalized_by_default(bug: bool) -> Setup:
    """F.normalize takes axis 1 by default, which holds the tokens and not the features."""
    model = named(reduce=_ReduceDim(1 if bug else -1), act=nn.ReLU(), head=nn.Linear(24, 5))
    x = sequences()
    return Setup(train(model, x), x)


class _QKNorm(nn.Module):
    """Attention on normalized queries and keys, with learned scales that may be forgotten."""

    def __init__(self, *, used: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16, bias=False) for _ in range(4))
        self.q_scale, self.k_scale = nn.Parameter(torch.ones(2, 1, 8)), nn.Parameter(torch.ones(2, 1, 8))
        self.used = used

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        n, length, width = x.shape
        q, k, v = (f(x).view(n, length, 2, 8).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = nn.functional.normalize(q, dim=-1), nn.functional.normalize(k, dim=-1)
        if self.used:
            q, k = q * self.q_scale, k * self.k_scale
        weights = (10.0 * q @ k.transpose(-1, -2)).softmax(-1)
        return x + self.out((weights @ v).transpose(1, 2).reshape(n, length, width))


@case("lucidrains/x-transformers/issues/352", "NS105 NS403", "attn")
def scales_of_queries_never_applied(bug: bool) -> Setup:
    """The learned scales of query-key normalization are built and never used."""
    model = named(norm=nn.LayerNorm(16), attn=_QKNorm(used=not bug), out=nn.Linear(16, 4))
    x = sequences()
    return Setup(train(model, x, lr=0.05), x)


@case("DLR-RM/stable-baselines3/issues/996", "NS205", "norm1 norm2")
def target_network_without_statistics(bug: bool) -> Setup:
    """The target network follows the parameters of the online one; its running statistics stay those of a new layer."""
    online, x = mlp(nn.BatchNorm1d), torch.randn(128, 16)
    target = copy.deepcopy(online)
    train(online, x)
    with torch.no_grad():
        for old, new in zip(target.parameters(), online.parameters(), strict=True):
            old.copy_(new)
        if not bug:
            for old, new in zip(target.buffers(), online.buffers(), strict=True):
                old.copy_(new)
    return Setup(target.eval(), x)


@case("huggingface/transformers/pull/40796", "NS604", "norm1 norm2")
def one_plus_one(bug: bool) -> Setup:
    """A normalizer that multiplies by 1 + w starts with w = 1: every signal is doubled."""
    model = mlp(lambda n: RMSNorm(n, offset=1.0))
    with torch.no_grad():
        for layer in (model.norm1, model.norm2):
            layer.weight.fill_(1.0 if bug else 0.0)
    return Setup(model, sequences())


@case("flagos-ai/FlagPerf/pull/683", "NS604 NS002 NS508 NS501", "norm2")
def scales_of_unwritten_memory(bug: bool) -> Setup:
    """The scale is made with torch.empty and holds what was in memory."""
    model = train(mlp(RMSNorm), torch.randn(64, 16))
    with torch.no_grad():
        if bug:
            garbage = torch.tensor([0.0, 4.6e-41, 1.4e-45, 3.1e-38])
            model.norm2.weight.copy_(garbage.repeat(4))
    return Setup(model, torch.randn(64, 16))


class _ForcedConv(nn.Module):
    """A convolution whose weights are brought to length one in every pass."""

    def __init__(self, *, whole: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 3, 3, 3))
        self.whole = whole

    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""
        if self.whole:
            weight = nn.functional.normalize(self.weight.flatten(1), dim=-1).view_as(self.weight)
        else:
            weight = nn.functional.normalize(self.weight, dim=-1)
        return nn.functional.conv2d(x, weight, padding=1)


@case("lucidrains/denoising-diffusion-pytorch/issues/293", "NS211", "conv")
def weights_normalized_along_the_kernel(bug: bool) -> Setup:
    """Weights are divided by the norm along the kernel's width, not by that of the whole filter."""
    model = named(conv=_ForcedConv(whole=not bug), act=nn.SiLU(), pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(),
                  out=nn.Linear(8, 4))  # fmt: skip
    return Setup(train(model, images()), images())


@case("Vladkryvoruchko/PSPNet-Keras-tensorflow/issues/31", "NS210 NS203 NS604", "bn1 bn2")
def blobs_in_another_order(bug: bool) -> Setup:
    """The four vectors of a converted BatchNorm are read as mean, variance, scale, shift, and are not."""
    model = train(convnet(), images())
    with torch.no_grad():
        for bn in (model.bn1, model.bn2) if bug else ():
            scale, shift, mean, var = (t.clone() for t in (bn.weight, bn.bias, bn.running_mean, bn.running_var))
            bn.running_mean.copy_(scale), bn.running_var.copy_(shift), bn.weight.copy_(mean), bn.bias.copy_(var)
    return Setup(model, images())


@case("pierluigiferrari/caffe_weight_converter/issues/7", "NS203", "bn1 bn2")
def factor_of_the_averages_left_in(bug: bool) -> Setup:
    """Caffe stores sums with a factor; the converter forgot to divide by it."""
    model = train(convnet(), images())
    with torch.no_grad():
        for bn in (model.bn1, model.bn2) if bug else ():
            bn.running_mean.mul_(999.98), bn.running_var.mul_(999.98)
    return Setup(model, images())


class _Normalization2D(nn.Module):
    """A spectrogram normalizer that takes its statistics from whatever is in the batch."""

    def __init__(self, axes: tuple[int, ...]) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, x: Tensor) -> Tensor:
        """Subtract the mean and divide by the standard deviation."""
        mean, std = x.mean(self.axes, keepdim=True), x.std(self.axes, keepdim=True)
        return (x - mean) / (std + 1e-3)


@case("keunwoochoi/kapre/issues/16", "NS204 NS208", "norm")
def spectrograms_normalized_over_the_batch(bug: bool) -> Setup:
    """Predictions change with the batch size, because a layer averages over the batch in evaluation as well."""
    model = named(norm=_Normalization2D((0, 1, 3) if bug else (1, 2, 3)), conv=nn.Conv2d(3, 8, 3), act=nn.ReLU(),
                  pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(), out=nn.Linear(8, 4))  # fmt: skip
    return Setup(train(model, images()), images(), options={"purpose": "inference"})


@case("junyanz/pytorch-CycleGAN-and-pix2pix/issues/395", "NS218", "bn1 bn2")
def instance_norm_with_running_statistics(bug: bool) -> Setup:
    """InstanceNorm tracks statistics: in evaluation it stops normalizing each image by itself."""
    x = images() * torch.linspace(0.2, 3.0, 128)[:, None, None, None]  # images of different contrast
    model = train(convnet(lambda n: nn.InstanceNorm2d(n, track_running_stats=bug)), x)
    return Setup(model, x)


@case("speediedan/finetuning-scheduler/issues/13", "NS207", "bn1 bn2")
def frozen_by_not_tracking(bug: bool) -> Setup:
    """Frozen layers no longer track statistics, but they normalize by the batch."""
    model = train(convnet(), images())
    for bn in (model.bn1, model.bn2):
        bn.requires_grad_(False)
    model.train()
    for bn in (model.bn1, model.bn2):
        bn.track_running_stats = not bug
        bn.train(bug)
    return Setup(model, images(), options={"purpose": "finetune"})
