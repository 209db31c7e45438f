"""Convolutions in one and three dimensions, recurrent networks, spectrograms and graphs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.doctor.case import Setup, case, named, train


def _waves(n: int = 96, channels: int = 4, length: int = 32) -> Tensor:
    return torch.randn(n, channels, length)


def _volumes(n: int = 32) -> Tensor:
    return torch.randn(n, 2, 6, 6, 6)


def _tdnn(norm: Callable[[int], nn.Module] = nn.BatchNorm1d, *, bias: bool = False, width: int = 12) -> nn.Sequential:
    return named(
        frame1=nn.Conv1d(4, width, 5, padding=2, bias=bias), norm1=norm(width), act1=nn.ReLU(),
        frame2=nn.Conv1d(width, width, 3, dilation=2, padding=2, bias=bias), norm2=norm(width), act2=nn.ReLU(),
        pool=nn.AdaptiveAvgPool1d(1), flat=nn.Flatten(), out=nn.Linear(width, 5),
    )  # fmt: skip


def _encoder3d(norm: Callable[[int], nn.Module] = nn.BatchNorm3d, *, bias: bool = False) -> nn.Sequential:
    return named(
        down1=nn.Conv3d(2, 8, 3, padding=1, bias=bias), norm1=norm(8), act1=nn.LeakyReLU(0.1),
        down2=nn.Conv3d(8, 8, 3, stride=2, padding=1, bias=bias), norm2=norm(8), act2=nn.LeakyReLU(0.1),
        pool=nn.AdaptiveAvgPool3d(1), flat=nn.Flatten(), out=nn.Linear(8, 3),
    )  # fmt: skip


@case("ellisdg/3DUnetCNN/issues/218", "NS101", "down1 down2")
def volume_bias_before_norm(bug: bool) -> Setup:
    """Conv3d layers keep a bias that BatchNorm3d subtracts."""
    return Setup(train(_encoder3d(bias=bug), _volumes()), options={"input_shape": (2, 6, 6, 6)})


class _Pooled(nn.Module):
    """A convolution whose output is averaged, then normalized."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.stem = nn.Conv1d(4, 8, 3, bias=bias)
        self.blur = nn.AvgPool1d(2)
        self.norm = nn.BatchNorm1d(8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Classify."""
        return self.out(self.norm(self.blur(self.stem(x))).relu().amax(-1))


@case("matterport/Mask_RCNN/pull/1455", "NS101", "stem")
def bias_cancelled_behind_a_pool(bug: bool) -> Setup:
    """Between the bias and BatchNorm stands an average pool, which changes nothing about it."""
    x = _waves()
    return Setup(train(_Pooled(bias=bug), x), x)


@case("r9y9/tacotron_pytorch/issues/19", "NS212", "norm1 norm2")
def momentum_of_tensorflow_in_speech(bug: bool) -> Setup:
    """momentum=0.99 was taken over from TensorFlow."""
    return Setup(_tdnn(lambda n: nn.BatchNorm1d(n, momentum=0.99 if bug else 0.01)), options={"input_shape": (4, 32)})


@case("ludwig-ai/ludwig/pull/2100", "NS212", "norm1")
def momentum_of_tabnet(bug: bool) -> Setup:
    """The paper's 0.95 is PyTorch's 0.05."""
    model = named(fc1=nn.Linear(10, 16, bias=False), norm1=nn.BatchNorm1d(16, momentum=0.95 if bug else 0.05),
                  glu=nn.GLU(), out=nn.Linear(8, 2))  # fmt: skip
    return Setup(train(model, torch.randn(128, 10)), torch.randn(128, 10), options={"purpose": "train"})


@case("Lightning-AI/pytorch-lightning/issues/14866", "NS212", "norm1 norm2")
def momentum_of_zero_while_averaging(bug: bool) -> Setup:
    """Before the statistics of averaged weights are gathered, momentum is set to 0 instead of None."""
    model = train(_tdnn(), _waves())
    for layer in (model.norm1, model.norm2):
        layer.reset_running_stats()
        layer.momentum = 0.0 if bug else None
    model.train()
    with torch.no_grad():
        for _ in range(3):
            model(_waves())
    return Setup(model.eval(), options={"input_shape": (4, 32)})


@case("jadore801120/attention-is-all-you-need-pytorch/pull/17", "NS211", "norm")
def mean_over_the_sequence(bug: bool) -> Setup:
    """A LayerNorm written by hand takes mean and deviation over the positions instead of the features."""
    model = named(
        embed=nn.Linear(8, 16), norm=_LayerNormalization(16, 1 if bug else -1), act=nn.ReLU(), out=nn.Linear(16, 4)
    )
    return Setup(train(model, torch.randn(64, 10, 8)), torch.randn(64, 10, 8))


class _LayerNormalization(nn.Module):
    """LayerNorm written out over one axis."""

    def __init__(self, width: int, axis: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.axis = axis

    def forward(self, z: Tensor) -> Tensor:
        """Normalize."""
        mean = z.mean(self.axis, keepdim=True)
        variance = (z - mean).square().mean(self.axis, keepdim=True)
        return (z - mean) / (variance + 1e-5).sqrt() * self.scale + self.shift


class _Turned(nn.Module):
    """A convolution over time with LayerNorm before or after the axes are turned."""

    def __init__(self, *, turned: bool) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(4, 16, 3, padding=1), nn.LayerNorm(16)
        self.out, self.turned = nn.Linear(16, 2), turned

    def forward(self, x: Tensor) -> Tensor:
        """Classify every frame."""
        x = self.conv(x)
        x = self.norm(x.transpose(1, 2)) if self.turned else self.norm(x).transpose(1, 2)
        return self.out(x.relu())


@case("OpenNMT/OpenNMT-tf/pull/6", "NS211", "norm")
def frames_as_many_as_channels(bug: bool) -> Setup:
    """LayerNorm runs along time; nobody noticed because there are as many frames as channels."""
    x = _waves(length=16)
    return Setup(train(_Turned(turned=not bug), x), x)


class _Nodes(nn.Module):
    """Graph convolution on dense graphs, with BatchNorm over nodes or features."""

    def __init__(self, *, nodes: bool) -> None:
        super().__init__()
        self.lin, self.out, self.nodes = nn.Linear(6, 12), nn.Linear(12, 2), nodes
        self.norm = nn.BatchNorm1d(9 if nodes else 12)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the nodes of each graph and classify them."""
        x = self.lin(x)
        x = x + x.mean(1, keepdim=True)
        x = self.norm(x) if self.nodes else self.norm(x.transpose(1, 2)).transpose(1, 2)
        return self.out(x.relu())


@case("RexYing/diffpool/issues/20", "NS211", "norm")
def batch_norm_of_nodes(bug: bool) -> Setup:
    """BatchNorm1d has one channel for each node, though nodes of different graphs have nothing in common."""
    model, x = _Nodes(nodes=bug), torch.randn(64, 9, 6)
    if not bug:
        model.lin = nn.Linear(6, 12, bias=False)
    return Setup(train(model, x), x)


class _Made(nn.Module):
    """A normalizer that is built in forward."""

    def __init__(self, *, inside: bool) -> None:
        super().__init__()
        self.fc, self.out, self.inside = nn.Linear(6, 12, bias=False), nn.Linear(12, 2), inside
        if not inside:
            self.norm = nn.BatchNorm1d(12)

    def forward(self, x: Tensor) -> Tensor:
        """Classify."""
        x = self.fc(x)
        x = nn.BatchNorm1d(x.shape[1])(x) if self.inside else self.norm(x)
        return self.out(x.relu())


@case("RexYing/diffpool/issues/20", "NS204 NS105 NS001", "batch_norm native_batch_norm")
def norm_built_in_forward(bug: bool) -> Setup:
    """forward() builds a new BatchNorm1d each time: it always trains, and has no statistics of its own."""
    return Setup(train(_Made(inside=bug), torch.randn(64, 6)), torch.randn(64, 6))


@case("sIncerass/powernorm/issues/13", "NS214", "body.norm")
def padded_graphs(bug: bool) -> Setup:
    """Graphs are padded to one size, and the empty nodes enter BatchNorm's statistics."""
    x = torch.randn(64, 10, 6)
    for i, row in enumerate(x):
        row[3 + i % 4 :] = 0
    model = named(body=_FromMask(masked=not bug), act=nn.ReLU(), out=nn.Linear(12, 2))
    return Setup(train(model, x), x)


class _FromMask(nn.Module):
    """A linear layer with BatchNorm over all nodes, or over those that are there."""

    def __init__(self, *, masked: bool) -> None:
        super().__init__()
        self.fc, self.masked = nn.Linear(6, 12, bias=False), masked
        self.norm = nn.LayerNorm(12) if masked else nn.BatchNorm1d(12)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize."""
        n, nodes, _ = x.shape
        return self.norm(self.fc(x).flatten(0, 1)).view(n, nodes, -1)


@case("LeeDoYup/FixMatch-pytorch/issues/10", "NS205", "teacher.norm1")
def averaged_teacher_without_buffers(bug: bool) -> Setup:
    """The teacher of weights averaged over steps gets no running statistics."""
    student, teacher = train(_tdnn(), _waves()), _tdnn()
    names = dict(teacher.named_parameters()) if bug else teacher.state_dict()
    for name, value in names.items():
        value.data.copy_(student.state_dict()[name])

    class Both(nn.Module):
        """Student and teacher."""

        def __init__(self) -> None:
            super().__init__()
            self.student, self.teacher = student, teacher

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            """Return both outputs."""
            return self.student(x), self.teacher(x)

    return Setup(Both().eval(), options={"input_shape": (4, 32)})


@case("SeanNaren/deepspeech.pytorch/issues/312", "NS203", "norm1")
def integer_samples_instead_of_floats(bug: bool) -> Setup:
    """The network was trained on waves within one, and gets 16-bit integers."""
    model = named(input=nn.Identity(), **dict(_tdnn().named_children()))
    x = _waves()
    return Setup(train(model, x), x * (3000.0 if bug else 1.0))


@case("fundamentalvision/BEVFormer/issues/136", "NS201", "norm1 norm2")
def one_volume_per_step(bug: bool) -> Setup:
    """Volumes are so large that each step sees one, and behind the pool there is one value per channel."""
    model = named(
        down=nn.Conv3d(2, 8, 3, bias=False), pool=nn.AdaptiveAvgPool3d(1), norm1=nn.BatchNorm3d(8), act=nn.ReLU(),
        squeeze=nn.Conv3d(8, 8, 1, bias=False), norm2=nn.BatchNorm3d(8), flat=nn.Flatten(), out=nn.Linear(8, 2),
    )  # fmt: skip
    return Setup(model, options={"input_shape": (2, 6, 6, 6), "batch_size": 2 if bug else 64, "purpose": "train"})


@case("pytorch/pytorch/issues/45687", "NS202", "norm")
def layer_norm_of_one_feature(bug: bool) -> Setup:
    """A LayerNorm over a single feature gives its shift, whatever comes in."""
    width = 1 if bug else 8
    model = named(embed=nn.Linear(5, width), norm=nn.LayerNorm(width), act=nn.GELU(), out=nn.Linear(width, 3))
    return Setup(model, torch.randn(64, 5))


@case("pytorch/pytorch/issues/19250", "NS202", "norm")
def one_group_per_feature(bug: bool) -> Setup:
    """GroupNorm with a group for each feature, on vectors, gives zero."""
    model = named(fc=nn.Linear(5, 16), norm=nn.GroupNorm(16 if bug else 4, 16), act=nn.ReLU(), out=nn.Linear(16, 3))
    return Setup(model, torch.randn(64, 5))


class _Recurrent(nn.Module):
    """An LSTM with a normalizer on its outputs."""

    def __init__(self, norm: nn.Module, *, along: str) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 16, batch_first=True)
        self.norm, self.head, self.along = norm, nn.Linear(16, 4), along

    def forward(self, x: Tensor) -> Tensor:
        """Classify every step."""
        h, _ = self.lstm(x)
        return self.head(self.norm(h) if self.along == "features" else self.norm(h.transpose(1, 2)).transpose(1, 2))


@case("xieyulai/LSTM-for-Human-Activity-Recognition-using-2D-Pose_Pytorch/issues/2", "NS211", "norm")
def recurrent_steps_as_channels(bug: bool) -> Setup:
    """BatchNorm1d after an LSTM takes the steps of the sequence for channels."""
    norm = nn.BatchNorm1d(12 if bug else 16)
    return Setup(_Recurrent(norm, along="features" if bug else "steps"), torch.randn(32, 12, 6))


@case("Tomiinek/Multilingual_Text_to_Speech/issues/81", "NS002", "norm2")
def variance_overflowed_in_half(bug: bool) -> Setup:
    """The running variance went beyond what half precision holds."""
    model = train(_tdnn(), _waves())
    if bug:
        model.norm2.running_var[3] = float("inf")
    return Setup(model, options={"input_shape": (4, 32)})


@case("luigibonati/mlcolvar/pull/205", "NS215", "norm2")
def dropout_of_channels_before_norm(bug: bool) -> Setup:
    """Dropout1d right before BatchNorm1d makes its statistics those of training only."""
    drop = nn.Dropout1d(0.4)
    parts = dict(_tdnn().named_children())
    order = ["frame1", "norm1", "act1", "frame2", *(("drop", "norm2") if bug else ("norm2", "drop")), "act2", "pool",
             "flat", "out"]  # fmt: skip
    parts["drop"] = drop
    return Setup(named(**{name: parts[name] for name in order}), options={"input_shape": (4, 32)})


@case("Tomiinek/Multilingual_Text_to_Speech/issues/81", "NS601", "act1 norm1")
def dead_channel_of_a_wave(bug: bool) -> Setup:
    """One channel of a convolution over time is pushed below zero for every input."""
    model = train(_tdnn(), _waves())
    if bug:
        with torch.no_grad():
            model.norm1.bias[3] = -40.0
    return Setup(model, _waves())


@case("LeelaChessZero/lc0/pull/1914", "NS304", "b.norm")
def one_block_with_another_eps(bug: bool) -> Setup:
    """One block of a network on volumes was ported with eps=1e-2."""

    def block(eps: float, width: int) -> nn.Module:
        return named(conv=nn.Conv3d(width, 6, 3, padding=1, bias=False), norm=nn.BatchNorm3d(6, eps=eps), act=nn.ReLU())

    model = named(a=block(1e-5, 2), b=block(1e-2 if bug else 1e-5, 6), c=block(1e-5, 6), d=block(1e-5, 6),
                  pool=nn.AdaptiveAvgPool3d(1), flat=nn.Flatten(), out=nn.Linear(6, 2))  # fmt: skip
    return Setup(model, options={"input_shape": (2, 6, 6, 6)})
