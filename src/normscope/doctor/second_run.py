"""A second run of a few samples: alone instead of in a batch, in a wider or in a narrower precision."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.errors import NormscopeError
from normscope.doctor.infinite_derivative import may_be_singular
from normscope.doctor.precision import Beside
from normscope.doctor.sample_dependence import ALONE, Companions
from normscope.graph.capture import Captured, capture
from normscope.graph.inputs import ModelInputs
from normscope.graph.interpreter import as_floating, run
from normscope.graph.ir import Node

#: Numbers in the weights from which on a wide run must be worth its time.
LARGE = 5_000_000


@dataclass(frozen=True)
class Again:
    """Where samples that are alone give something else, and what the precision lost, as far as could be seen."""

    apart: Companions | None = None
    beside: Beside | None = None


def again(captured: Captured, companions: Companions, batch: list[Tensor] | None) -> Again:
    """Run some samples again: those of ``companions`` alone or, where they cannot be, a batch."""
    apart = companions if companions.size else None
    inputs = companions.alone if companions.size else batch
    if inputs is None:
        return Again()
    # A wide run must be worth its time: a large network of torch's own layers alone loses nothing.
    large = sum(t.numel() for t in captured.tensors.values()) >= LARGE
    wide = Beside(captured.graph)
    beside = wide if not large or wide.short or any(map(may_be_singular, captured.graph)) else None
    visits = ([] if beside is None else [beside.visit]) + ([] if apart is None else [apart.visit_alone])
    return Again(apart, beside) if _runs(captured, inputs, visits) else Again()


def _runs(captured: Captured, inputs: list[Tensor], visits: Sequence[Callable[..., None]]) -> bool:
    """Run a model, calling each of some functions at each node; return whether that was possible."""

    def visit(node: Node, value: Any, values: Mapping[str, Any]) -> None:
        for look in visits:
            look(node, value, values)

    try:
        with torch.no_grad():
            run(captured.graph, captured.tensors, inputs, visit)
    except (RuntimeError, ValueError):  # a batch of one with one value per channel
        return False
    return True


def in_precision(model: nn.Module, captured: Captured, dtype: torch.dtype) -> Captured | None:
    """Return a copy of a model captured in another precision; nothing if it cannot be copied, or not be run so."""
    try:
        inputs = ModelInputs(tuple(as_floating(captured.example, dtype)))
        return capture(copy.deepcopy(model).to(dtype), inputs, elsewhere=False)
    except (NormscopeError, RuntimeError, TypeError, ValueError):
        return None


def precision_run(captured: Captured, inputs: list[Tensor]) -> Beside | None:
    """Return what the precision of a captured model loses on a few samples; nothing if they cannot be run."""
    beside = Beside(captured.graph)
    few = inputs if captured.graph.batch != "dynamic" else [t[:ALONE] if t.ndim else t for t in inputs]
    dtypes = [t.dtype if t.is_floating_point() else None for t in captured.example]
    given = [as_floating(t.detach(), d) for t, d in zip(few, dtypes, strict=True)]
    return beside if _runs(captured, given, [beside.visit]) else None
