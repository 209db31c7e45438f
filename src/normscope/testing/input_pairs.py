"""Search for pairs of inputs whose quotient ``||f(a) - f(b)|| / ||a - b||`` exceeds a Lipschitz bound.

Directions come from the Jacobian (Lanczos on ``J^T J`` by automatic differentiation in float64), points from every
scale and from gradient ascent. Rounding errors are estimated by perturbing both points in their last bits.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.core.value import log_of

#: A function of points, one per row: (points, entries) -> (points, outputs).
Flat = Callable[[Tensor], Tensor]
#: Lengths of the steps tried along a direction, relative to the size of the point.
STEPS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
#: Shortest distance of a pair, relative to its size, that float64 can tell from rounding.
CLOSEST = 3e-6
#: Safety factor on the rounding errors seen when both points are perturbed in their last bits.
CAUTION = 8.0
_ULP = 2.0**-51


@dataclass(frozen=True, eq=False)
class InputPair:
    """Two points and the quotient ``||f(a) - f(b)|| / ||a - b||``, rounding errors subtracted."""

    log: float  #: natural logarithm of the quotient; ``-inf`` if rounding explains all of it
    a: Tensor  #: one point
    b: Tensor  #: the other


def _at_leaf(function: Flat, points: Tensor) -> tuple[Tensor, Tensor]:
    """Return a function at points, and the points as the leaf to differentiate its values by."""
    x = points.detach().clone().requires_grad_(True)
    with torch.enable_grad():
        return function(x), x


def most_stretched(function: Flat, points: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the largest ``||J v||`` that Lanczos finds at each point, and the unit direction v.

    Each row of the result depends on that row of the points only. A step is one product with J and one with its
    transpose.

    >>> matrix = torch.diag(torch.tensor([1.0, 2, 5]).double())
    >>> norms, _ = most_stretched(lambda x: x @ matrix, torch.randn(2, 3).double(), 3, torch.Generator())
    >>> [round(n, 9) for n in norms.tolist()]
    [5.0, 5.0]
    """
    y, x = _at_leaf(function, points)
    none = torch.zeros(len(x), dtype=torch.float64), torch.zeros_like(x)
    if not y.requires_grad:
        return none
    u = torch.zeros_like(y, requires_grad=True)
    g = torch.autograd.grad(y, x, u, create_graph=True, allow_unused=True, materialize_grads=True)[0]
    if not g.requires_grad:
        return none
    v = unit(torch.randn(x.shape, generator=generator, dtype=torch.float64))
    basis: list[Tensor] = []
    images: list[Tensor] = []
    for _ in range(min(steps, x.shape[1])):
        basis.append(v)
        image = torch.autograd.grad(g, u, v, retain_graph=True, allow_unused=True, materialize_grads=True)[0]
        images.append(image.detach().nan_to_num(0.0, 0.0, 0.0))
        back = torch.autograd.grad(y, x, images[-1], retain_graph=True)[0].nan_to_num(0.0, 0.0, 0.0)
        span = torch.stack(basis, 1)
        for _ in range(2):  # twice is enough
            back = back - torch.einsum("pkn,pk->pn", span, torch.einsum("pkn,pn->pk", span, back))
        v = unit(back)
    stacked = torch.stack(images, 1)
    _, vectors = torch.linalg.eigh(stacked @ stacked.transpose(1, 2))
    top = vectors[:, :, -1]
    direction = torch.einsum("pkn,pk->pn", torch.stack(basis, 1), top)
    norms = torch.einsum("pkm,pk->pm", stacked, top).norm(dim=1)
    return norms / direction.norm(dim=1).clamp_min(1e-300), unit(direction)


def unit(v: Tensor) -> Tensor:
    """Return rows of norm one, or zero."""
    size = v.norm(dim=1, keepdim=True)
    return torch.where(size > 1e-290, v / size.clamp_min(1e-290), 0.0)


def dense_norms(function: Flat, points: Tensor) -> Tensor:
    """Return the spectral norm of the Jacobian at each point, from all of its rows; NaN where it is not finite."""
    y, x = _at_leaf(function, points)
    if not y.requires_grad or not y.shape[1]:
        return torch.zeros(len(x), dtype=torch.float64)
    rows = [
        torch.autograd.grad(y[:, k].sum(), x, retain_graph=True, allow_unused=True, materialize_grads=True)[0]
        for k in range(y.shape[1])
    ]
    jacobian = torch.stack(rows, 1).flatten(2)
    finite = jacobian.isfinite().flatten(1).all(1)
    norms = torch.linalg.matrix_norm(torch.where(finite[:, None, None], jacobian, 0.0), ord=2)
    return torch.where(finite, norms, math.nan)


def along(x: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """Return pairs centred at the points along the directions, one for each length in :data:`STEPS`."""
    size = x.norm(dim=1, keepdim=True)
    step = [s * torch.where(size > 0, size, 1.0) * direction for s in STEPS]
    return torch.cat([x - d for d in step]), torch.cat([x + d for d in step])


def points_at_all_scales(data: Tensor, shapes: Sequence[tuple[int, ...]], generator: torch.Generator) -> Tensor:
    """Return points of very different scales: data, noise, spikes and nearly constant rows.

    ``shapes`` are those of the tensors that make up a point, the last axis the features.
    """
    n = data.shape[1]
    noise = lambda k: torch.randn(k, n, generator=generator, dtype=torch.float64)  # noqa: E731
    found = [data[:6], data[:3] * 1e-4, data[:3] * 100.0]
    found += [noise(2) * 10.0**e for e in (-6, -4, -2, 0, 2, 4)]
    spikes = torch.zeros(2, n, dtype=torch.float64)
    spikes[0, 0] = spikes[1, -1] = 10.0
    found.append(spikes)
    for size in (1e-8, 1e-5, 1e-2):
        level = torch.tensor([1.0, -1.0], dtype=torch.float64)[:, None] * 300 * size
        found += [size * noise(2), level + size * noise(2)]
        rows = [
            torch.randn(1, *s[:-1], 1, generator=generator, dtype=torch.float64).expand(1, *s).reshape(1, -1)
            for s in shapes
        ]
        found.append(torch.cat(rows, 1) * 300 * size + size * noise(1))
    return torch.cat(found)


def quotients(images: tuple[Tensor, Tensor], a: Tensor, b: Tensor, noise: float, closest: float = CLOSEST) -> Tensor:
    """Return a lower bound on the quotient of each pair, given the relative error of the values; NaN counts as zero."""
    distance = (a - b).norm(dim=1)
    size = torch.maximum(a.norm(dim=1), b.norm(dim=1))
    left, right = images
    change = (left - right).norm(dim=1) - noise * (left.norm(dim=1) + right.norm(dim=1))
    quotient = torch.where(distance > closest * size, change / distance.clamp_min(1e-300), 0.0)
    return quotient.nan_to_num(0.0, 0.0, 0.0).clamp_min(0.0)


def without_rounding(function: Flat, a: Tensor, b: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    """Return the quotients of pairs with rounding errors subtracted, as seen when both points move by their last bits.

    >>> a, b = torch.ones(1, 2).double(), torch.zeros(1, 2).double()
    >>> 2.9 < float(without_rounding(lambda x: 3 * x, a, b, 1e-13, torch.Generator())) <= 3.0
    True
    """
    with torch.no_grad():
        left, right = function(a), function(b)
        doubt = noise * (left.norm(dim=1) + right.norm(dim=1))
        for end, image in ((a, left), (b, right)):
            moved = torch.zeros(len(a), dtype=torch.float64)
            for _ in range(3):
                signs = torch.randn(end.shape, generator=generator, dtype=torch.float64)
                moved = torch.maximum(moved, (function(end * (1 + _ULP * signs)) - image).norm(dim=1))
            doubt = doubt + CAUTION * moved
        change = (left - right).norm(dim=1) - doubt
    quotient = change / (a - b).norm(dim=1).clamp_min(1e-300)
    return quotient.nan_to_num(0.0, 0.0, 0.0).clamp_min(0.0)


def ascend(function: Flat, x: Tensor, generator: torch.Generator, steps: int) -> tuple[Tensor, Tensor]:
    """Return pairs with a large quotient, found by gradient ascent from each starting point."""
    scale = x.norm(dim=1, keepdim=True) / math.sqrt(x.shape[1]) + 1e-12
    point = torch.zeros_like(x).requires_grad_(True)  # in units of the scale, as is the step
    step = (0.03 * torch.randn(x.shape, generator=generator, dtype=torch.float64)).requires_grad_(True)
    optimizer = torch.optim.Adam([point, step], lr=0.03)
    best = torch.full((len(x),), -math.inf, dtype=torch.float64)
    pair = (x.clone(), x + scale * step.detach())
    for _ in range(steps):
        with torch.enable_grad():
            a = x + scale * point
            b = a + scale * step
            change = (function(b) - function(a)).square().sum(1)
            value = (change + 1e-300).log() - (scale * step).square().sum(1).log()
        better = value.detach() > best
        best = torch.where(better, value.detach(), best)
        pair = tuple(torch.where(better[:, None], new.detach(), old) for new, old in zip((a, b), pair, strict=True))  # type: ignore[assignment]
        if not value.requires_grad:
            break
        grads = torch.autograd.grad(-value.sum(), [point, step], allow_unused=True, materialize_grads=True)
        point.grad, step.grad = (g.nan_to_num(0.0, 0.0, 0.0) for g in grads)
        optimizer.step()
    return pair


def attack(
    function: Flat,
    x: Tensor,
    *,
    noise: float,
    generator: torch.Generator,
    steps: int = 12,
    inside: Callable[[Tensor], Tensor] | None = None,
) -> InputPair:
    """Return the pair with the largest quotient around some points.

    Each row of a result depends on that row of the points only; ``inside`` returns which points lie in the domain.

    >>> points = torch.randn(4, 3, dtype=torch.float64)
    >>> found = attack(lambda x: torch.tanh(5 * x), points * 1e-6, noise=1e-13, generator=torch.Generator())
    >>> 4.99 < math.exp(found.log) <= 5.0
    True
    """
    _, direction = most_stretched(function, x, steps, generator)
    random = unit(torch.randn(x.shape, generator=generator, dtype=torch.float64))
    pairs = [along(x, direction), along(x, random), (x, x.roll(1, 0))]
    a, b = (torch.cat([p[i] for p in pairs]) for i in (0, 1))
    if inside is not None:
        keep = inside(a) & inside(b)
        a, b = a[keep], b[keep]
    return best_pair(function, a, b, noise, generator)


def best_pair(function: Flat, a: Tensor, b: Tensor, noise: float, generator: torch.Generator) -> InputPair:
    """Return the pair with the largest quotient, rounding errors subtracted."""
    if not len(a):
        return InputPair(-math.inf, a, b)
    with torch.no_grad():
        found = quotients((function(a), function(b)), a, b, noise)
    order = found.argsort(descending=True)[:3]
    return surest_pair(function, a[order], b[order], noise, generator)


def surest_pair(function: Flat, a: Tensor, b: Tensor, noise: float, generator: torch.Generator) -> InputPair:
    """Return the pair whose quotient is largest after its rounding errors are measured and subtracted."""
    sure = without_rounding(function, a, b, noise, generator)
    k = int(sure.argmax())
    return InputPair(log_of(float(sure[k])), a[k], b[k])
