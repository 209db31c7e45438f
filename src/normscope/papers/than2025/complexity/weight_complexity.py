"""Iteration counts for every weight of any network, from constants certified on its real graph."""

from __future__ import annotations

from dataclasses import dataclass, replace

from normscope.core.errors import InputError
from normscope.core.statement import statement
from normscope.core.value import Value, product
from normscope.lipschitz.weights.result import WeightResult, WeightRow
from normscope.papers.than2025.complexity.convex import convex_upper
from normscope.papers.than2025.complexity.layers import FROZEN, Setting
from normscope.papers.than2025.complexity.nonconvex import goldstein


@dataclass(frozen=True)
class WeightComplexity:
    """Counts for one weight.

    Attributes:
        name: the parameter.
        lipschitz: the constant of the loss in it.
        goldstein: order of what suffices for a Goldstein point.
        convex: what suffices if the loss is convex in it.
    """

    name: str
    lipschitz: Value
    goldstein: Value
    convex: Value


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
        assumed = (FROZEN,) if result.model.get("mode") != "batch" else ()
        constant = replace(
            constant,
            statement="normscope Proposition OPT-7",
            assumptions=tuple(dict.fromkeys((*constant.assumptions, *assumed))),
        )
        rows.append(
            WeightComplexity(
                row.name,
                constant,
                goldstein(constant, setting.gap, setting.delta, setting.alpha),
                convex_upper(constant, setting.radius, setting.alpha),
            )
        )
    return tuple(rows)


def _constant(row: WeightRow, setting: Setting) -> Value:
    """Return the least certified ``||h, W||``, from data or from the bound on what reaches the layer."""
    if row.best is not None:
        return row.best
    output = min(row.outputs.values(), key=lambda v: v.log)
    signal = Value.of(setting.signal, output.kind)
    return replace(product((output, signal)), domain=f"what reaches the layer is at most {setting.signal:g} long")
