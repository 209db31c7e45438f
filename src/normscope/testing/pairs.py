"""Pairs of inputs that a function drives apart: only a pair refutes a Lipschitz bound, everything else looks for one.

Directions come from the Jacobian (Lanczos on ``J^T J`` by automatic differentiation in float64), points from every
scale and from gradient ascent. What rounding may have added is measured by moving both ends by their last bits.
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
#: How much rounding may exceed what moving the last bits of both ends shows.
CAUTION = 8.0
_ULP = 2.0**-51


@dataclass(frozen=True, eq=False)
class Pair:
    """Two points and the quotient ``||f(a) - f(b)|| / ||a - b||``, rounding taken off."""

    log: float  #: natural logarithm of the quotient; ``-inf`` if rounding explains all of it
    a: Tensor  #: one point
    b: Tensor  #: the other


def most_stretched(y: Tensor, x: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the largest ``||J v||`` that Lanczos finds at each point, and the unit direction v.

    Each row of ``y`` depends on that row of ``x`` only; ``x`` is a leaf. A step is one product with J and one with its
    transpose.

    >>> x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    >>> norms, _ = most_stretched(x @ torch.diag(torch.tensor([1.0, 2, 5]).double()), x, 3, torch.Generator())
    >>> [round(n, 9) for n in norms.tolist()]
    [5.0, 5.0]
    """
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


def dense_norms(y: Tensor, x: Tensor) -> Tensor:
    """Return the spectral norm of the Jacobian at each point, from all of its rows; NaN where it is not finite."""
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
    """Return pairs around points along their directions, of every length in :data:`STEPS`."""
    size = x.norm(dim=1, keepdim=True)
    step = [s * torch.where(size > 0, size, 1.0) * direction for s in STEPS]
    return torch.cat([x - d for d in step]), torch.cat([x + d for d in step])


def everywhere(data: Tensor, shapes: Sequence[tuple[int, ...]], generator: torch.Generator) -> Tensor:
    """Return points of very different scales: the data, noise, spikes, and nearly constant rows.

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


def quotients(images: tuple[Tensor, Tensor], a: Tensor, b: Tensor, noise: float) -> Tensor:
    """Return the quotient of each pair, less what rounding of the results may have added; NaN counts as zero."""
    distance = (a - b).norm(dim=1)
    size = torch.maximum(a.norm(dim=1), b.norm(dim=1))
    left, right = images
    change = (left - right).norm(dim=1) - noise * (left.norm(dim=1) + right.norm(dim=1))
    quotient = torch.where(distance > CLOSEST * size, change / distance.clamp_min(1e-300), 0.0)
    return quotient.nan_to_num(0.0, 0.0, 0.0).clamp_min(0.0)


def without_rounding(function: Flat, a: Tensor, b: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    """Return the quotients of pairs less what rounding explains: what moving the last bits of both ends changes.

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


def ascended(function: Flat, x: Tensor, generator: torch.Generator, steps: int) -> tuple[Tensor, Tensor]:
    """Return pairs whose quotient gradient ascent has made large, one from each start."""
    scale = x.norm(dim=1, keepdim=True) / math.sqrt(x.shape[1]) + 1e-12
    point = torch.zeros_like(x).requires_grad_(True)  # in units of the scale, as is the step
    step = (0.03 * torch.randn(x.shape, generator=generator, dtype=torch.float64)).requires_grad_(True)
    optimizer = torch.optim.Adam([point, step], lr=0.03)
    best = torch.full((len(x),), -math.inf, dtype=torch.float64)
    pair = (x.clone(), x + scale * step.detach())
    for _ in range(steps):
        a = x + scale * point
        b = a + scale * step
        with torch.enable_grad():
            change = (function(x + scale * point + scale * step) - function(x + scale * point)).square().sum(1)
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
) -> Pair:
    """Return the pair with the largest quotient around some points.

    Each row of a result depends on that row of the points only; ``inside`` tells which points lie in the domain.

    >>> points = torch.randn(4, 3, dtype=torch.float64)
    >>> found = attack(lambda x: torch.tanh(5 * x), points * 1e-6, noise=1e-13, generator=torch.Generator())
    >>> 4.99 < math.exp(found.log) <= 5.0
    True
    """
    leaf = x.detach().clone().requires_grad_(True)
    with torch.enable_grad():
        y = function(leaf)
    _, direction = most_stretched(y, leaf, steps, generator)
    random = unit(torch.randn(x.shape, generator=generator, dtype=torch.float64))
    pairs = [along(x, direction), along(x, random), (x, x.roll(1, 0))]
    a, b = (torch.cat([p[i] for p in pairs]) for i in (0, 1))
    if inside is not None:
        keep = inside(a) & inside(b)
        a, b = a[keep], b[keep]
    return best_pair(function, a, b, noise, generator)


def best_pair(function: Flat, a: Tensor, b: Tensor, noise: float, generator: torch.Generator) -> Pair:
    """Return the best of some pairs, rounding taken off."""
    if not len(a):
        return Pair(-math.inf, a, b)
    with torch.no_grad():
        found = quotients((function(a), function(b)), a, b, noise)
    order = found.argsort(descending=True)[:3]
    sure = without_rounding(function, a[order], b[order], noise, generator)
    k = int(sure.argmax())
    return Pair(log_of(float(sure[k])), a[order][k], b[order][k])
