"""``python -m benchmarks.doctor.healthy [NAME ...]``: warnings on well-made networks, each trained for three steps."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

#: Where the networks of the tests are: the zoo, torch's own, and transformers configurations.
NETWORKS = Path(__file__).parents[2] / "tests"
STEPS = 3


def networks() -> dict[str, Callable[[], tuple[nn.Module, Any]]]:
    """Return a builder of model and inputs for every architecture, by name."""
    sys.path.insert(0, str(NETWORKS))
    from architectures import ARCHITECTURES
    from more_architectures import MORE

    return {**{name: a.build for name, a in ARCHITECTURES.items()}, **MORE}


def trained(model: nn.Module, inputs: Any) -> nn.Module:
    """Take a few small steps that pull the outputs to zero; return the model in evaluation."""
    model.train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for _ in range(STEPS):
        out = (
            model(**inputs)
            if isinstance(inputs, dict)
            else model(*inputs)
            if isinstance(inputs, tuple)
            else model(inputs)
        )
        first = next(t for t in _tensors(out) if t.requires_grad)
        optimizer.zero_grad()
        first.square().mean().backward()
        optimizer.step()
    return model.eval()


def _tensors(out: Any) -> list[Tensor]:
    if isinstance(out, Tensor):
        return [out]
    parts = out.values() if hasattr(out, "values") else out if isinstance(out, tuple | list) else ()
    return [t for part in parts for t in _tensors(part)]


def main(names: list[str]) -> int:
    """Check every network and print what is told."""
    import normscope

    torch.set_num_threads(1)
    loud, count = 0, 0
    for name, build in networks().items():
        if names and name not in names:
            continue
        torch.manual_seed(0)
        start = time.process_time()
        try:
            model, inputs = build()
            result = normscope.check(trained(model, inputs), inputs)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            continue
        told = [f for f in result.findings if f.severity.value != "info"]
        count, loud = count + 1, loud + bool(told)
        print(f"{name}: {len(told)} ({time.process_time() - start:.1f} s)", flush=True)
        for f in told:
            print(f"  {f.severity.value} {f.code} {f.place}: {f.message}", flush=True)
        for code, reason in result.skipped.items():
            if reason.startswith("failed"):
                print(f"  {code} {reason}", flush=True)
    print(f"{count} networks, warnings on {loud}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
