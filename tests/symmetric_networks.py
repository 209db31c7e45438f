"""Small networks whose symmetries are counted, and the count itself: the null space of the Gauss-Newton matrix."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.geometry.function import ModelFunction


def randomized(model: nn.Module, seed: int = 1) -> nn.Module:
    """Give vectors of parameters and running statistics generic values, and return the model in float64."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            if value.ndim > 1 or not value.is_floating_point():
                continue
            positive = "weight" in name or "var" in name
            drawn = torch.rand(value.shape, generator=generator) + 0.5
            value.copy_(drawn if positive else 0.3 * torch.randn(value.shape, generator=generator))
    return model.double()


def nullity(function: ModelFunction, relative: float = 1e-8) -> int:
    """Return how many eigenvalues of the Gauss-Newton matrix are below a share of the largest."""
    point = function.point
    sizes = [value.numel() for value in point.values()]

    def outputs(flat: Tensor) -> Tensor:
        parts = flat.split(sizes)
        return function.flat({n: p.reshape(v.shape) for (n, v), p in zip(point.items(), parts, strict=True)})

    jacobian = torch.func.jacfwd(outputs)(torch.cat([value.reshape(-1) for value in point.values()]))
    if function.loss == "cross_entropy":
        classes = function.outputs(point)[0].shape[-1]
        rows = jacobian.reshape(-1, classes, jacobian.shape[-1])
        p = function.outputs(point)[0].reshape(-1, classes).softmax(-1)[..., None]
        jacobian = (p.sqrt() * (rows - (p * rows).sum(1, keepdim=True))).reshape(-1, jacobian.shape[-1])
    values = torch.zeros(jacobian.shape[1], dtype=torch.float64)
    found = torch.linalg.svdvals(jacobian).square()
    values[: len(found)] = found
    return int((values < relative * values.max()).sum())


def mlp(norm: Callable[[int], list[nn.Module]], activation: type[nn.Module], hidden: int = 4) -> nn.Module:
    """Return a network with one hidden layer."""
    return nn.Sequential(nn.Linear(3, hidden), *norm(hidden), activation(), nn.Linear(hidden, 3))


class Convolutional(nn.Module):
    """Two convolutions with normalizers and a linear layer."""

    def __init__(self, norm: Callable[[int], nn.Module], activation: type[nn.Module], width: int = 4) -> None:
        super().__init__()
        self.one, self.norm_one = nn.Conv2d(2, width, 3, padding=1), norm(width)
        self.two, self.norm_two = nn.Conv2d(width, width, 3, padding=1), norm(width)
        self.activation, self.head = activation(), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = self.activation(self.norm_one(self.one(x)))
        return self.head(self.activation(self.norm_two(self.two(x))).mean((2, 3)))


class Residual(nn.Module):
    """A residual block behind a stem, normalized after each layer or before."""

    def __init__(self, norm: Callable[[int], nn.Module], *, before: bool) -> None:
        super().__init__()
        self.before = before
        self.stem, self.norm = nn.Linear(3, 4), norm(4)
        self.one, self.norm_one, self.two = nn.Linear(4, 5), norm(5), nn.Linear(5, 4)
        self.norm_two, self.head = norm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = self.stem(x)
        if self.before:
            x = x + self.two(F.leaky_relu(self.norm_one(self.one(F.leaky_relu(self.norm(x))))))
            return self.head(F.leaky_relu(self.norm_two(x)))
        x = F.relu(self.norm(x))
        return self.head(F.relu(x + self.norm_two(self.two(F.relu(self.norm_one(self.one(x)))))))


class Behind(nn.Module):
    """A linear layer that reads a LayerNorm, its weight stored with the inputs first as GPT-2 does, or last."""

    def __init__(self, *, transposed: bool) -> None:
        super().__init__()
        self.first, self.norm, self.transposed = nn.Linear(3, 4), nn.LayerNorm(4), transposed
        self.weight = nn.Parameter(torch.randn(4, 5) if transposed else torch.randn(5, 4))
        self.bias, self.last = nn.Parameter(torch.zeros(5)), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        x = self.norm(self.first(x))
        weight = self.weight if self.transposed else self.weight.T
        return self.last(torch.tanh(torch.addmm(self.bias, x, weight)))


def rotary(x: Tensor, still: int = 0) -> Tensor:
    """Return queries or keys turned by their positions, but for some channels at the end."""
    if still:
        return torch.cat([rotary(x[..., :-still]), x[..., -still:]], -1)
    one, two = x.chunk(2, -1)
    frequencies = 10.0 ** -torch.arange(x.shape[-1] // 2, dtype=x.dtype)
    angle = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * frequencies
    return torch.cat([one * angle.cos() - two * angle.sin(), two * angle.cos() + one * angle.sin()], -1)


class Attention(nn.Module):
    """One pre-norm transformer block."""

    def __init__(
        self,
        norm: Callable[[int], nn.Module] = nn.LayerNorm,
        *,
        width: int = 6,
        heads: int = 2,
        bias: bool = True,
        turned: bool = False,
        still: int = 0,
        normed: bool = False,
        gated: bool = False,
        tokens: int = 0,
    ) -> None:
        super().__init__()
        self.heads, self.turned, self.still = heads, turned, still
        self.embed = nn.Embedding(tokens, width) if tokens else nn.Linear(8, width, bias=bias)
        self.positions = None if turned else nn.Parameter(torch.randn(1, 4, width))
        self.norm_one, self.norm_two, self.norm_last = norm(width), norm(width), norm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=bias) for _ in range(4))
        self.up, self.down = nn.Linear(width, 5, bias=bias), nn.Linear(5, width, bias=bias)
        self.gate = nn.Linear(width, 5, bias=bias) if gated else None
        self.norm_q = nn.RMSNorm(width // heads) if normed else nn.Identity()
        self.norm_k = nn.RMSNorm(width // heads) if normed else nn.Identity()
        self.head = nn.Linear(width, tokens or 3, bias=bias)
        with torch.no_grad():
            for layer in (self.q, self.k, self.o, self.up):
                layer.weight.mul_(2.0)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of every position."""
        x = self.embed(x)
        x = x if self.positions is None else x + self.positions
        y = self.norm_one(x)
        q, k, v = (layer(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        q, k = self.norm_q(q), self.norm_k(k)
        if self.turned:
            q, k = rotary(q, self.still), rotary(k, self.still)
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(z.transpose(1, 2).flatten(2))
        y = self.norm_two(x)
        inner = F.gelu(self.up(y)) if self.gate is None else F.silu(self.gate(y)) * self.up(y)
        return self.head(self.norm_last(x + self.down(inner)))
