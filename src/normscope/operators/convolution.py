"""Convolutions and their transposes, as they really act: stride, padding, dilation, groups."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from normscope.operators.expression import Expr
from normscope.operators.registry import Call, rule
from normscope.operators.shifted_products import convolved, is_faster

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


def convolved_stack(data: dict[str, Any], z: Tensor) -> Tensor:
    """Return the linear part of a convolution of many images that need no derivatives."""
    if _is_plain(data):
        found = convolved(z, data["weight"], data["stride"], data["padding"], data["dilation"])
        if found is not None:
            return found
    return apply_convolution(data)(z)


def stack_roundings(data: dict[str, Any], count: int, size: Sequence[int]) -> int:
    """Return how often :func:`convolved_stack` rounds an entry of the results of so many images of a size."""
    channels, places = data["weight"].shape[1], math.prod(data["weight"].shape[2:])
    settings = (data["stride"], data["padding"], data["dilation"])
    if _is_plain(data) and is_faster(count, size, data["weight"].shape[2:], *settings):
        return channels + places
    return data["weight"].numel() if data["transposed"] else channels * places


def _is_plain(data: dict[str, Any]) -> bool:
    return data["weight"].ndim == 4 and data["groups"] == 1 and not data["transposed"]
