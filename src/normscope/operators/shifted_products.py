"""Convolutions of many images at once: one product of matrices for each place of the kernel, on shifted copies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

#: Numbers of one block of images: they stay in the cache while all places of the kernel pass over them.
BLOCK = 2**16
#: Fewer images than this are left to torch.
FEWEST = 8
#: How much larger than the result the work may be, in places outside of the images.
WASTE = 2.0


@dataclass(frozen=True)
class _Axis:
    """How one axis is laid out.

    A result y reads ``s y + d i - p`` for the place i of the kernel: position ``y + shift`` of the phase
    ``(d i - p) mod s``. Down the images there are as many zeros behind a phase as are read; along their rows there
    are none, and of each phase there is one copy for each shift, without the columns that it reads of the next row.
    """

    size: int
    result: int
    length: int
    places: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, size: int, kernel: int, stride: int, pads: tuple[int, int], dilation: int) -> _Axis:
        result = (size + sum(pads) - dilation * (kernel - 1) - 1) // stride + 1
        starts = [dilation * i - pads[0] for i in range(kernel)]
        places = tuple((u % stride, u // stride) for u in starts)
        image, shifts = -(-size // stride), [shift for _, shift in places]
        length = max(image + max(0, -min(shifts)), result + max(0, *shifts))
        return cls(image, result, length, places)


def is_faster(
    count: int,
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
) -> bool:
    """Return whether :func:`convolved` takes so many images of a size in float64."""
    if len(size) != 2 or count < FEWEST:
        return False
    axes = [_Axis.of(size[i], kernel[i], stride[i], padding[i], dilation[i]) for i in (0, 1)]
    across, down = axes
    return min(across.result, down.result) >= 1 and across.length * down.length <= WASTE * across.result * down.result


def convolved(
    z: Tensor,
    weight: Tensor,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[tuple[int, int]] = ((0, 0), (0, 0)),
    dilation: Sequence[int] = (1, 1),
) -> Tensor | None:
    r"""Return the convolution of a stack of images in float64, or nothing where torch is as good.

    :math:`y_o = \sum_k W_{o,\cdot,k} \, S_k z`, with :math:`S_k` the shift to the place k of the kernel. An entry is
    rounded at most once for each channel and each place.

    >>> z, w = torch.ones(9, 1, 3, 3).double(), torch.ones(1, 1, 3, 3).double()
    >>> convolved(z, w, padding=((1, 1), (1, 1)))[0, 0].tolist()
    [[4.0, 6.0, 4.0], [6.0, 9.0, 6.0], [4.0, 6.0, 4.0]]
    """
    sizes, kernel = z.shape[2:], weight.shape[2:]
    if z.device.type != "cpu" or z.dtype != torch.float64:
        return None
    if not is_faster(len(z), sizes, kernel, stride, padding, dilation):
        return None
    across, down = (_Axis.of(sizes[i], kernel[i], stride[i], padding[i], dilation[i]) for i in (0, 1))
    count, channels, results = len(z), z.shape[1], len(weight)
    width = max(down.size, down.result)  # rows without zeros behind them: copies are long
    image = across.length * width
    taps = [
        (weight[:, :, i, j].to(z).contiguous(), (a, b, dx), dy * width + dx)
        for i, (a, dy) in enumerate(across.places)
        for j, (b, dx) in enumerate(down.places)
    ]
    before, behind = max(0, *(-at for _, _, at in taps)), max(0, *(at for _, _, at in taps))
    each = max(1, min(count, math.ceil(BLOCK / (channels * image))))
    buffers = {key: z.new_zeros(channels, before + each * image + behind) for _, key, _ in taps}
    views = {
        key: buffer[:, before : before + each * image].view(channels, each, across.length, width)
        for key, buffer in buffers.items()
    }
    room, out = z.new_empty(results, each * image), z.new_empty(count, results, across.result, down.result)
    for first in range(0, count, each):
        part = z[first : first + each].transpose(0, 1)
        _fill(views, part, stride, down.result)
        made = room[:, : part.shape[1] * image]
        for k, (matrix, key, at) in enumerate(taps):
            read = buffers[key][:, before + at : before + at + made.shape[1]]
            made.addmm_(matrix, read, beta=0 if k == 0 else 1)
        grid = made.view(results, part.shape[1], across.length, width)
        out[first : first + each] = grid[:, :, : across.result, : down.result].transpose(0, 1)
    return out


def _fill(views: dict[tuple[int, int, int], Tensor], part: Tensor, stride: Sequence[int], result: int) -> None:
    """Copy images into the buffers of their phases; columns that a shift would read from another row are zero."""
    whole: dict[tuple[int, int], Tensor] = {}
    for (a, b, _), view in views.items():
        known = whole.setdefault((a, b), view)
        if known is not view:
            view.copy_(known)
            continue
        phase = part[:, :, a :: stride[0], b :: stride[1]]
        view[:, : phase.shape[1], : phase.shape[2], : phase.shape[3]] = phase
    for (_, _, shift), view in views.items():
        width = view.shape[3]
        if shift < 0:
            view[..., max(0, width + shift) :] = 0.0
        elif result + shift > width:
            view[..., : result + shift - width] = 0.0
