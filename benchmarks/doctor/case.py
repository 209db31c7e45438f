"""What a case is, how cases register themselves, and the small networks they are made of."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

#: Where the threads are.
GITHUB = "https://github.com/"


@dataclass(frozen=True)
class Setup:
    """What is given to the doctor.

    Attributes:
        model: the network.
        data: inputs, if the person has any at hand.
        optimizer: the optimizer, if the bug is there.
        options: further arguments of ``normscope.check``.
    """

    model: nn.Module
    data: Any = None
    optimizer: torch.optim.Optimizer | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One bug and its repaired twin.

    Attributes:
        name: short, unique.
        topic: the file it stands in.
        thread: where people reported it, below :data:`GITHUB`.
        story: what went wrong, in one sentence.
        codes: rules of which one must speak.
        places: layers of which one must be named.
        build: from "with the bug?" to what is checked.
    """

    name: str
    topic: str
    thread: str
    story: str
    codes: tuple[str, ...]
    places: tuple[str, ...]
    build: Callable[[bool], Setup]

    def setup(self, *, bug: bool) -> Setup:
        """Return the network with the bug, or its twin, always the same one."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.build(bug)


#: Every case, by name.
CASES: dict[str, Case] = {}


def case(thread: str, codes: str, places: str) -> Callable[[Callable[[bool], Setup]], Callable[[bool], Setup]]:
    """Register a function as a case; its name and its docstring are those of the case.

    Args:
        thread: ``owner/repository/issues/number``.
        codes: rules of which one must speak, split by spaces.
        places: layers of which one must be named, split by spaces.
    """

    def register(build: Callable[[bool], Setup]) -> Callable[[bool], Setup]:
        name, topic = build.__name__.replace("_", "-"), build.__module__.rpartition(".")[2]
        story = " ".join((build.__doc__ or "").split())
        assert name not in CASES, name
        assert story, name
        CASES[name] = Case(name, topic, GITHUB + thread, story, tuple(codes.split()), tuple(places.split()), build)
        return build

    return register


def named(**parts: nn.Module) -> nn.Sequential:
    """Return modules in a row, by name."""
    return nn.Sequential(OrderedDict(parts))


def images(n: int = 128, channels: int = 3, size: int = 8) -> Tensor:
    """Return images of mean zero and variance one."""
    return torch.randn(n, channels, size, size)


def sequences(n: int = 64, length: int = 12, features: int = 16) -> Tensor:
    """Return sequences of feature vectors."""
    return torch.randn(n, length, features)


def convnet(norm: Callable[[int], nn.Module] = nn.BatchNorm2d, width: int = 8) -> nn.Sequential:
    """Return two convolutions with normalizers, pooling and a classifier."""
    return named(
        conv1=nn.Conv2d(3, width, 3, padding=1, bias=False), bn1=norm(width), relu1=nn.ReLU(),
        conv2=nn.Conv2d(width, width, 3, padding=1, bias=False), bn2=norm(width), relu2=nn.ReLU(),
        pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(), fc=nn.Linear(width, 4),
    )  # fmt: skip


def mlp(norm: Callable[[int], nn.Module] = nn.LayerNorm, width: int = 16, out: int = 4) -> nn.Sequential:
    """Return two hidden layers with normalizers, and an output layer; before BatchNorm without biases."""
    bias = norm is not nn.BatchNorm1d
    return named(
        fc1=nn.Linear(16, width, bias=bias), norm1=norm(width), act1=nn.GELU(),
        fc2=nn.Linear(width, width, bias=bias), norm2=norm(width), act2=nn.GELU(), head=nn.Linear(width, out),
    )  # fmt: skip


def train(model: nn.Module, data: Tensor, steps: int = 30, lr: float = 0.1) -> nn.Module:
    """Train a little on random labels, the rate falling to zero; return the model in evaluation."""
    model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=lr, momentum=0.9)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * (1 - step / steps)
        out = model(data)
        rows = out.flatten(0, -2) if out.ndim == 3 else out.flatten(1)
        labels = torch.arange(len(rows)) % rows.shape[1]
        loss = nn.functional.cross_entropy(rows, labels) if rows.shape[1] > 1 else rows.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():  # let the running statistics settle
        for _ in range(30):
            model(data)
    return model.eval()


class Attention(nn.Module):
    """Self-attention with separate projections, written out."""

    def __init__(self, width: int = 16, heads: int = 2, scale: float | None = None) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.heads = heads
        self.scale = (width // heads) ** -0.5 if scale is None else scale

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        n, length, width = x.shape
        q, k, v = (f(x).view(n, length, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        weights = (q @ k.transpose(-1, -2) * self.scale).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(n, length, width))


class PreNormBlock(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int = 16, norm: Callable[[int], nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.norm1, self.attn = norm(width), Attention(width)
        self.norm2 = norm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Attend, then mix features."""
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class RMSNorm(nn.Module):
    """A root-mean-square normalizer written out, as language models have it."""

    def __init__(self, width: int, eps: float = 1e-6, *, upcast: bool = True, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps, self.upcast, self.offset = eps, upcast, offset

    def forward(self, x: Tensor) -> Tensor:
        """Divide by the root mean square."""
        wide = x.float() if self.upcast else x
        normalized = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return normalized.to(x.dtype) * (self.offset + self.weight)
