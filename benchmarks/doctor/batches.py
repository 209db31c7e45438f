"""What a batch holds: too few samples, one sample, padding, one device's share."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.doctor.case import Setup, case, convnet, images, mlp, named


@case("STVIR/PMTD/issues/6", "NS201", "bn1 bn2")
def two_samples(bug: bool) -> Setup:
    """A detector is trained with two images for each device."""
    return Setup(convnet(), options={"input_shape": (3, 8, 8), "batch_size": 2 if bug else 32})


@case("yassouali/pytorch-segmentation/issues/8", "NS201", "pool_norm")
def one_value_per_channel(bug: bool) -> Setup:
    """Image pooling in a segmentation head leaves one value per channel, and the batch is one image."""
    model = named(conv=nn.Conv2d(3, 8, 3), pool=nn.AdaptiveAvgPool2d(1), pool_conv=nn.Conv2d(8, 8, 1, bias=False),
                  pool_norm=nn.BatchNorm2d(8) if bug else nn.GroupNorm(2, 8), act=nn.ReLU(), flat=nn.Flatten(),
                  fc=nn.Linear(8, 2))  # fmt: skip
    return Setup(model, options={"input_shape": (3, 16, 16), "batch_size": 1})


@case("fastai/fastai/issues/1352", "NS201", "norm1 norm2")
def last_batch_of_one(bug: bool) -> Setup:
    """The samples leave one over, and training ends in an error after the first epoch."""
    loader = DataLoader(TensorDataset(torch.randn(65, 16)), batch_size=32, drop_last=not bug)
    return Setup(mlp(nn.BatchNorm1d), loader)


@case("ultralytics/yolov5/issues/1630", "NS201", "bn1 bn2")
def accumulation_does_not_help(bug: bool) -> Setup:
    """Gradients of sixteen batches of four are added up; BatchNorm still sees four."""
    model = convnet(nn.BatchNorm2d if bug else lambda n: nn.GroupNorm(2, n))
    return Setup(model, options={"input_shape": (3, 8, 8), "batch_size": 4})


@case("fundamentalvision/BEVFormer/issues/136", "NS209 NS201", "bn1 bn2")
def plain_batch_norm_on_many_devices(bug: bool) -> Setup:
    """Data-parallel training with one or two samples for each device and no SyncBatchNorm."""
    model = convnet()
    if not bug:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return Setup(nn.DataParallel(model), options={"input_shape": (3, 8, 8), "batch_size": 2})


class _Padded(nn.Module):
    """A sequence classifier with normalizers over time."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv1d(8, 8, 3, padding=1, bias=False), norm, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Classify sequences of shape (N, features, time)."""
        return self.fc(self.norm(self.conv(x)).relu().mean(-1))


def _padded(shape: tuple[int, ...]) -> Tensor:
    x = torch.randn(64, *shape)
    for i, row in enumerate(x):
        row[..., 4 + i % 16 :] = 0.0
    return x


@case("pytorch/pytorch/issues/70529", "NS214", "norm")
def padding_in_batch_statistics(bug: bool) -> Setup:
    """Sequences are padded with zeros, and BatchNorm counts the zeros."""
    return Setup(_Padded(nn.BatchNorm1d(8) if bug else nn.GroupNorm(2, 8)), _padded((8, 20)))


@case("SeanNaren/deepspeech.pytorch/issues/312", "NS214", "norm")
def padded_spectrograms(bug: bool) -> Setup:
    """Spectrograms of unequal length are padded with zeros before convolutions with BatchNorm."""
    x = _padded((1, 10, 20)) if bug else torch.randn(64, 1, 10, 20)
    model = named(conv=nn.Conv2d(1, 8, 3, bias=False), norm=nn.BatchNorm2d(8), act=nn.ReLU(),
                  pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(), fc=nn.Linear(8, 3))  # fmt: skip
    return Setup(model, x)


@case("open-edge-platform/geti/pull/1872", "NS201", "bn1 bn2")
def loader_of_tiny_batches(bug: bool) -> Setup:
    """The loader itself gives batches of three."""
    loader = DataLoader(TensorDataset(images(48)), batch_size=3 if bug else 24)
    return Setup(convnet(), loader)
