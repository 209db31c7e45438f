"""Deep and wide networks: whole analyses against the CPU time they may take, and the memory that was announced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.fresh import fresh, here
from benchmarks.machine import environment

Say = Callable[[str], None]


class Residual(nn.Module):
    """Residual blocks of a LayerNorm and a linear layer."""

    def __init__(self, blocks: int, width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width)) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        """Return the input plus what every block adds."""
        for block in self.blocks:
            x = x + block(x)
        return x


def chain(modules: int, width: int = 8) -> nn.Module:
    """Return linear layers, ReLUs and LayerNorms in turns."""
    kinds = (lambda: nn.Linear(width, width), nn.ReLU, lambda: nn.LayerNorm(width))
    return nn.Sequential(*(kinds[i % 3]() for i in range(modules)))


#: Networks that are not in the zoo, each on vectors of its width.
NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "chain": chain,
    "residual": lambda layers, width=8: Residual(layers // 2, width),
}


def deep(name: str, arguments: dict[str, Any], batch: int) -> tuple[nn.Module, Tensor]:
    """Return one of :data:`NETWORKS` and a random batch."""
    torch.manual_seed(0)
    return NETWORKS[name](**arguments).eval(), torch.randn(batch, arguments.get("width", 8))


@dataclass(frozen=True)
class Subject:
    """A network, the length of its token sequences where it reads tokens, and the CPU seconds it may take."""

    label: str
    name: str
    arguments: dict[str, Any]
    target: float
    length: int | None = None
    batch: int = 4


def encoder(width: int) -> dict[str, Any]:
    """Return the arguments of a pre-norm encoder of depth four."""
    return {"depth": 4, "width": width, "heads": 4, "norm_first": True}


LLAMA = {"width": 4096, "layers": 1, "hidden": 11008, "heads": 32, "key_heads": 32, "vocabulary": 64}
SUBJECTS = (
    Subject("chain of 2,000 modules", "chain", {"modules": 2_000}, 60.0),
    Subject("chain of 10,000 modules", "chain", {"modules": 10_000}, 60.0),
    Subject("1,000 residual blocks", "residual", {"layers": 2_000}, 60.0),
    Subject("3,333 residual blocks, 10,002 modules", "residual", {"layers": 6_666}, 60.0),
    Subject("5,000 residual blocks, 15,002 modules", "residual", {"layers": 10_000}, 60.0),
    Subject("encoder 4 x 1,024", "transformer_encoder", encoder(1_024), 20.0, batch=8),
    Subject("gpt 12 x 768, 128 tokens", "gpt", {"layers": 12, "width": 768, "heads": 12, "context": 128}, 60.0, 128, 2),
    Subject("one block of a 7B Llama, 16 tokens", "llama_like", LLAMA, 120.0, 16, 2),
)
SMALL = (
    Subject("chain of 9 modules", "chain", {"modules": 9}, 60.0),
    Subject("2 residual blocks", "residual", {"layers": 4}, 60.0),
)


@dataclass(frozen=True)
class Settings:
    """What to analyze.

    Attributes:
        subjects: the networks.
        isolated: whether every measurement gets a process of its own.
        only: analyze these networks alone, if there are any.
        known: labels not to analyze.
    """

    subjects: tuple[Subject, ...] = SUBJECTS
    isolated: bool = True
    only: tuple[str, ...] = ()
    known: tuple[str, ...] = ()


QUICK = Settings(SMALL, isolated=False)


def run(settings: Settings, say: Say) -> Iterator[dict[str, Any]]:
    """Analyze every network in a process of its own; yield after each."""
    ask = fresh if settings.isolated else here
    rows = []
    for subject in settings.subjects:
        if subject.label in settings.known or (settings.only and subject.name not in settings.only):
            continue
        network = {"name": subject.name, "arguments": subject.arguments, "length": subject.length}
        found = ask("analyze", batch=subject.batch, **network)
        rows.append({"name": subject.label, "target": subject.target, "load": environment()["load_average"]} | found)
        say(f"{subject.label}: {found['cpu']:.1f} CPU s, {found['memory_mib']:.0f} MiB")
        yield {"environment": environment(), "rows": rows}
