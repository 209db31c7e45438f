"""How many iterations a network is said to need, with and without its normalizers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from normscope.analysis import analyze
from normscope.analysis.weight_lipschitz import weight_lipschitz
from normscope.core.errors import InputError
from normscope.core.result import Result
from normscope.core.value import Value
from normscope.lipschitz.loss import loss_constant
from normscope.lipschitz.weights.result import WeightResult
from normscope.papers.than2025.complexity.layers import LayerComplexity, Setting, of_result
from normscope.papers.than2025.complexity.weight_complexity import WeightComplexity, of_weights

#: A quick analysis: constants, no search for bad inputs.
QUICK: dict[str, Any] = {"points": 1, "ascent": 0, "seed": 0, "stacked": False, "without_normalizers": False}


@dataclass(frozen=True)
class Iterations:
    """Everything that is said about the iterations a network needs.

    Attributes:
        result: what ``analyze`` found.
        loss: name of the loss.
        constant: of the loss, in the outputs.
        setting: what counts depend on besides the network.
        layers: counts of the network taken as a chain.
        weights: counts on its real graph; none where only a result was read.
    """

    result: Result
    loss: str
    constant: Value
    setting: Setting
    layers: Sequence[LayerComplexity]
    weights: Sequence[WeightComplexity] = ()


def complexity(
    model: Any, data: Any = None, *, loss: str = "cross-entropy", setting: Setting | None = None, **options: Any
) -> Iterations:
    """Return iteration counts of a network, as printed (Corollaries 18 and 19) and as the cited theorems say.

    Args:
        model: a ``torch.nn.Module``, which is analyzed quickly, or a result of ``analyze``.
        data: for a model, as ``analyze`` takes it.
        loss: name of the loss.
        setting: what counts depend on besides the network.
        **options: of ``analyze``.

    Raises:
        RuleError: if the loss is unknown.
        InputError: if data or options are given with a result.

    >>> import torch
    >>> found = complexity(torch.nn.Linear(3, 2), torch.ones(4, 3), loss="l1")
    >>> len(found.layers), len(found.weights)
    (1, 1)
    """
    if not isinstance(model, Result):
        chosen = {**QUICK, **options}
        return iterations_of(analyze(model, data, **chosen), weight_lipschitz(model, data, **chosen), loss, setting)
    if data is not None or options:
        raise InputError("Expected no data or options with a finished result.")
    return iterations_of(model, None, loss, setting)


def iterations_of(result: Result, weights: WeightResult | None, loss: str, setting: Setting | None) -> Iterations:
    """Return the counts that follow from finished analyses, in the input and, if there is one, in the weights."""
    setting = setting or Setting()
    constant = loss_constant(loss, result.layers[-1].shape[0] if result.layers else 1)
    on_graph = () if weights is None else of_weights(weights, constant, setting)
    return Iterations(result, loss, constant, setting, of_result(result, constant, setting), on_graph)
