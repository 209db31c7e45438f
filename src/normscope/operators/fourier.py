"""Fourier transforms and complex linear operations: a complex number is a pair of reals on a last axis of size two."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from normscope.core.rounding import up
from normscope.core.statement import statement
from normscope.graph.interpreter import literals, resolve
from normscope.operators.expression import Expr
from normscope.operators.layout import add_terms, broadcast, of_norm, scaled
from normscope.operators.reduction import VectorNorm
from normscope.operators.registry import Call, call_by_name, expressions

#: Operations that are linear in one tensor, all others being constant.
_LINEAR = ("mul", "div", "einsum", "bmm", "mm", "matmul")
#: Operations that are linear in all of their tensors together, perhaps with something constant added.
_JOINTLY = (
    "view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "permute", "transpose",
    "movedim", "expand", "slice", "select", "narrow", "index_select", "roll", "flip", "constant_pad_nd", "pad", "sum",
    "mean", "neg", "real", "imag", "conj", "_conj", "resolve_conj", "_conj_physical", "conj_physical", "to", "_to_copy",
    "fft_fftshift", "fft_ifftshift", "complex", "add", "sub", "cat", "stack", "slice_scatter", "select_scatter",
)  # fmt: skip
#: Operations that leave numbers as they are, whatever derivative torch uses.
_SAME = ("clone", "contiguous", "alias", "detach", "copy", "lift_fresh_copy")
_TRANSFORMS = ("fft_fft", "fft_ifft", "fft_rfft", "fft_irfft", "fft_hfft", "fft_ihfft")


@statement("normscope", "FFT-1", holds="a discrete Fourier transform of N points per transform")
def fourier_norm(name: str, points: int, normalization: str | None) -> float:
    r"""Return a bound on the norm of a discrete Fourier transform, complex numbers being pairs of real ones.

    .. math:: \|F\| = s \sqrt N, \qquad \|F_{half \to real}\| \le \sqrt 2\, s \sqrt N

    with s = 1/N, 1 or 1/sqrt(N) depending on the normalization. A spectrum given by half of its coefficients counts
    each of them twice.

    Args:
        name: of the operation, as ``fft_irfft2``.
        points: N, the number of points (of the real side) each transform runs over.
        normalization: ``backward``, ``forward`` or ``ortho``.

    >>> round(fourier_norm("fft_fft", 4, None), 9), round(fourier_norm("fft_irfft", 4, "ortho"), 9)
    (2.0, 1.414213562)
    """
    inverse = name.startswith("fft_i")
    mode = normalization or "backward"
    scale = 1.0 if mode == "ortho" else math.sqrt(points)
    if mode != "ortho" and inverse == (mode == "backward"):
        scale = 1.0 / scale
    return up(scale * (math.sqrt(2.0) if name.startswith(("fft_irfft", "fft_hfft")) else 1.0))


def paired_linear(call: Call, read: Sequence[Any]) -> Expr | None:
    """Return the expression of an operation that reads or returns complex numbers, or ``None`` if there is no rule."""
    name = call.name
    found = expressions(list(call.arguments.values()))
    parts = list({e.id: e for e in found}.values())
    if not isinstance(call.value, Tensor) or [e.shape for e in parts] != [pair_shape(v) for v in read]:
        return None
    isolated = [_isolated(call, parts, [v.is_complex() for v in read], i) for i in range(len(parts))]
    shape = pair_shape(call.value)
    if name in _SAME:
        source = call["src"] if name == "copy" else parts[0]
        return source if isinstance(source, Expr) and source.shape == shape else None
    if name == "abs":
        return call.atom(VectorNorm(parts[0], 2.0, 2), shape)
    if name.startswith(_TRANSFORMS) and "shift" not in name:
        norm = fourier_norm(name, _points(call, parts[0], read[0].is_complex()), call.get("norm")) * (1 + 1e-12)
        return of_norm(call, isolated[0], parts[0], norm, shape)
    divisor = name == "div" and isinstance(call["other"], Expr)
    if name not in _JOINTLY and (name not in _LINEAR or len(found) > 1 or divisor):
        return None
    constant = isolated[0](torch.zeros(parts[0].shape, dtype=torch.float64))
    terms = [
        call.linear("generic", lambda v, f=f: f(v) - constant.to(v), [e], shape=shape)
        for e, f in zip(parts, isolated, strict=True)
    ]
    return add_terms(call.shaped(shape), terms, constant)


def pair_shape(value: Tensor) -> tuple[int, ...]:
    """Return the shape a tensor has with its complex entries written as pairs.

    >>> pair_shape(torch.zeros(3, dtype=torch.complex64)), pair_shape(torch.zeros(3))
    ((3, 2), (3,))
    """
    return (*value.shape, 2) if value.is_complex() else tuple(value.shape)


def _isolated(call: Call, parts: Sequence[Expr], is_complex: Sequence[bool], place: int) -> Callable[[Tensor], Tensor]:
    """Return an operation as a function of one tensor it reads, in pairs, the others being zero."""
    function = resolve(call.node.op)

    def filled(tree: Any, values: dict[int, Tensor], part: Callable[[Tensor], Tensor]) -> Any:
        if isinstance(tree, Expr):
            return part(values[tree.id])
        if isinstance(tree, list | tuple):
            return [filled(item, values, part) for item in tree]
        wide = _wide(literals(tree))
        return part(wide) if isinstance(wide, Tensor) else wide

    def run(values: dict[int, Tensor], part: Callable[[Tensor], Tensor]) -> Tensor:
        given = {key: filled(value, values, part) for key, value in call.arguments.items()}
        return call_by_name(function, given)

    def apply(v: Tensor) -> Tensor:
        values = {}
        for i, (expr, pairs) in enumerate(zip(parts, is_complex, strict=True)):
            x = v if i == place else v.new_zeros(expr.shape)
            values[expr.id] = torch.complex(*x.unbind(-1)) if pairs else x
        if call.name.endswith("_scatter"):  # torch differentiates these for real numbers only
            imaginary = lambda z: z.imag if z.is_complex() else torch.zeros_like(z)  # noqa: E731
            return torch.stack([run(values, part) for part in (torch.real, imaginary)], -1)
        out = run(values, lambda z: z)
        return torch.view_as_real(out.resolve_conj()) if out.is_complex() else out

    return apply


def _wide(value: Any) -> Any:
    """Return a constant in double precision."""
    if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
        return value
    return value.detach().to(torch.complex128 if value.is_complex() else torch.float64)


def _points(call: Call, z: Expr, reads_complex: bool) -> int:
    """Return the number of points each transform runs over, on its longer side."""
    name = call.name
    real = call.value.shape if name.startswith(("fft_irfft", "fft_hfft")) else None
    side: Sequence[int] = real if real is not None else (z.shape[:-1] if reads_complex else z.shape)
    rank = len(side)
    if name[-1] in "2n":
        dims = call.get("dim", [-2, -1] if name[-1] == "2" else None)
        sizes = call.get("s")
        if dims is None:
            dims = list(range(rank)) if sizes is None else list(range(rank - len(sizes), rank))
        given = list(sizes) if sizes is not None else [-1] * len(dims)
    else:
        dims, given = [int(call.get("dim", -1))], [-1 if call.get("n") is None else int(call["n"])]
    lengths = [side[d] if real is not None or n == -1 else n for d, n in zip(dims, given, strict=True)]
    return math.prod(int(n) for n in lengths)


_VIEWS = ("view_as_complex", "view_as_real", "view_as_complex_copy", "view_as_real_copy")


def paired(call: Call, read: Sequence[Any]) -> Expr | None:
    """Return the expression of an operation on complex numbers, each a pair along a last axis of two.

    .. math:: c z = |c| R(arg c) (Re z, Im z)

    with ``R`` a rotation of the plane; rotary position embeddings are often written this way.

    Returns:
        The expression, of the shape of the result with a last axis of two, or ``None`` if there is no rule.
    """
    name = call.name
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
    """Return pairs rotated by the angles of constants, then scaled by their moduli."""
    if z.shape[-1:] != (2,) or not bool(torch.isfinite(torch.view_as_real(factor)).all()):
        return None
    modulus = factor.abs() * (1 + 2.0**-50)  # so that the norm of the rotation is at most one despite rounding
    unit = torch.where(factor == 0, torch.zeros_like(factor), factor / modulus).expand(shape[:-1])
    scale = modulus.expand(shape[:-1]).unsqueeze(-1).expand(shape)

    def turn(v: Tensor) -> Tensor:
        (a, b), c, s = v.unbind(-1), unit.real.to(v), unit.imag.to(v)
        return torch.stack((a * c - b * s, a * s + b * c), -1)

    turned = call.linear("contraction", turn, [broadcast(z, shape, call)], shape=shape, rowwise=True)
    return scaled(call.shaped(shape), turned, scale)
