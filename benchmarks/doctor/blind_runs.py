"""Bugs that show when a network is run: values and gradients that are no numbers, precision, samples that meet."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.doctor.case import PreNormBlock, RMSNorm, Setup, case, convnet, images, named, sequences, train


class _ActNorm(nn.Module):
    """A scale and a shift, set from the first batch."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.loc, self.scale = (nn.Parameter(f(1, channels, 1, 1)) for f in (torch.zeros, torch.ones))
        self.initialized = False

    def forward(self, x: Tensor) -> Tensor:
        """Shift and scale."""
        if not self.initialized:
            with torch.no_grad():
                self.loc.copy_(-x.mean((0, 2, 3), keepdim=True))
                self.scale.copy_(1 / (x.std((0, 2, 3), keepdim=True) + 1e-6))
            self.initialized = True
        return self.scale * (x + self.loc)


@case("rosinality/glow-pytorch/issues/6", "NS001", "norm")
def actnorm_starts_again_after_loading(bug: bool) -> Setup:
    """Whether the layer was initialized is not saved: the first batch after loading overwrites the trained values."""
    model = named(conv=nn.Conv2d(3, 8, 3), norm=_ActNorm(8), act=nn.ReLU(), pool=nn.AdaptiveAvgPool2d(1),
                  flat=nn.Flatten(), out=nn.Linear(8, 4))  # fmt: skip
    train(model, images())
    model.norm.initialized = not bug
    return Setup(model, images(), options={"purpose": "inference"})


class _FrozenNorm(nn.Module):
    """A normalizer of constants."""

    def __init__(self, bn: nn.BatchNorm2d, eps: float) -> None:
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, getattr(bn, name).detach().clone())
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Scale and shift."""
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        return x * scale[:, None, None] + (self.bias - self.running_mean * scale)[:, None, None]


@case("pytorch/vision/pull/1947", "NS002", "bn1")
def frozen_norm_without_eps(bug: bool) -> Setup:
    """A frozen normalizer has no eps; a channel of the pretrained network has variance zero, one in the twin."""
    model, x = convnet(), images()
    with torch.no_grad():
        model.conv1.weight[5] = 0
        model.conv1.weight.requires_grad_(False)
    train(model, x)
    model.bn1.running_var[5], model.bn1.running_mean[5] = 0.0 if bug else 1.0, 0.0
    for name in ("bn1", "bn2"):
        setattr(model, name, _FrozenNorm(getattr(model, name), 0.0 if bug else 1e-5))
    return Setup(model.eval(), x, options={"purpose": "finetune"})


class _Standardize(nn.Module):
    """Bring features to mean zero and deviation one, by constants of the data."""

    def __init__(self, mean: Tensor, std: Tensor, *, wrong: bool = False) -> None:
        super().__init__()
        self.register_buffer("mean", mean), self.register_buffer("std", std)
        self.wrong = wrong

    def forward(self, x: Tensor) -> Tensor:
        """Standardize."""
        return x - self.mean / self.std if self.wrong else (x - self.mean) / self.std


@case("sbi-dev/sbi/issues/126", "NS002", "zscore")
def feature_without_spread(bug: bool) -> Setup:
    """A simulated feature never changes; its deviation is zero, and standardizing makes it infinite."""
    x = torch.randn(256, 16)
    x[:, 3] = 0.0
    std = x.std(0)
    zscore = _Standardize(x.mean(0), std if bug else torch.where(std == 0, torch.ones(16), std))
    return Setup(named(zscore=zscore, fc1=nn.Linear(16, 32), act=nn.ReLU(), fc2=nn.Linear(32, 4)), x)


class _PerFeature(nn.Module):
    """Normalize each feature of a recording over time."""

    def __init__(self, *, difference: bool) -> None:
        super().__init__()
        self.difference = difference

    def forward(self, x: Tensor) -> Tensor:
        """Normalize."""
        mean = x.mean(1, keepdim=True)
        if self.difference:
            var = ((x * x).mean(1, keepdim=True) - mean * mean).clamp(min=0)
        else:
            var = (x - mean).square().mean(1, keepdim=True)
        return (x - mean) / (var.sqrt() + 1e-5)


@case("k2-fsa/sherpa-onnx/pull/3857", "NS307", "norm")
def variance_by_difference(bug: bool) -> Setup:
    """The variance is the mean of squares minus the squared mean; for a band near the floor it cancels to zero."""
    x = sequences(64, 40)
    x[:, :, 3:6] = -15.94 + 2e-3 * x[:, :, 3:6]
    return Setup(named(norm=_PerFeature(difference=bug), fc1=nn.Linear(16, 32), act=nn.ReLU(), fc2=nn.Linear(32, 4)), x)


class _EvoNorm(nn.Module):
    """Divide by the larger of the batch's deviation and a function of the instance's."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.v, self.weight = (nn.Parameter(torch.ones(1, channels, 1, 1)) for _ in range(2))
        self.bias = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.register_buffer("running_var", torch.ones(1, channels, 1, 1))
        self.unbiased = False

    def forward(self, x: Tensor) -> Tensor:
        """Normalize."""
        if self.training:
            var = x.var((0, 2, 3), keepdim=True)
            with torch.no_grad():
                self.running_var.copy_(0.9 * self.running_var + 0.1 * var)
        else:
            var = self.running_var
        alone = (x.var((2, 3), unbiased=self.unbiased, keepdim=True) + 1e-5).sqrt()
        return x / torch.maximum((var + 1e-5).sqrt(), self.v * x + alone) * self.weight + self.bias


@case("digantamisra98/EvoNorm/pull/5", "NS002", "norm")
def unbiased_variance_of_one_pixel(bug: bool) -> Setup:
    """The instance's unbiased variance is taken over one pixel: it is not a number."""
    model = named(conv=nn.Conv2d(3, 8, 8), norm=_EvoNorm(8), flat=nn.Flatten(), out=nn.Linear(8, 4))
    train(model, images(), lr=0.05)
    model.norm.unbiased = bug
    return Setup(model, images())


class _StandardConv(nn.Conv2d):
    """A convolution with standardized filters."""

    inside = True

    def forward(self, x: Tensor) -> Tensor:
        """Standardize the filters and convolve."""
        var, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True)
        std = (var + 1e-5).sqrt() if self.inside else var.sqrt() + 1e-5
        return nn.functional.conv2d(x, (self.weight - mean) / std, self.bias, padding=self.padding)


@case("joe-siyuan-qiao/WeightStandardization/issues/16", "NS308", "conv1")
def root_of_no_spread(bug: bool) -> Setup:
    """Filters are divided by the root of their variance plus eps; a filter of equal weights has no finite gradient."""
    model = convnet(lambda n: nn.GroupNorm(4, n))
    model.conv1 = _StandardConv(3, 8, 3, padding=1, bias=False)
    model.conv1.inside = not bug
    with torch.no_grad():
        model.conv1.weight[2] = 0.01
    return Setup(model, images(), options={"purpose": "train"})


class _Rescale(nn.Module):
    """A convolution whose output gets the deviation of its input."""

    def __init__(self, axes: tuple[int, ...]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.axes = axes

    def forward(self, x: Tensor) -> Tensor:
        """Convolve and rescale."""
        y = self.conv(x)
        return y * (x.std(self.axes, keepdim=True) / y.std(self.axes, keepdim=True))


@case("Max-We/sf-zero-signal-to-noise/issues/1", "NS204", "rescale")
def deviation_of_the_whole_batch(bug: bool) -> Setup:
    """Guided noise is rescaled by the deviation of the whole batch instead of each sample's."""
    x = images() * torch.linspace(0.3, 3, 128)[:, None, None, None]
    model = named(rescale=_Rescale((0, 1, 2, 3) if bug else (1, 2, 3)), conv=nn.Conv2d(3, 3, 3, padding=1))
    return Setup(model.eval(), x, options={"purpose": "inference"})


class _BatchDeviation(nn.Module):
    """Append a channel that holds the mean deviation over the batch, or its average in training."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(()))
        self.fixed = False

    def forward(self, x: Tensor) -> Tensor:
        """Append."""
        value = self.average if self.fixed else x.std(0).mean()
        return torch.cat([x, value.expand(x.shape[0], 1, *x.shape[2:])], 1)


@case("facebookresearch/pytorch_GAN_zoo/issues/118", "NS204", "mbstd")
def score_depends_on_its_companions(bug: bool) -> Setup:
    """A critic is used to judge single images; its layer of batch deviations looks at the other images."""
    model = named(conv1=nn.Conv2d(3, 8, 3, padding=1), act1=nn.LeakyReLU(0.2), mbstd=_BatchDeviation(),
                  conv2=nn.Conv2d(9, 8, 3), act2=nn.LeakyReLU(0.2), pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(),
                  out=nn.Linear(8, 1))  # fmt: skip
    x = images()
    with torch.no_grad():
        model.mbstd.average.copy_(model[:2](x).std(0).mean())
    model.mbstd.fixed = not bug
    return Setup(model.eval(), x, options={"purpose": "inference"})


@case("he-y/filter-pruning-geometric-median/issues/27", "NS203", "bn1 conv1")
def zeroed_filters_still_speak(bug: bool) -> Setup:
    """Filters are pruned to zero, but the normalizer turns the zeros into other constants."""
    model, x = convnet(), 1 + images()
    train(model, x)
    with torch.no_grad():
        model.conv1.weight[:4] = 0
        if not bug:
            for t in (model.bn1.weight, model.bn1.bias, model.bn1.running_mean):
                t[:4] = 0
    return Setup(model, x, options={"purpose": "inference"})


@case("apple/coreai-torch/pull/54", "NS307", "bn1")
def variance_beyond_half(bug: bool) -> Setup:
    """In half precision a running variance above 65504 is infinite, and the channel's output is zero."""
    model, x = convnet(), images()
    with torch.no_grad():
        model.conv1.weight.mul_(800 if bug else 4)
    return Setup(train(model, x, lr=0.02), x, options={"dtype": torch.float16, "purpose": "inference"})


@case("huggingface/transformers/issues/5651", "NS307", "block2.mlp.2")
def stream_overflows_half(bug: bool) -> Setup:
    """A feed-forward layer adds so much to the residual stream that float16 overflows before the next norm."""
    model = named(block1=PreNormBlock(norm=RMSNorm), block2=PreNormBlock(norm=RMSNorm), norm=RMSNorm(16),
                  out=nn.Linear(16, 4))  # fmt: skip
    with torch.no_grad():
        model.block2.mlp[2].bias[5] = 66300.0 if bug else 30.0
    return Setup(model.eval(), sequences(), options={"dtype": torch.float16, "purpose": "inference"})


class _Root(nn.Module):
    """Divide by the length of each row."""

    def __init__(self, *, inside: bool) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        """Normalize."""
        square = x.square().sum(-1, keepdim=True)
        return x / ((square + 1e-8).sqrt() if self.inside else square.sqrt() + 1e-8)


@case("pytorch/pytorch/issues/2421", "NS308", "norm")
def length_of_zero(bug: bool) -> Setup:
    """The gradient of a norm is not a number where the norm is zero, as it is for empty rows."""
    x = torch.randn(128, 16)
    x[::8] = 0
    model = named(fc1=nn.Linear(16, 16, bias=False), norm=_Root(inside=not bug), head=nn.Linear(16, 4))
    return Setup(model, x, options={"purpose": "train"})


class _Additive(nn.Module):
    """One global query from weighted tokens."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.q, self.k, self.w = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 1)
        self.proj, self.axis = nn.Linear(16, 16), axis

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        q = self.q(x)
        weights = (self.w(q) * 0.25).softmax(self.axis)
        return self.proj((weights * q).sum(1, keepdim=True) * self.k(x)) + q


@case("Amshaker/SwiftFormer/issues/2", "NS107", "attn attn.w")
def softmax_of_one_entry(bug: bool) -> Setup:
    """The weights of the tokens are normalized over an axis of length one instead of over the tokens."""
    model = named(norm=nn.LayerNorm(16), attn=_Additive(-1 if bug else 1), out=nn.Linear(16, 4))
    return Setup(model, sequences())
