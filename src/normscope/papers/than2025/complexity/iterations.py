"""How many iterations a network needs by the papers' corollaries, with and without its normalizers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from normscope.analysis import analyze
from normscope.analysis.weight_lipschitz import weight_lipschitz
from normscope.core.display import Shown
from normscope.core.errors import InputError
from normscope.core.result import Result
from normscope.core.statement import statement
from normscope.core.value import Value, product
from normscope.lipschitz.loss import loss_constant
from normscope.lipschitz.weights.result import WeightResult, WeightRow
from normscope.papers.than2025.complexity.layers import FROZEN, LayerComplexity, Setting, of_result

#: A quick analysis: constants, no search for bad inputs.
QUICK: dict[str, Any] = {"points": 1, "ascent": 0, "seed": 0, "stacked": False, "without_normalizers": False}


@dataclass(frozen=True, repr=False)
class Iterations(Shown):
    """Everything that is said about the iterations a network needs."""

    _layout = ("normscope.report.complexity", "complexity_sections")
    _rows = "layers"

    result: Result  #: what ``analyze`` found
    loss: str  #: name of the loss
    constant: Value  #: of the loss, in the outputs
    setting: Setting  #: what counts depend on besides the network
    layers: Sequence[LayerComplexity]  #: counts of the network taken as a chain
    weights: Sequence[WeightComplexity] = ()  #: counts on its real graph; none where only a result was read


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
    >>> len(found.layers), [weight.name for weight in found.weights]
    (1, ['weight', 'bias'])
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


@dataclass(frozen=True)
class WeightComplexity:
    """Counts for one weight."""

    name: str  #: the parameter
    lipschitz: Value  #: the constant of the loss in it
    goldstein: Value  #: order of what suffices for a Goldstein point
    convex: Value  #: what suffices if the loss is convex in it


@statement("normscope", "Proposition OPT-7", holds="the certified constants of the weights, on their domain")
def of_weights(result: WeightResult, loss: Value, setting: Setting) -> tuple[WeightComplexity, ...]:
    """Return iteration counts for every weight, skips, attention and shared weights included.

    The loss is ``l ||h, W||``-Lipschitz in a weight, with ``||h, W||`` over the data where there were data, and
    ``||h, y|| A`` with ``A`` the bound on what reaches the layer where there were none.

    Args:
        result: what ``weight_lipschitz`` found.
        loss: ``l``, as :func:`normscope.lipschitz.loss.loss_constant` returns it.
        setting: accuracies, and ``A``.

    Raises:
        InputError: if the network has no weight.

    >>> import torch, normscope
    >>> from normscope.core.value import Kind
    >>> layer = torch.nn.Linear(2, 2, bias=False)
    >>> found = normscope.weight_lipschitz(layer, torch.tensor([[3.0, 4.0]]))
    >>> [round(w.lipschitz.value, 6) for w in of_weights(found, Value.of(2.0, Kind.CERTIFIED), Setting())]
    [10.0]
    """
    if not result.weights:
        raise InputError("Expected at least one weight that acts on the input.")
    rows = []
    for row in result.weights:
        constant = product((loss, _constant(row, setting)))
        assumed = (*constant.assumptions, *((FROZEN,) if result.model.get("mode") != "batch" else ()))
        label = "normscope Proposition OPT-7"
        constant = replace(constant, statement=label, assumptions=tuple(dict.fromkeys(assumed)))
        rows.append(WeightComplexity(row.name, constant, *setting.counts(constant)))
    return tuple(rows)


def _constant(row: WeightRow, setting: Setting) -> Value:
    """Return the least certified ``||h, W||``, from data or from the bound on what reaches the layer."""
    if row.best is not None:
        return row.best
    output = min(row.outputs.values(), key=lambda v: v.log)
    signal = Value.of(setting.signal, output.kind)
    return replace(product((output, signal)), domain=f"what reaches the layer is at most {setting.signal:g} long")
