"""BatchNorm whose second derivative takes a few passes over the data; torch's own takes tens of them."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def batch_normalized(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None = None,
    variance: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    r"""Return :math:`\gamma \hat x + \beta` with :math:`\hat x = (x - \mu) / \sqrt{\sigma^2 + \epsilon}`.

    Args:
        x: the input, channels along axis 1.
        weight: :math:`\gamma`, if there is one.
        bias: :math:`\beta`, if there is one.
        mean: :math:`\mu`, a constant; by default the mean of the batch, differentiated through.
        variance: :math:`\sigma^2`, a constant; by default the biased variance of the batch.
        eps: :math:`\epsilon`.

    >>> batch_normalized(torch.tensor([[1.0], [3.0]]), None, None).round().flatten().tolist()
    [-1.0, 1.0]
    """
    found: Tensor = _Normalized.apply(x, weight, bias, mean, variance, eps)
    return found


def applies(x: Tensor, *others: Tensor | None) -> bool:
    """Return whether :func:`batch_normalized` can be used: one precision, on the CPU, outside torch.func.

    >>> applies(torch.ones(2, 1)), applies(torch.ones(2, 1), torch.ones(1).double())
    (True, False)
    """
    one = all(other is None or other.dtype == x.dtype for other in others)
    plain = x.device.type == "cpu" and x.numel() > x.shape[1] and not torch._C._are_functorch_transforms_active()
    return one and plain and x.dtype in (torch.float32, torch.float64) and torch.is_grad_enabled()


class _Normalized(torch.autograd.Function):
    """The function; its derivative is :class:`_Slope`, a function of its own."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor | None,
        variance: Tensor | None,
        eps: float,
    ) -> Tensor:
        y, center, inverse = torch.native_batch_norm(x, weight, bias, mean, variance, mean is None, 0.0, eps)
        if mean is not None and variance is not None:
            center, inverse = mean, (variance + eps).rsqrt()
        ctx.constant = mean is not None
        ctx.save_for_backward(x, weight, center, inverse)
        return y

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        """Return the derivative; if it will be differentiated again, in a differentiable form."""
        x, weight, center, inverse = ctx.saved_tensors
        compute = _Slope.apply if torch.is_grad_enabled() else _slope
        parts = compute(slope, x, weight, center, inverse, ctx.constant)
        wanted = ctx.needs_input_grad[:3]
        return (*(part if needed else None for part, needed in zip(parts, wanted, strict=True)), None, None, None)


def _slope(
    slope: Tensor, x: Tensor, weight: Tensor | None, center: Tensor, inverse: Tensor, constant: bool
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return :math:`\gamma r P g`, :math:`\langle g, \hat x\rangle` and :math:`\sum g` of every channel.

    ``r`` is the inverse deviation and :math:`P g = g - \bar g - \hat x \langle g, \hat x\rangle/n`; ``P g = g`` where
    the statistics are constants.
    """
    statistics = (center, inverse.square().reciprocal()) if constant else (None, None)
    pulled, along, total = torch.ops.aten.native_batch_norm_backward(
        slope, x, weight, *statistics, center, inverse, not constant, 0.0, [True, True, True]
    )
    return pulled, along, total


class _Slope(torch.autograd.Function):
    """The derivative as a function of the slope, the input and the weight: what :func:`_slope` returns."""

    @staticmethod
    def forward(
        ctx: Any, slope: Tensor, x: Tensor, weight: Tensor | None, center: Tensor, inverse: Tensor, constant: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        pulled, along, total = _slope(slope, x, None, center, inverse, constant)
        ctx.constant = constant
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(slope, x, weight, center, inverse, slope if constant else pulled, along)
        return (pulled if weight is None else _affine(pulled, weight)), along, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, u: Tensor | None, a: Tensor | None, b: Tensor | None) -> Any:
        r"""Return the derivatives of :math:`\langle u, \gamma r P g\rangle + a \langle g, \hat x\rangle + b \sum g`.

        In ``g``: :math:`\gamma r P u + a \hat x + b`. In :math:`\gamma`: :math:`r \langle u, P g\rangle`. In ``x``, on
        which :math:`\hat x` and ``r`` depend: :math:`r P z - \gamma r^2 \langle u, P g\rangle \hat x/n` where
        :math:`z = a g - \gamma r (\langle g, \hat x\rangle u + \langle u, \hat x\rangle g)/n`; with constant
        statistics :math:`r a g`.
        """
        slope, x, weight, center, inverse, pulled, along = ctx.saved_tensors
        axes = [axis for axis in range(x.ndim) if axis != 1]
        count = x.numel() // x.shape[1]
        gamma = torch.ones_like(inverse) if weight is None else weight
        a = torch.zeros_like(inverse) if a is None else a
        b = torch.zeros_like(inverse) if b is None else b
        by_slope = _affine(x, a * inverse, b - a * inverse * center)
        if u is None:
            by_x = _affine(pulled, a * inverse if ctx.constant else a)
            return by_slope, by_x, None, None, None, None
        cross = (u * pulled).sum(axes)  # r <u, P g>, or <u, g> with constant statistics
        if ctx.constant:
            by_slope = by_slope + _affine(u, gamma * inverse)
            by_weight = None if weight is None else cross * inverse
            return by_slope, _affine(slope, a * inverse), by_weight, None, None, None
        pushed, overlap, _ = _slope(u, x, None, center, inverse, False)
        by_slope = by_slope + _affine(pushed, gamma)
        pull = gamma * cross * inverse / count
        by_x = _affine(x, -pull * inverse, pull * inverse * center)
        by_x = by_x + _affine(pushed, -gamma * inverse * along / count)
        by_x = by_x + _affine(pulled, a - gamma * inverse * overlap / count)
        return by_slope, by_x, None if weight is None else cross, None, None, None


def _affine(x: Tensor, factor: Tensor, offset: Tensor | None = None) -> Tensor:
    """Return ``factor x + offset`` with one number each per channel."""
    if torch._C._are_functorch_transforms_active():
        wide = (-1, *(1,) * (x.ndim - 2))
        found = x * factor.reshape(wide)
        return found if offset is None else found + offset.reshape(wide)
    zeros = torch.zeros_like(factor)  # as a BatchNorm: its kernel is several times as quick as broadcasting
    return torch.native_batch_norm(x, factor, offset, zeros, torch.ones_like(factor), False, 0.0, 0.0)[0]
