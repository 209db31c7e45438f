"""Convolutions and their transposes, as they really act: stride, padding, dilation, groups.

For many images at once, one matrix product is computed for each place of the kernel, on shifted copies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normscope.operators.expression import Expr
from normscope.operators.registry import Call, rule

aten = torch.ops.aten


def _tuple(value: Any, dims: int) -> list[int]:
    items = list(value) if isinstance(value, list | tuple) else [value]
    return items * dims if len(items) == 1 else items


@rule(
    "conv1d", "conv2d", "conv3d", "convolution", "_convolution", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "convolution_overrideable",
)  # fmt: skip
def convolution(call: Call) -> Expr:
    """A convolution with constant weight."""
    x, weight, bias = call["input"], call["weight"], call["bias"]
    if isinstance(weight, Expr) or isinstance(bias, Expr) or not isinstance(x, Expr):
        return call.opaque("the kernel of a convolution depends on the input")
    name = call.name
    dims = weight.ndim - 2
    transposed = "transpose" in name or bool(call.get("transposed", False))
    padding = call.get("padding", 0)
    stride, dilation = _tuple(call.get("stride", 1), dims), _tuple(call.get("dilation", 1), dims)
    if isinstance(padding, str):  # 'same' and 'valid'; an odd total puts the extra zero at the end
        total = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilation, weight.shape[2:], strict=True)]
        pads = [(t // 2, t - t // 2) for t in total]
    else:
        pads = [(p, p) for p in _tuple(padding, dims)]
    data = {
        "weight": weight.detach(),
        "stride": stride,
        "padding": pads,
        "dilation": dilation,
        "groups": int(call.get("groups", 1)),
        "transposed": transposed,
        "output_padding": _tuple(call.get("output_padding", 0), dims),
        "input_size": list(x.shape[-dims:]),
    }
    if bias is not None:
        bias = bias.detach().reshape(-1, *(1,) * dims)
    channel = len(x.shape) - dims - 1
    settings = (*weight.shape[2:], *stride)
    pointwise = all(v == 1 for v in settings) and all(p == (0, 0) for p in pads) and not any(data["output_padding"])

    def axes(a: int) -> int | None:
        return a if a < channel or (pointwise and a > channel) else None

    return call.linear("convolution", apply_convolution(data), [x], bias=bias, axes=axes, **data)


def apply_convolution(data: dict[str, Any]) -> Any:
    """Return the linear part of a convolution as a function."""
    weight, dims = data["weight"], data["weight"].ndim - 2
    pads = data["padding"]
    even = all(a == b for a, b in pads)
    flat = [p for pair in reversed(pads) for p in pair]

    def apply(z: Tensor) -> Tensor:
        single = z.ndim == dims + 1
        if single:
            z = z.unsqueeze(0)
        if not even:
            z = torch.nn.functional.pad(z, flat)
        out = aten.convolution(
            z,
            weight.to(z),
            None,
            data["stride"],
            [a for a, _ in pads] if even else [0] * dims,
            data["dilation"],
            data["transposed"],
            data["output_padding"],
            data["groups"],
        )
        return out.squeeze(0) if single else out

    return apply


#: Numbers of one block of images: they stay in the cache while all places of the kernel pass over them.
BLOCK = 2**16
#: Fewer images than this are left to torch.
FEWEST = 8
#: How much larger than the result the computed grid may be, because of places outside the images.
WASTE = 2.0


@dataclass(frozen=True)
class _Axis:
    """How one axis is laid out.

    A result y reads ``s y + d i - p`` for the place i of the kernel: position ``y + shift`` of the phase
    ``(d i - p) mod s``. Along the first axis, each phase is followed by as many zeros as are read; along rows there
    are none: each phase has one copy per shift, with zeros in the columns that the shift would read from another row.
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


def stack_layout(data: dict[str, Any], count: int, size: Sequence[int]) -> tuple[_Axis, _Axis] | None:
    """Return how ``count`` images of a size are laid out for matrix products, or ``None`` where torch is as good."""
    weight, settings = data["weight"], (data["stride"], data["padding"], data["dilation"])
    if weight.ndim != 4 or data["groups"] != 1 or data["transposed"] or count < FEWEST:
        return None
    across, down = (_Axis.of(size[i], weight.shape[2 + i], *(s[i] for s in settings)) for i in (0, 1))
    work = across.length * down.length
    fits = min(across.result, down.result) >= 1 and work <= WASTE * across.result * down.result
    return (across, down) if fits else None


def stack_roundings(data: dict[str, Any], count: int, size: Sequence[int]) -> int:
    """Return how often :func:`convolved_stack` rounds an entry of the results for ``count`` images of a size."""
    channels, places = data["weight"].shape[1], math.prod(data["weight"].shape[2:])
    if stack_layout(data, count, size) is not None:
        return channels + places
    return data["weight"].numel() if data["transposed"] else channels * places


def convolved_stack(data: dict[str, Any], z: Tensor) -> Tensor:
    r"""Return the linear part of a convolution of many images that need no derivatives.

    In float64 it is :math:`y_o = \sum_k W_{o,\cdot,k} \, S_k z`, with :math:`S_k` the shift to the place k of the
    kernel. An entry is rounded at most once for each channel and each place.
    """
    wide = z.device.type == "cpu" and z.dtype == torch.float64
    axes = stack_layout(data, len(z), z.shape[2:]) if wide else None
    return apply_convolution(data)(z) if axes is None else _shifted_products(z, data["weight"], data["stride"], *axes)


def _shifted_products(z: Tensor, weight: Tensor, stride: Sequence[int], across: _Axis, down: _Axis) -> Tensor:
    """Return a convolution as one product of matrices for each place of the kernel, on shifted copies."""
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
