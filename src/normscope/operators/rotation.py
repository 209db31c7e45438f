"""Complex numbers as pairs of real ones: a product with a constant turns each pair and scales it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from normscope.operators.expression import Expr
from normscope.operators.fourier import pair_shape, paired_linear
from normscope.operators.layout import broadcast
from normscope.operators.registry import Call

_VIEWS = ("view_as_complex", "view_as_real", "view_as_complex_copy", "view_as_real_copy")


def paired(call: Call, read: Sequence[Any]) -> Expr | None:
    """Return the expression of an operation on complex numbers, each a pair along a last axis of two.

    .. math:: c z = |c| R(arg c) (Re z, Im z)

    with ``R`` a rotation of the plane: how rotary position embeddings are often written.

    Args:
        call: the operation.
        read: the values of what it reads and depends on the network input, in order.

    Returns:
        The expression, of the shape of the result with an axis of two behind, or ``None`` if there is no rule.
    """
    name = call.node.op.split(".")[1]
    tainted = call.tainted()
    z = call.arguments[tainted[0]] if len(tainted) == 1 else None
    if not isinstance(z, Expr) or not isinstance(call.value, Tensor):
        return paired_linear(call, read)
    shape = pair_shape(call.value)
    if name in _VIEWS:
        return z if z.shape == shape else None
    factor = call.arguments["other" if tainted == ["self"] else "self"] if name == "mul" else None
    if factor is None or isinstance(factor, Expr) or not all(v.is_complex() for v in read):
        return paired_linear(call, read)
    return _product(call, z, torch.as_tensor(factor).detach().to(torch.complex128), shape)


def _product(call: Call, z: Expr, factor: Tensor, shape: tuple[int, ...]) -> Expr | None:
    """Return pairs turned by the angles of constants, then scaled by their moduli."""
    if z.shape[-1:] != (2,) or not bool(torch.isfinite(torch.view_as_real(factor)).all()):
        return None
    modulus = factor.abs() * (1 + 2.0**-50)  # so that rounding leaves what turns at most one
    unit = torch.where(factor == 0, torch.zeros_like(factor), factor / modulus).expand(shape[:-1])
    scale = modulus.expand(shape[:-1]).unsqueeze(-1).expand(shape)

    def turn(v: Tensor) -> Tensor:
        (a, b), c, s = v.unbind(-1), unit.real.to(v), unit.imag.to(v)
        return torch.stack((a * c - b * s, a * s + b * c), -1)

    turned = call.linear("contraction", turn, [broadcast(z, shape, call)], shape=shape, rowwise=True)
    return call.linear("diagonal", lambda v: v * scale.to(v), [turned], scale=scale, shape=shape)
