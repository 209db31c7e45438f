"""NS211: features on another axis."""

from __future__ import annotations

import torch
from torch import nn

from checking import found, noise
from networks import Lambda


def test_batch_norm_of_tokens() -> None:
    """(batch, time, features) into BatchNorm1d with as many steps as features; transposed it is right."""
    parts = {"fc": nn.Linear(6, 6, bias=False), "norm": nn.BatchNorm1d(6)}
    wrong = Lambda(lambda s, x: s.norm(s.fc(x)), **parts)
    right = Lambda(lambda s, x: s.norm(s.fc(x).transpose(1, 2)), **parts)
    (one,) = found("NS211", wrong, noise(8, 6, 6))
    assert one.place == "norm"
    assert found("NS211", right, noise(8, 6, 6)) == []


def test_layer_norm_of_images() -> None:
    """Over the width alone it is wrong; over channels and all places, or channels last, it is not."""
    conv = nn.Conv2d(3, 5, 1, bias=False)
    assert len(found("NS211", nn.Sequential(conv, nn.LayerNorm(6)), noise(4, 3, 6, 6))) == 1
    assert found("NS211", nn.Sequential(conv, nn.LayerNorm((5, 6, 6))), noise(4, 3, 6, 6)) == []
    last = Lambda(lambda s, x: s.norm(s.conv(x).permute(0, 2, 3, 1)), conv=conv, norm=nn.LayerNorm(5))
    assert found("NS211", last, noise(4, 3, 6, 6)) == []


def test_heads_and_groups() -> None:
    """Normalizing queries by head is right; groups that cut heads are not."""

    def attend(s: Lambda, x: torch.Tensor) -> torch.Tensor:
        n, t, _ = x.shape
        q = s.q(x).view(n, t, 4, 2).transpose(1, 2)
        joined = ((q @ q.transpose(-1, -2)).softmax(-1) @ q).transpose(1, 2).reshape(n * t, 8)
        return s.norm(joined)

    for groups, told in ((8, 1), (4, 0), (2, 0)):
        model = Lambda(attend, q=nn.Linear(8, 8), norm=nn.GroupNorm(groups, 8))
        assert len(found("NS211", model, noise(4, 3, 8))) == told
    by_head = Lambda(lambda s, x: s.norm(s.q(x).view(*x.shape[:2], 4, 2)), q=nn.Linear(8, 8), norm=nn.LayerNorm(2))
    assert found("NS211", by_head, noise(4, 3, 8)) == []


class LayerNormalization(nn.Module):
    """Written out, over one axis."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize."""
        y = x - x.mean(self.axis, keepdim=True)
        return y / (y.square().mean(self.axis, keepdim=True) + 1e-5).sqrt()


def test_written_out_under_the_name_of_another() -> None:
    """What calls itself a LayerNorm and takes the mean over positions."""
    for axis, told in ((1, 1), (-1, 0)):
        model = nn.Sequential(nn.Linear(6, 6), LayerNormalization(axis), nn.ReLU(), nn.Linear(6, 2))
        assert len(found("NS211", model, noise(8, 5, 6))) == told


def test_steps_of_a_recurrent_network() -> None:
    """An LSTM gives features along the last axis."""
    model = Lambda(lambda s, x: s.norm(s.rnn(x)[0]), rnn=nn.LSTM(3, 6, batch_first=True), norm=nn.BatchNorm1d(5))
    (one,) = found("NS211", model, noise(8, 5, 3))
    assert one.place == "norm"


def test_a_vector_norm_over_tokens() -> None:
    """F.normalize without dim on (samples, tokens, features); attention over channels does so on purpose."""
    for axis, told in ((1, 1), (-1, 0)):
        model = Lambda(lambda s, x, a=axis: nn.functional.normalize(s.fc(x), dim=a), fc=nn.Linear(6, 6))
        assert len(found("NS211", nn.Sequential(model), noise(4, 5, 6))) == told
    channels = Lambda(lambda s, x: nn.functional.normalize(s.fc(x).view(*x.shape[:2], 2, 3), dim=1), fc=nn.Linear(6, 6))
    assert found("NS211", nn.Sequential(channels), noise(4, 5, 6)) == []


class _Forced(nn.Module):
    """A convolution with weights of length one along some axes."""

    def __init__(self, axes: tuple[int, ...]) -> None:
        super().__init__()
        self.weight, self.axes = nn.Parameter(torch.randn(4, 3, 3, 3)), axes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve."""
        norm = torch.linalg.vector_norm(self.weight, dim=self.axes, keepdim=True)
        return nn.functional.conv2d(x, self.weight / (norm + 1e-4))


def test_weights_divided_along_the_kernel() -> None:
    """The kernel's width or both its sides; whole filters are what is meant."""
    for axes, told in (((-1,), 1), ((2, 3), 1), ((1, 2, 3), 0)):
        assert len(found("NS211", nn.Sequential(_Forced(axes), nn.ReLU()), noise(2, 3, 6, 6))) == told


def _divided(x: torch.Tensor, dim: int | tuple[int, ...]) -> torch.Tensor:
    return x / (x.square().sum(dim, keepdim=True) + 1e-9).sqrt()


def test_one_side_of_an_image() -> None:
    """Vectors along the width or the height alone; along the channels, or over the whole plane, they are meant."""
    conv = nn.Conv2d(3, 5, 1, bias=False)
    for dim, told in ((-1, 1), (2, 1), (1, 0), ((2, 3), 0), ((1, 2, 3), 0)):
        model = Lambda(
            lambda s, x, d=dim: s.conv(x) / (s.conv(x).square().sum(d, keepdim=True) + 1e-9).sqrt(), conv=conv
        )
        assert len(found("NS211", model, noise(4, 3, 6, 7))) == told


def test_lengths_along_another_axis_than_norms() -> None:
    """One length per output beside one norm per input; both along one axis are weight normalization."""
    for dims, told in (((0, 2, 3), 1), ((1, 2, 3), 0)):
        model = Lambda(
            lambda s, x, d=dims: nn.functional.conv2d(
                x, s.v / s.v.square().sum(d, keepdim=True).sqrt() * s.g[:, None, None, None]
            ),
            v=nn.Parameter(noise(5, 3, 2, 2)), g=nn.Parameter(torch.ones(5)),
        )  # fmt: skip
        assert len(found("NS211", model, noise(4, 3, 6, 6))) == told


def test_channels_cut_into_parts() -> None:
    """A view that gives halves of a plane channels of their own; not the view of every place, nor none."""
    conv = nn.Conv2d(3, 4, 1, bias=False)
    for channels, told in ((8, 1), (4, 0)):
        model = Lambda(
            lambda s, x, c=channels: s.norm(s.conv(x).reshape(len(x), c, -1)), conv=conv, norm=nn.BatchNorm1d(channels)
        )
        assert len(found("NS211", model, noise(4, 3, 6, 6))) == told
    flat = nn.Sequential(conv, nn.Flatten(), nn.BatchNorm1d(4 * 36))
    assert found("NS211", flat, noise(4, 3, 6, 6)) == []


def test_channels_of_groups() -> None:
    """GroupNorm and InstanceNorm of tokens with as many steps as features; transposed they are right."""
    for norm in (nn.GroupNorm(3, 6), nn.InstanceNorm1d(6, affine=True)):
        parts = {"fc": nn.Linear(6, 6, bias=False), "norm": norm}
        wrong = Lambda(lambda s, x: s.norm(s.fc(x)), **parts)
        right = Lambda(lambda s, x: s.norm(s.fc(x).transpose(1, 2)), **parts)
        assert [f.place for f in found("NS211", wrong, noise(8, 6, 6))] == ["norm"]
        assert found("NS211", right, noise(8, 6, 6)) == []
