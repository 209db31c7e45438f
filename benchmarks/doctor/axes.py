"""Which entries are normalized together: wrong axes, groups of one, groups across heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.doctor.case import Attention, Setup, case, named, sequences


@case("tensorflow/addons/pull/2142", "NS211", "norm")
def layer_norm_over_width(bug: bool) -> Setup:
    """LayerNorm(width) after a convolution normalizes rows of pixels, not channels."""
    norm = nn.LayerNorm(8) if bug else nn.GroupNorm(1, 8)
    return Setup(named(conv=nn.Conv2d(3, 8, 3, padding=1), norm=norm, act=nn.GELU(), pool=nn.AdaptiveAvgPool2d(1),
                       flat=nn.Flatten(), fc=nn.Linear(8, 2)), options={"input_shape": (3, 8, 8)})  # fmt: skip


class _Tokens(nn.Module):
    """A feed-forward network on (batch, time, features) with BatchNorm."""

    def __init__(self, *, transpose: bool) -> None:
        super().__init__()
        self.fc1, self.norm, self.fc2 = nn.Linear(16, 16, bias=False), nn.BatchNorm1d(16), nn.Linear(16, 3)
        self.transpose = transpose

    def forward(self, x: Tensor) -> Tensor:
        """Classify each step."""
        x = self.fc1(x)
        x = self.norm(x.transpose(1, 2)).transpose(1, 2) if self.transpose else self.norm(x)
        return self.fc2(x.relu())


@case("xieyulai/LSTM-for-Human-Activity-Recognition-using-2D-Pose_Pytorch/issues/2", "NS211", "norm")
def batch_norm_over_time_steps(bug: bool) -> Setup:
    """BatchNorm1d is given (batch, time, features): as many steps as features, so no error."""
    return Setup(_Tokens(transpose=not bug), sequences(64, 16, 16))


class _ChannelsLast(nn.Module):
    """A layer on (batch, height, width, channels), and BatchNorm2d."""

    def __init__(self, *, permute: bool) -> None:
        super().__init__()
        self.mix, self.norm, self.head = nn.Linear(8, 8, bias=False), nn.BatchNorm2d(8), nn.Linear(8, 2)
        self.permute = permute

    def forward(self, x: Tensor) -> Tensor:
        """Mix channels, normalize, pool."""
        x = self.mix(x)
        x = self.norm(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1) if self.permute else self.norm(x)
        return self.head(x.relu().mean((1, 2)))


@case("Zeta36/chess-alpha-zero/pull/90", "NS211", "norm")
def channels_last_into_batch_norm(bug: bool) -> Setup:
    """BatchNorm2d takes the height of a channels-last tensor for its channels."""
    return Setup(_ChannelsLast(permute=not bug), torch.randn(64, 8, 8, 8))


@case("Qualcomm-AI-research/geometric-algebra-transformer/pull/8", "NS211", "norm")
def layer_norm_over_tokens_too(bug: bool) -> Setup:
    """normalized_shape holds the positions as well, so tokens see each other."""
    norm = nn.LayerNorm((12, 16)) if bug else nn.LayerNorm(16)
    return Setup(named(embed=nn.Linear(16, 16), norm=norm, act=nn.GELU(), fc=nn.Linear(16, 4)), sequences())


@case("pytorch/pytorch/issues/19250", "NS202", "norm")
def groups_of_one_value(bug: bool) -> Setup:
    """GroupNorm with as many groups as channels on a 1x1 map outputs its shift."""
    norm = nn.GroupNorm(8, 8) if bug else nn.GroupNorm(2, 8)
    return Setup(named(conv=nn.Conv2d(3, 8, 3), pool=nn.AdaptiveAvgPool2d(1), norm=norm, act=nn.ReLU(),
                       flat=nn.Flatten(), fc=nn.Linear(8, 2)), options={"input_shape": (3, 8, 8)})  # fmt: skip


@case("meta-pytorch/opacus/issues/567", "NS202", "norm")
def batch_norm_replaced_by_groups(bug: bool) -> Setup:
    """A tool replaced BatchNorm1d(4) with GroupNorm(4, 4), which erases a vector."""
    norm = nn.GroupNorm(4, 4) if bug else nn.LayerNorm(4)
    return Setup(named(fc1=nn.Linear(6, 4), norm=norm, act=nn.ReLU(), fc2=nn.Linear(4, 2)), torch.randn(64, 6))


class _Style(nn.Module):
    """Downsampling with InstanceNorm."""

    def __init__(self, *, small: bool) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 8, 4, stride=4, bias=False)
        self.norm, self.fc = nn.InstanceNorm2d(8), nn.Linear(8, 2)
        self.size = 4 if small else 8

    def forward(self, x: Tensor) -> Tensor:
        """Classify."""
        return self.fc(self.norm(self.down(x[..., : self.size, : self.size])).relu().mean((2, 3)))


@case("liufeng2915/CFSM/issues/4", "NS001 NS202", "norm")
def instance_norm_on_one_pixel(bug: bool) -> Setup:
    """The input is too small: InstanceNorm is given one pixel and raises."""
    return Setup(_Style(small=bug), torch.randn(8, 3, 8, 8))


class _Retention(nn.Module):
    """Attention heads normalized by groups after they are joined."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.attn, self.norm, self.fc = Attention(16, heads=4), nn.GroupNorm(groups, 16), nn.Linear(16, 3)
        self.attn.out = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Attend and classify each step."""
        joined = self.attn(x)
        n, length, width = joined.shape
        return self.fc(self.norm(joined.reshape(n * length, width)).view(n, length, width))


@case("fkodom/yet-another-retnet/pull/11", "NS211", "norm")
def groups_cut_heads(bug: bool) -> Setup:
    """GroupNorm has eight groups where there are four heads: each head is cut in two."""
    return Setup(_Retention(8 if bug else 4), sequences())


@case("pytorch/pytorch/issues/45687", "NS202", "norm")
def layer_norm_of_a_single_entry(bug: bool) -> Setup:
    """LayerNorm over an axis of one: the output is the shift."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.norm, self.out = nn.Linear(16, 8), nn.LayerNorm(1 if bug else 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = self.fc(x)
            return self.out(self.norm(h.unsqueeze(-1)).squeeze(-1) if bug else self.norm(h))

    return Setup(Net(), torch.randn(64, 16))
