"""Random small networks that mix everything a network is made of, so that a false certificate has nowhere to hide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fuzzing import random_gates, random_layers, random_normalizers
from fuzzing.draw import Draw, Function, Shape, randomized

#: Most entries of any tensor of one sample, so that dense Jacobians stay cheap.
LARGEST = 48
_SHAPES: tuple[Shape, ...] = ((1,), (3,), (6,), (1, 4), (3, 3), (4, 2), (3, 4), (2, 3, 3), (4, 2, 2), (1, 4, 3),
                              (2, 2, 2, 2))  # fmt: skip

Builder = Callable[[Draw, Shape], nn.Module]


def random_network(seed: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a random network in evaluation mode and a batch of random inputs for it.

    Args:
        seed: everything depends on it alone; the global generators stay put.

    Returns:
        The network in float64, and its inputs, five samples along axis 0 (one of them tokens for some networks).

    >>> network, inputs = random_network(7)
    >>> network(*inputs).shape[0]
    5
    """
    draw = Draw(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        kind = draw.choice(["one"] * 8 + ["two", "tokens"])
        if kind == "one":
            return _of_one_input(draw)
        return _of_two_inputs(draw) if kind == "two" else _of_tokens(draw)


def _of_one_input(draw: Draw) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a network of one floating input."""
    shape = draw.choice(_SHAPES)
    x = draw.tensor(5, *shape, scale=draw.scale(-1.0, 1.0)) + draw.choice([0.0, 0.0, 3.0])
    return _chain(draw, x, draw.integer(2, 6), depth=2).eval(), (x,)


def _of_two_inputs(draw: Draw) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a network that joins functions of two inputs."""
    x, y = draw.tensor(5, 3, 2), draw.tensor(5, 2, 2)
    left, right = _chain(draw, x, 1, depth=1), _chain(draw, y, 1, depth=1)
    rows = min(left(x)[0].numel(), right(y)[0].numel())
    joins: list[Callable[[Tensor, Tensor], Tensor]] = [
        lambda a, b: torch.cat([a.flatten(1), b.flatten(1)], 1),
        lambda a, b: a.flatten(1)[:, :rows] + 2.0 * b.flatten(1)[:, :rows],
        lambda a, b: torch.tanh(a.flatten(1)[:, :rows]) * torch.sigmoid(b.flatten(1)[:, :rows]),
        lambda a, b: torch.stack([a.flatten(1)[:, :rows], b.flatten(1)[:, :rows]], -1).amax(-1),
    ]
    join = draw.choice(joins)
    joined = join(left(x), right(y)).detach()
    head = _chain(draw, joined, draw.integer(0, 2), depth=1)
    network = Function(
        "two inputs", lambda m, a, b: m.head(join(m.left(a), m.right(b))), left=left, right=right, head=head
    )
    return network.eval(), (x, y)


def _of_tokens(draw: Draw) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a network of an embedding and what follows it."""
    tokens = draw.indices(7, 5, 3)
    table = randomized(nn.Embedding(7, 4), draw)
    embedded = table(tokens).detach()
    body = _chain(draw, embedded, draw.integer(1, 4), depth=1)
    return Function("tokens", lambda m, t: m.body(m.table(t)), table=table, body=body).eval(), (tokens,)


def _chain(draw: Draw, x: Tensor, length: int, depth: int) -> nn.Sequential:
    """Return layers one after another, each fit for what the one before gives."""
    layers: list[nn.Module] = []
    for _ in range(length):
        layer, y = _fitting(draw, x, depth)
        layers.append(layer)
        x = y
    return nn.Sequential(*layers)


def _fitting(draw: Draw, x: Tensor, depth: int) -> tuple[nn.Module, Tensor]:
    """Return a layer that runs on x, gives finite values of a moderate number, and what it gives."""
    for _ in range(50):
        if depth > 0 and draw.chance(0.3):
            layer = _joined(draw, x, depth)
        else:
            layer = draw.choice(_builders(tuple(x.shape[1:])))(draw, tuple(x.shape[1:]))
        layer = layer.eval()
        try:
            with torch.no_grad():
                y, alone = layer(x), layer(x[:1])
        except (RuntimeError, ValueError, IndexError, AssertionError):  # torch refuses this shape: draw another
            continue
        fits = isinstance(y, Tensor) and y.is_floating_point() and 1 < y.ndim <= 5 and y.shape[0] == x.shape[0]
        fits = fits and 0 < y[0].numel() <= LARGEST and alone.shape == y[:1].shape
        if fits and bool(torch.isfinite(y).all()) and torch.allclose(alone, y[:1]):  # each sample on its own
            return layer, y.detach()
    return nn.Identity(), x


def _builders(shape: Shape) -> Sequence[Builder]:
    """Return the layers that make sense for samples of a shape."""
    rank = len(shape)
    often: tuple[Builder, ...] = (random_layers.activation, random_normalizers.normalizer)
    found: list[Builder] = [*often * 3, random_layers.linear, random_layers.linear, random_layers.reduction]
    found += [random_gates.gate, random_layers.arithmetic, random_layers.layout]
    if rank == 2:
        found += [random_gates.attention] * 2 + [random_gates.recurrent]
    if rank >= 2:
        found.append(random_layers.mixing)
    if 2 <= rank <= 4:
        found += [random_layers.convolution] * 2 + [random_layers.pooling]
    return found


def _joined(draw: Draw, x: Tensor, depth: int) -> nn.Module:
    """Return branches joined by a sum, a product, a concatenation, a maximum, or one branch used twice."""
    branch = _chain(draw, x, draw.integer(1, 2), depth - 1)
    other = _chain(draw, x, draw.integer(1, 2), depth - 1)
    axis, half = draw.integer(1, x.ndim - 1), max(1, x.shape[1] // 2)
    c = draw.number()

    def halves(m: Any, z: Tensor) -> Tensor:
        return torch.cat([m.first(z[:, :half]).flatten(1), m.second(z[:, half:]).flatten(1)], 1)

    forms: dict[str, Callable[[Any, Tensor], Tensor]] = {
        "residual": lambda m, z: z + m.branch(z),
        "scaled residual": lambda m, z: c * z - m.branch(z) * 0.5,
        "sum": lambda m, z: m.branch(z) + m.other(z),
        "difference": lambda m, z: m.branch(z) - m.branch(z * 1.0),
        "product": lambda m, z: m.branch(z) * torch.sigmoid(m.other(z)),
        "concatenation": lambda m, z: torch.cat([m.branch(z), m.other(z)], axis),
        "dense": lambda m, z: torch.cat([z, m.branch(z), z], axis),
        "twice": lambda m, z: m.branch(m.branch(z)),
        "maximum": lambda m, z: torch.maximum(m.branch(z), m.other(z)),
        "matrix product": lambda m, z: torch.tanh(m.branch(z)) @ torch.sin(m.other(z)).transpose(-1, -2),
        "halves": halves,
        "weighted": lambda m, z: m.weight * m.branch(z) + (1 - m.weight) * z,
    }
    name = draw.choice(sorted(forms))
    parts: dict[str, nn.Module] = {"branch": branch, "other": other}
    if name == "halves":
        if x.shape[1] < 2:
            name = "residual"
        else:
            parts["first"] = _chain(draw, x[:, :half], 1, depth - 1)
            parts["second"] = _chain(draw, x[:, half:], 1, depth - 1)
    return Function(name, forms[name], weight=draw.tensor(1), **parts)
