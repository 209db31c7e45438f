"""Convolution whose second derivative uses the kernels of the first, which are quicker than torch's."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

#: Stride, padding, dilation and number of groups.
Shape = tuple[list[int], list[int], list[int], int]


def quick(convolution: Callable[..., Tensor], axes: int) -> Callable[..., Tensor]:
    """Return a torch convolution with a faster second derivative; calls it does not cover go to torch's own.

    >>> conv, x, w = quick(torch.conv1d, 1), torch.ones(1, 1, 3), torch.ones(1, 1, 2, requires_grad=True)
    >>> conv(x, w).tolist()
    [[[2.0, 2.0]]]
    """

    def convolved(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        if isinstance(padding, str) or not _covered(input, weight, bias, axes):
            return convolution(input, weight, bias, stride, padding, dilation, groups)
        shape = (_each(stride, axes), _each(padding, axes), _each(dilation, axes), groups)
        found: Tensor = _Convolved.apply(input, weight, bias, shape)
        return found

    return convolved


def _covered(x: Tensor, weight: Tensor, bias: Tensor | None, axes: int) -> bool:
    """Return whether the call is a batch in one common precision on the CPU, outside torch.func."""
    plain = x.ndim == axes + 2 and x.device.type == "cpu" and not torch._C._are_functorch_transforms_active()
    one = x.dtype == weight.dtype and (bias is None or bias.dtype == x.dtype)
    wanted = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias))
    return plain and one and wanted and x.dtype in (torch.float32, torch.float64)


def _each(value: Any, axes: int) -> list[int]:
    """Return one number per axis."""
    given = [value] * axes if isinstance(value, int) else list(value)
    return given * axes if len(given) == 1 else given


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, shape: Shape) -> Tensor:
    """Return the convolution."""
    stride, padding, dilation, groups = shape
    return torch.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)


def _slope(slope: Tensor, x: Tensor, weight: Tensor, shape: Shape, wanted: list[bool]) -> tuple[Tensor | None, ...]:
    """Return the derivatives in input, weight and bias, as far as they are wanted."""
    stride, padding, dilation, groups = shape
    found = torch.ops.aten.convolution_backward(
        slope, x, weight, [len(weight)], stride, padding, dilation, False, [0] * len(stride), groups, wanted
    )
    return tuple(part if needed else None for part, needed in zip(found, wanted, strict=True))


class _Convolved(torch.autograd.Function):
    """The function; its derivative is :class:`_Slope`, a function of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, shape: Shape) -> Tensor:
        ctx.shape = shape
        ctx.save_for_backward(x, weight)
        return _convolve(x, weight, bias, shape)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        """Return the derivative; if it will be differentiated again, in a differentiable form."""
        x, weight = ctx.saved_tensors
        compute = _Slope.apply if torch.is_grad_enabled() else _slope
        return (*compute(slope, x, weight, ctx.shape, list(ctx.needs_input_grad[:3])), None)


class _Slope(torch.autograd.Function):
    r"""The derivative as a function of ``g``, ``x`` and ``W``: :math:`W^T g`, :math:`g \star x` and :math:`\sum g`."""

    @staticmethod
    def forward(ctx: Any, slope: Tensor, x: Tensor, weight: Tensor, shape: Shape, wanted: list[bool]) -> Any:
        ctx.shape = shape
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(slope, x, weight)
        return _slope(slope, x, weight, shape, wanted)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, u: Tensor | None, v: Tensor | None, b: Tensor | None) -> Any:
        r"""Return the derivatives of :math:`\langle u, W^T g\rangle + \langle v, g \star x\rangle + b \sum g`.

        In ``g``: :math:`W * u + v * x + b`. In ``x``: :math:`v^T g`. In ``W``: :math:`g \star u`: the last two are the
        derivative of the convolution :math:`v * u`, one call.
        """
        slope, x, weight = ctx.saved_tensors
        by_slope = None if u is None else _convolve(u, weight, b, ctx.shape)
        if v is not None:
            other = _convolve(x, v, b if u is None else None, ctx.shape)
            by_slope = other if by_slope is None else by_slope.add_(other)
        elif u is None and b is not None:
            by_slope = b.reshape(-1, *(1,) * (x.ndim - 2)).expand_as(slope)
        wanted = [v is not None and ctx.needs_input_grad[1], u is not None and ctx.needs_input_grad[2], False]
        parts: tuple[Tensor | None, ...] = (None, None, None)
        if any(wanted):
            parts = _slope(slope, x if u is None else u, weight if v is None else v, ctx.shape, wanted)
        return by_slope, parts[0], parts[1], None, None
