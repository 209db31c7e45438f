"""An earlier version of the model: its normalizers, its effective weights, and how far its outputs are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.errors import NormscopeError
from normscope.doctor.neighbours import LAYERS
from normscope.graph.capture import Captured, capture
from normscope.graph.guard import untouched
from normscope.graph.inputs import ModelInputs
from normscope.graph.interpreter import run
from normscope.graph.ir import Node, Ref
from normscope.graph.recognise import name_of
from normscope.operators.program import build_program
from normscope.operators.site import Site

#: Relative distance of outputs above which two versions compute different functions.
SAME = 1e-2


@dataclass(frozen=True, eq=False)
class EarlierModel:
    """What is known about the earlier model."""

    problem: str = ""  #: why nothing is known; empty if something is
    sites: tuple[Site, ...] = ()  #: its normalizers
    #: the effective weight of each of its layers, by module path
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    now: Mapping[str, Tensor] = field(default_factory=dict)  #: the same for the current model
    distance: float = 0.0  #: relative distance of its outputs from the current ones

    @property
    def differs(self) -> bool:
        """Return whether the network now computes a different function."""
        return self.distance > SAME


def compare_with_earlier(
    before: nn.Module | None, captured: Captured, example: ModelInputs | None, batch: list[Tensor] | None
) -> EarlierModel:
    """Run an earlier model on the inputs of the current one, and compare outputs on a batch or on the example."""
    if before is None:
        return EarlierModel("none was given")
    if not captured.graph.nodes or example is None:
        return EarlierModel("the model has no graph")
    try:
        with untouched(before):
            old = capture(before, example, elsewhere=False)
            program = build_program(old.graph, old.tensors, old.at_batch(1))
            inputs = captured.example if batch is None else batch
            then, weights = _run(old, inputs)
            now, present = _run(captured, inputs)
    except (NormscopeError, RuntimeError, TypeError, ValueError) as error:
        return EarlierModel(f"it does not run: {' '.join(str(error).split())[:160]}")
    if [t.shape for t in then] != [t.shape for t in now]:
        return EarlierModel("it does not fit: its outputs have other shapes")
    if weights and not any(path in present and present[path].shape == w.shape for path, w in weights.items()):
        return EarlierModel(f"it does not fit: none of its {len(weights)} layers is in this model")
    size = sum(float(t.double().square().sum()) for t in then) ** 0.5
    apart = sum(float((a.double() - b.double()).square().sum()) for a, b in zip(then, now, strict=True)) ** 0.5
    return EarlierModel("", tuple(program.sites), weights, present, apart / size if size else apart)


def _run(captured: Captured, inputs: list[Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Return the outputs, and the effective weight of each layer by module path."""
    weights: dict[str, Tensor] = {}
    moving = captured.graph.moving

    def visit(node: Node, value: Any, values: Mapping[str, Any]) -> None:
        if name_of(node) not in LAYERS or node.owner in weights:
            return
        for other in node.args:
            weight = values.get(other.name) if isinstance(other, Ref) and other.name not in moving else None
            if isinstance(weight, Tensor) and weight.ndim > 1:
                weights[node.owner] = weight.detach()
                return

    with torch.no_grad():
        outputs = run(captured.graph, captured.tensors, inputs, visit)
    return [t for t in outputs if isinstance(t, Tensor) and t.is_floating_point()], weights
