"""Random layers by the rank of what they take: linear maps, convolutions, pooling, moving entries, arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fuzzing.draw import Draw, Function, Shape, randomized

Builder = Callable[[Draw, Shape], nn.Module]

_MODULES: tuple[Callable[[], nn.Module], ...] = (
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh, nn.Softplus,
    nn.Softsign, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.LogSigmoid, nn.ReLU6, nn.Softshrink, nn.Tanhshrink,
    nn.RReLU, lambda: nn.GELU(approximate="tanh"), lambda: nn.LeakyReLU(-1.5), lambda: nn.Hardtanh(-0.3, 2.0),
    lambda: nn.Softplus(beta=3.0),
)  # fmt: skip
_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sin": torch.sin,
    "cos": torch.cos,
    "atan": torch.atan,
    "abs": torch.abs,
    "erf": torch.erf,
    "asinh": torch.asinh,
    "bump": lambda x: torch.exp(-x.square()),
    "root": lambda x: torch.sqrt(1.0 + x * x),
    "ratio": lambda x: x / (1.0 + x.abs()),
    "inverse": lambda x: 1.0 / (1.5 + torch.tanh(x)),
    "exp": lambda x: torch.exp(torch.clamp(x, max=1.0)),
    "log": lambda x: torch.log(x.abs() + 0.5),
    "log1p": lambda x: torch.log1p(torch.relu(x)),
    "power": lambda x: torch.sigmoid(x) ** 1.5,
    "cube": lambda x: torch.tanh(x) ** 3,
    "reciprocal": lambda x: torch.reciprocal(F.softplus(x) + 0.2),
    "rsqrt": lambda x: torch.rsqrt(torch.sigmoid(x) + 0.1),
    "clamp": lambda x: x.clamp(-0.7, 0.4),
    "clamp_min": lambda x: x.clamp_min(0.3),
    "inplace": lambda x: x.clone().add_(0.5).mul_(-2.0).relu_(),
    "hardtanh_": lambda x: F.hardtanh_(x.clone()),
    "square": lambda x: torch.tanh(x).square(),
}


def activation(draw: Draw, shape: Shape) -> nn.Module:
    """Return an entrywise function."""
    if draw.chance(0.15):
        channels = shape[0] if len(shape) > 1 or draw.chance() else 1
        return Function("prelu", lambda m, x: F.prelu(x, m.a), a=draw.tensor(channels))
    if draw.chance():
        return draw.choice(_MODULES)().eval()
    name = draw.choice(sorted(_FUNCTIONS))
    return Function(name, lambda m, x: _FUNCTIONS[name](x))


def arithmetic(draw: Draw, shape: Shape) -> nn.Module:
    """Return arithmetic with constants, in one of the many forms it is written in."""
    c = draw.number()
    part = tuple(n if draw.chance(0.7) else 1 for n in shape)
    part = part[draw.integer(0, len(part)) :] if draw.chance(0.3) else part
    a, b = draw.tensor(*part), draw.tensor(*shape)
    keep = draw.mask(*part)
    forms: dict[str, Callable[[Any, Tensor], Tensor]] = {
        "add": lambda m, x: x + c,
        "rsub": lambda m, x: c - x,
        "rsub.alpha": lambda m, x: torch.rsub(x, m.a, alpha=2),
        "mul": lambda m, x: m.a * x,
        "div": lambda m, x: x / (m.a.abs() + 0.2),
        "sub.alpha": lambda m, x: torch.sub(x, m.a, alpha=c),
        "add.self": lambda m, x: x + x,
        "cancel": lambda m, x: x * 3.0 - x * 2.5,
        "neg": lambda m, x: -x,
        "addcmul": lambda m, x: torch.addcmul(x, m.a, m.b, value=c),
        "addcmul.factor": lambda m, x: torch.addcmul(m.b, x, m.a, value=c),
        "lerp": lambda m, x: torch.lerp(x, m.b, 0.3),
        "lerp.tensor": lambda m, x: torch.lerp(m.b, x, m.a.sigmoid()),
        "where": lambda m, x: torch.where(m.keep, x, m.b),
        "where.scaled": lambda m, x: torch.where(m.keep, x * c, x),
        "masked_fill": lambda m, x: x.masked_fill(m.keep, c),
        "maximum": lambda m, x: torch.maximum(x, m.a),
        "minimum": lambda m, x: torch.minimum(m.a, x),
        "clamp.tensor": lambda m, x: torch.clamp(x, min=m.a - 0.5, max=m.a + 0.5),
        "bool": lambda m, x: x * m.keep,
        "power": lambda m, x: x**1.0,
        "inplace": lambda m, x: x.clone().add_(m.a).mul_(c).sub_(0.1),
    }
    name = draw.choice(sorted(forms))
    return Function(name, forms[name], a=a, b=b, keep=keep)


def linear(draw: Draw, shape: Shape) -> nn.Module:
    """Return a linear layer on the last axis, plain, normalized or written as a matrix product."""
    width = draw.integer(1, 6)
    layer = randomized(nn.Linear(shape[-1], width, bias=draw.chance()), draw)
    W, b = draw.tensor(width, shape[-1], scale=draw.scale(-0.5, 0.5)), draw.tensor(width)
    k = draw.integer(0, 7)
    if k == 0:
        return nn.utils.parametrizations.weight_norm(layer)
    if k == 1:
        return nn.utils.parametrizations.spectral_norm(layer)
    if k == 2:
        return Function("matmul", lambda m, x: x @ m.W.mT, W=W)
    if k == 3:
        return Function("einsum", lambda m, x: torch.einsum("...i,oi->...o", x, m.W), W=W)
    if k == 4:
        return Function("tied", lambda m, x: (x @ m.W.mT + m.b) @ m.W, W=W, b=b)
    if k == 5:
        return Function("standardized", lambda m, x: F.linear(x, _standardized(m.W), m.b), W=W, b=b)
    return layer


def _standardized(W: Tensor) -> Tensor:
    """Return a weight standardized over all but its first axis."""
    dims = tuple(range(1, W.ndim))
    return (W - W.mean(dims, keepdim=True)) / (W.var(dims, keepdim=True, unbiased=False) + 1e-3).sqrt()


def mixing(draw: Draw, shape: Shape) -> nn.Module:
    """Return a linear map that mixes along another axis than the last."""
    n = shape[-2]
    W = draw.tensor(draw.integer(1, 4), n)
    lead = shape[:-2]
    forms: dict[str, Callable[[Any, Tensor], Tensor]] = {
        "left": lambda m, x: m.W @ x,
        "transposed": lambda m, x: F.linear(x.mT, m.W).mT,
        "einsum": lambda m, x: torch.einsum("on,...nd->...od", m.W, x),
        "batched": lambda m, x: torch.matmul(m.V, x),
        "right": lambda m, x: torch.matmul(x, m.U),
        "cumsum": lambda m, x: x.cumsum(-2),
        "mean": lambda m, x: x - x.mean(-2, keepdim=True),
        "swap": lambda m, x: x.transpose(-1, -2) * m.g,
    }
    name = draw.choice(sorted(forms))
    V, U = draw.tensor(*lead, 2, n), draw.tensor(*lead, shape[-1], 2)
    return Function(name, forms[name], W=W, V=V, U=U, g=draw.tensor(n))


def convolution(draw: Draw, shape: Shape) -> nn.Module:
    """Return a convolution of any stride, padding, dilation and number of groups, or a transposed one."""
    dims = len(shape) - 1
    channels, size = shape[0], min(shape[1:])
    groups = draw.choice([g for g in (1, 2, 3) if channels % g == 0])
    out = groups * draw.integer(1, 2)
    kernel = draw.integer(1, min(3, size))
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    if draw.chance(0.25):
        transposed = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 1]
        stride = draw.integer(1, 2)
        extra = draw.integer(0, stride - 1)
        padding = draw.integer(0, min(1, kernel - 1))
        return randomized(
            transposed(channels, out, kernel, stride=stride, padding=padding, output_padding=extra, groups=groups), draw
        )
    modes: list[Literal["zeros", "reflect", "circular", "replicate"]] = ["zeros", "reflect", "circular", "replicate"]
    mode = modes[max(0, draw.integer(-2, 3))]
    amount = draw.integer(0, 1 if size > 1 else 0)
    dilation = draw.integer(1, 2) if (size + 2 * amount) > 2 * (kernel - 1) else 1
    same = draw.chance(0.2) and kernel % 2 == 1
    around: int | str = "same" if same else amount
    stride = 1 if same else draw.integer(1, 2)
    layer = kind(
        channels, out, kernel, stride=stride, padding=around, dilation=dilation, groups=groups, padding_mode=mode
    )
    if draw.chance(0.15):
        return nn.utils.parametrizations.weight_norm(randomized(layer, draw))
    if draw.chance(0.15) and mode == "zeros" and not same:
        function = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
        W = draw.tensor(out, channels // groups, *(kernel,) * dims)
        return Function(
            "standardized",
            lambda m, x: function(x, _standardized(m.W), None, stride, amount, dilation, groups),
            W=W,
        )
    return randomized(layer, draw)


def pooling(draw: Draw, shape: Shape) -> nn.Module:
    """Return a pooling, unfolding, interpolation or shuffle of the axes behind the channels."""
    dims, size = len(shape) - 1, min(shape[1:])
    kernel = draw.integer(1, min(3, size))
    stride, padding = draw.integer(1, 2), draw.integer(0, kernel // 2)
    goal = tuple(draw.integer(1, 3) for _ in range(dims))
    modes = ["nearest", ("linear", "bilinear", "trilinear")[dims - 1], "nearest-exact"]
    target = tuple(n + draw.integer(-1, 2) if n > 1 else n for n in shape[1:])
    forms: list[nn.Module] = [
        (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)[dims - 1](
            kernel, stride, padding, count_include_pad=draw.chance(), ceil_mode=draw.chance(0.3)
        ),
        (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)[dims - 1](kernel, stride, padding, ceil_mode=draw.chance(0.3)),
        (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)[dims - 1](goal),
        (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)[dims - 1](goal),
        nn.Upsample(size=target, mode=draw.choice(modes)),
    ]
    if dims == 2:
        forms.append(Function("unfold", lambda m, x: F.unfold(x, kernel, padding=padding, stride=stride)))
        forms.append(nn.Upsample(size=target, mode="bicubic"))
        if shape[0] % 4 == 0:
            forms.append(nn.PixelShuffle(2))
        if shape[1] % 2 == 0 and shape[2] % 2 == 0:
            forms.append(nn.PixelUnshuffle(2))
    return draw.choice(forms)


def layout(draw: Draw, shape: Shape) -> nn.Module:
    """Return an operation that moves, copies, drops or joins entries."""
    rank = len(shape)
    axis = draw.integer(1, rank)
    n = shape[axis - 1]
    start = draw.integer(0, n - 1)
    stop = draw.integer(start + 1, n)
    order = [0, *(i + 1 for i in draw.permutation(rank))]
    picks = draw.indices(n, draw.integer(1, n + 1))
    places = draw.indices(n, 1, *shape)
    amounts = [draw.integer(-1 if shape[-1 - i // 2] > 2 else 0, 2) for i in range(2 * draw.integer(1, rank))]
    whole = math.prod(shape)
    divisors = [d for d in range(1, whole + 1) if whole % d == 0]
    wide = draw.choice(divisors)
    c = draw.number()
    forms: dict[str, Callable[[Any, Tensor], Tensor]] = {
        "flatten": lambda m, x: x.flatten(1),
        "reshape": lambda m, x: x.reshape(x.shape[0], wide, -1),
        "permute": lambda m, x: x.permute(order),
        "transpose": lambda m, x: x.transpose(-1, axis),
        "movedim": lambda m, x: x.movedim(axis, -1),
        "slice": lambda m, x: x.narrow(axis, start, stop - start),
        "step": lambda m, x: x[:, ::2],
        "select": lambda m, x: x.select(axis, start).unsqueeze(-1),
        "last": lambda m, x: x[..., -1:],
        "first": lambda m, x: x[:, 0].reshape(x.shape[0], -1),
        "index": lambda m, x: x.index_select(axis, m.picks),
        "fancy": lambda m, x: x[:, m.picks % x.shape[1]],
        "gather": lambda m, x: x.gather(axis, m.places.expand(x.shape[0], *shape)),
        "flip": lambda m, x: x.flip(axis),
        "roll": lambda m, x: x.roll(1, axis),
        "repeat": lambda m, x: x.repeat(1, *(2 if i == axis else 1 for i in range(1, rank + 1))),
        "interleave": lambda m, x: x.repeat_interleave(2, axis),
        "expand": lambda m, x: x.unsqueeze(1).expand(-1, 2, *shape),
        "pad": lambda m, x: F.pad(x, amounts, value=c),
        "unfold": lambda m, x: x.unfold(axis, min(2, n), 1),
        "split": lambda m, x: torch.cat(x.split(max(1, n // 2), axis)[::-1], axis),
        "chunk": lambda m, x: torch.cat([p * (i + 1) for i, p in enumerate(x.chunk(2, axis))], axis),
        "unbind": lambda m, x: torch.stack(x.unbind(axis)[: 1 + n // 2], -1),
        "stack": lambda m, x: torch.stack([x, x * c], axis),
        "cat": lambda m, x: torch.cat([x, x.flip(axis), m.b.expand(x.shape[0], *shape)], axis),
        "triangle": lambda m, x: x.unsqueeze(-2).tril() if rank == 1 else x.triu(1 - draw_offset),
        "overwrite": lambda m, x: _overwritten(x, axis, start, c),
        "scatter": lambda m, x: torch.zeros_like(x).scatter_add(axis, m.places.expand(x.shape[0], *shape), x),
        "put": lambda m, x: _put(x, m.picks, m.b),
        "fold": lambda m, x: F.fold(F.unfold(x, 2, padding=1), shape[1:], 2, padding=1),
        "diagonal": lambda m, x: torch.diag_embed(x) if rank == 1 else x.diagonal(0, -2, -1),
    }
    draw_offset = draw.integer(0, 2)
    name = draw.choice(sorted(forms))
    return Function(f"{name} axis={axis}", forms[name], picks=picks, places=places, b=draw.tensor(1, *shape))


def _overwritten(x: Tensor, axis: int, index: int, c: float) -> Tensor:
    """Return a copy with one slice overwritten in place."""
    x = x.clone()
    x.select(axis, index).fill_(c)
    x.narrow(axis, 0, 1).mul_(2.0)
    return x


def _put(x: Tensor, picks: Tensor, b: Tensor) -> Tensor:
    """Return a constant with some rows put in, and some added to."""
    picks = picks[:1] % x.shape[1]
    out = b.expand(x.shape[0], *b.shape[1:]).clone()
    out[:, picks] = x[:, picks] * 2.0
    return out.index_add(1, picks, x[:, :1])


def reduction(draw: Draw, shape: Shape) -> nn.Module:
    """Return a sum, mean, norm, maximum, softmax or sort along axes."""
    axis = draw.integer(1, len(shape))
    every = tuple(range(1, len(shape) + 1))
    forms: dict[str, Callable[[Any, Tensor], Tensor]] = {
        "sum": lambda m, x: x.sum(axis, keepdim=True),
        "mean": lambda m, x: x.mean(every, keepdim=True),
        "norm": lambda m, x: x.norm(dim=axis, keepdim=True),
        "norm1": lambda m, x: torch.linalg.vector_norm(x, 1, dim=axis, keepdim=True),
        "norminf": lambda m, x: torch.linalg.vector_norm(x, float("inf"), dim=axis, keepdim=True),
        "amax": lambda m, x: x.amax(axis, keepdim=True),
        "amin": lambda m, x: x.amin(every, keepdim=True),
        "max": lambda m, x: x.max(axis, keepdim=True).values,
        "softmax": lambda m, x: x.softmax(axis),
        "log_softmax": lambda m, x: x.log_softmax(axis),
        "logsumexp": lambda m, x: x.logsumexp(axis, keepdim=True),
        "sort": lambda m, x: x.sort(axis).values,
        "topk": lambda m, x: x.topk(1, axis).values,
        "median": lambda m, x: x.median(axis, keepdim=True).values,
        "var_mean": lambda m, x: torch.cat(torch.var_mean(torch.sin(x), axis, keepdim=True, correction=0), axis),
        "logaddexp": lambda m, x: torch.logaddexp(x, x.flip(axis)),
        "three": lambda m, x: torch.einsum("bi,i,oi->bo", x.flatten(1), m.w, m.V),
        "std": lambda m, x: x.std(axis, keepdim=True, unbiased=False) + 0.1 * x.sum(axis, keepdim=True),
        "var": lambda m, x: torch.tanh(x).var(axis, keepdim=True, unbiased=False),
        "diff": lambda m, x: torch.cat([x, x.diff(dim=axis)], axis),
    }
    name = draw.choice(sorted(forms))
    n = math.prod(shape)
    return Function(f"{name} axis={axis}", forms[name], w=draw.tensor(n), V=draw.tensor(2, n))
