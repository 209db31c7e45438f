"""Scales and weights: near zero, zero, huge, not moving; spectral and weight normalization."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from benchmarks.doctor.case import Attention, PreNormBlock, RMSNorm, Setup, case, convnet, images, mlp, named, sequences
from benchmarks.doctor.case import train as fitted


def _decoder(offset: float) -> nn.Module:
    """Return blocks whose stored scales are deviations from one, as in a checkpoint of that kind."""
    model = named(block=PreNormBlock(16, lambda n: RMSNorm(n, offset=offset)), norm=RMSNorm(16, offset=offset),
                  head=nn.Linear(16, 4))  # fmt: skip
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, RMSNorm):
                module.weight.normal_(0.0, 0.05)
    return model


@case("pytorch/executorch/pull/19901", "NS604", "block.norm1")
def lost_one_plus(bug: bool) -> Setup:
    """The checkpoint stores deviations from one, and the converter forgot the one."""
    return Setup(_decoder(0.0 if bug else 1.0), sequences())


@case("llmmanorg/llmman/pull/151", "NS604", "norm2")
def lost_one_plus_at_one_layer(bug: bool) -> Setup:
    """One normalizer reads its scale with the wrong convention."""
    model = mlp(lambda n: RMSNorm(n))
    with torch.no_grad():
        model.norm1.weight.normal_(1.0, 0.05)
        model.norm2.weight.normal_(0.0 if bug else 1.0, 0.05)
    return Setup(model, torch.randn(64, 16))


class _Residual(nn.Module):
    """A residual block."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch."""
        return (x + self.bn(self.conv(x))).relu()


def _resnet() -> nn.Module:
    return named(stem=nn.Conv2d(3, 8, 3, padding=1), a=_Residual(), b=_Residual(), pool=nn.AdaptiveAvgPool2d(1),
                 flat=nn.Flatten(), fc=nn.Linear(8, 4))  # fmt: skip


@case("jack-willturner/batchnorm-pruning/issues/1", "NS603", "b.bn")
def closed_branch(bug: bool) -> Setup:
    """All scales of the last normalizer of a branch are zero in a trained network: the branch does nothing."""
    x = images()
    model = fitted(_resnet(), x)
    if bug:
        with torch.no_grad():
            model.b.bn.weight.zero_()
            model.b.bn.bias.zero_()
    return Setup(model, x)


@case("tensorpack/tensorpack/issues/420", "NS603", "bn2")
def closed_network(bug: bool) -> Setup:
    """A zero scale meant for residual branches was given to a layer without a way around it."""
    x = images()
    model = convnet()
    if bug:
        nn.init.zeros_(model.bn2.weight)
    return Setup(model, x)


@case("Yang7879/3D-RecGAN/issues/6", "NS601", "relu1 bn1")
def dead_channels(bug: bool) -> Setup:
    """Shifts pushed several channels below zero for good."""
    x = images()
    model = fitted(convnet(), x)
    if bug:
        with torch.no_grad():
            model.bn1.bias[[2, 5]] = -50.0
    return Setup(model, x)


@case("Yang7879/3D-RecGAN/issues/6", "NS601", "act bn")
def dead_channels_of_a_sequence(bug: bool) -> Setup:
    """The same in a one-dimensional convolution."""
    x = torch.randn(64, 4, 20)
    model = named(conv=nn.Conv1d(4, 8, 3, bias=False), bn=nn.BatchNorm1d(8), act=nn.ReLU(),
                  pool=nn.AdaptiveAvgPool1d(1), flat=nn.Flatten(), fc=nn.Linear(8, 3))  # fmt: skip
    model = fitted(model, x)
    if bug:
        with torch.no_grad():
            model.bn.bias[:3] = -50.0
    return Setup(model, x)


@case("yaoing/DAN/issues/14", "NS508", "fc")
def rows_far_too_large(bug: bool) -> Setup:
    """Rows of the classifier are a thousand times longer than the others, and the first loss is huge."""
    x = images()
    model = fitted(convnet(), x)
    if bug:
        with torch.no_grad():
            model.fc.weight[1] *= 1000.0
    return Setup(model, x)


@case("vllm-project/speculators/pull/765", "NS404", "norm1")
def bfloat16_scales_stay_at_one(bug: bool) -> Setup:
    """The model is trained in bfloat16: a step of 1e-4 is lost beside a scale of one."""
    model = mlp().to(torch.bfloat16 if bug else torch.float32)
    return Setup(model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0))


@case("fla-org/flame/issues/47", "NS404", "norm1")
def hand_written_scales_stay_at_one(bug: bool) -> Setup:
    """The same with a normalizer written out."""
    model = mlp(lambda n: RMSNorm(n)).to(torch.bfloat16 if bug else torch.float32)
    return Setup(model, optimizer=torch.optim.Adam(model.parameters(), lr=3e-4))


@case("microsoft/nni/issues/4521", "NS403", "norm2")
def normalizer_replaced_after_the_optimizer(bug: bool) -> Setup:
    """A normalizer was replaced after the optimizer was built: its parameters never move."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if bug:
        model.norm2 = nn.LayerNorm(16)
    return Setup(model, optimizer=optimizer)


@case("Lightning-AI/lit-llama/issues/254", "NS401", "norm1 fc1")
def decayed_scales(bug: bool) -> Setup:
    """Weight decay acts on every parameter."""
    model = mlp()
    if bug:
        return Setup(model, optimizer=torch.optim.AdamW(model.parameters(), weight_decay=0.1))
    groups = [{"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0}]  # fmt: skip
    return Setup(model, optimizer=torch.optim.AdamW(groups))


@case("huggingface/transformers/issues/4360", "NS401", "norm2")
def a_name_the_exclusion_misses(bug: bool) -> Setup:
    """The list of names without decay knows one normalizer and not the other."""
    model = mlp()
    out = ("norm1", "bias") if bug else ("norm1", "norm2", "bias")
    named_parameters = list(model.named_parameters())
    free = [p for n, p in named_parameters if any(part in n for part in out)]
    rest = [p for n, p in named_parameters if not any(part in n for part in out)]
    groups = [{"params": rest, "weight_decay": 0.1}, {"params": free, "weight_decay": 0.0}]
    return Setup(model, optimizer=torch.optim.AdamW(groups))


@case("jarrelscy/iResnet/issues/2", "NS506", "fc2")
def power_iteration_behind(bug: bool) -> Setup:
    """Weights were loaded or changed in evaluation, and the power iteration never caught up."""
    model = named(fc1=nn.Linear(16, 16), act=nn.ReLU(), fc2=parametrizations.spectral_norm(nn.Linear(16, 16)))
    weight = torch.randn(16, 16)
    with torch.no_grad():
        model.fc2.parametrizations.weight.original.copy_(weight)
        if not bug:
            for _ in range(200):
                model(torch.randn(4, 16))
    return Setup(model.eval(), torch.randn(64, 16))


@case("pytorch/pytorch/issues/99149", "NS505", "conv")
def spectral_norm_of_a_convolution(bug: bool) -> Setup:
    """Spectral normalization divides by the norm of the reshaped kernel: the convolution is not 1-Lipschitz."""
    layer = nn.Conv2d(3, 8, 5 if bug else 1, padding=2 if bug else 0)
    model = named(conv=parametrizations.spectral_norm(layer, n_power_iterations=30), act=nn.ReLU())
    with torch.no_grad():
        layer.parametrizations.weight.original.add_(0.5)
        model(torch.randn(2, 3, 8, 8))
    return Setup(model.eval(), torch.randn(64, 3, 8, 8))


@case("pytorch/pytorch/issues/19126", "NS602 NS002", "fc1")
def weight_norm_of_a_zero_row(bug: bool) -> Setup:
    """A row of a weight-normalized layer is zero: its direction is NaN."""
    model = named(fc1=parametrizations.weight_norm(nn.Linear(16, 8)), act=nn.ReLU(), fc2=nn.Linear(8, 2))
    if bug:
        with torch.no_grad():
            model.fc1.parametrizations.weight.original1[2] *= 1e-9
    return Setup(model.eval(), torch.randn(64, 16))


@case("PAIR-code/tiny-transformers/issues/71", "NS507", "attn block.attn")
def logits_without_scale(bug: bool) -> Setup:
    """Queries and keys have grown and nothing divides their product: the softmax picks one token."""
    attention = Attention(64, heads=1, scale=1.0 if bug else None)
    with torch.no_grad():
        for layer in (attention.q, attention.k):
            layer.weight.mul_(6.0 if bug else 1.0)
    return Setup(named(norm=nn.LayerNorm(64), attn=attention), torch.randn(32, 12, 64))
