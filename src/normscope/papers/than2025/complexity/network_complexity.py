"""Iteration counts of a network by the corollaries of the paper, with and without its normalizers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from operator import mul
from typing import Any

from normscope.analysis import analyze
from normscope.analysis.weight_lipschitz import weight_lipschitz
from normscope.core.display import Shown
from normscope.core.errors import InputError
from normscope.core.files import Saved
from normscope.core.json_form import SCHEMA_VERSION, fields_of
from normscope.core.result import Result
from normscope.core.statement import statement
from normscope.core.value import Kind, Value, product
from normscope.lipschitz.loss import loss_constant
from normscope.lipschitz.weights.result import WeightResult, WeightRow
from normscope.papers.than2025.complexity.corollaries_18_and_19 import (
    convex_upper,
    corollary_18,
    corollary_19,
    goldstein,
    positive,
)

CHAIN = "a plain chain of layers with 1-Lipschitz activations, normalizer k after layer k"
FROZEN = "statistics of BatchNorm do not move with the weights"
#: By how much a composed bound may exceed a product, as a logarithm, for rounding alone.
_SLACK = 1e-6


@dataclass(frozen=True)
class Setting:
    """What iteration counts depend on, besides the network."""

    alpha: float = 0.1  #: accuracy: length of a gradient, or distance from the minimum where the loss is convex
    delta: float = 0.1  #: radius of Goldstein's stationarity
    gap: float = 1.0  #: how far the start is above the infimum of the loss
    radius: float = 1.0  #: distance of the start from a minimizer, for convex losses
    #: bound on the norm of what reaches a layer, ``||h_{i-1}(x)||``; for convolutions, of all its windows
    signal: float = 1.0

    def __post_init__(self) -> None:
        for name in ("alpha", "delta", "gap", "radius", "signal"):
            positive(getattr(self, name), name)

    def counts(self, constant: Value) -> tuple[Value, Value]:
        """Return what suffices for a Goldstein point, and if the loss is convex, from a constant of the loss."""
        return goldstein(constant, self.gap, self.delta, self.alpha), convex_upper(constant, self.radius, self.alpha)


@dataclass(frozen=True)
class ChainLayer:
    """The facts about one layer that iteration counts depend on."""

    name: str  #: what it is called
    norm: Value  #: norm of its weight
    normalizer: Value | None = None  #: constant of the normalizer after it, on some domain; none without one
    printed_normalizer: Value | None = None  #: what the paper prints for that
    folded: Value | None = None  #: norm of the weight and the fixed normalizer together, where it is known


@dataclass(frozen=True)
class Counts:
    """Iterations for the weight of one layer of one network."""

    lipschitz: Value  #: the constant of the loss in that weight
    corollary_19: Value  #: what is printed to suffice
    goldstein: Value  #: order of what suffices for a Goldstein point
    convex: Value  #: what suffices if the loss is convex in it


@dataclass(frozen=True)
class LayerComplexity:
    """Counts for the weight of one layer."""

    name: str  #: the layer
    corollary_18: Value  #: what is printed to be needed without normalizers
    without: Counts  #: counts without normalizers
    normalized: Counts | None  #: counts with them; none where there are none from this layer on


@statement("normscope", "Proposition OPT-6", holds="plain chain, 1-Lipschitz activations, statistics that do not move")
def layer_complexities(layers: Sequence[ChainLayer], loss: Value, setting: Setting) -> tuple[LayerComplexity, ...]:
    """Return iteration counts for the weight of every layer.

    The loss is ``L_i``-Lipschitz in ``W_i`` with ``L_i = l A s_{i+1} ... s_K`` without normalizers, and with them times
    their constants from layer ``i`` on; ``l`` is the constant of the loss in the outputs and ``A`` bounds what reaches
    the layer. Where a normalizer is folded into its layer, the folded norm takes the place of the product.

    Args:
        layers: in order.
        loss: ``l``, as :func:`normscope.lipschitz.loss.loss_constant` returns it.
        setting: accuracies, and ``A``.

    Raises:
        InputError: if there is no layer.

    >>> two = [ChainLayer("a", Value.of(2.0, Kind.CERTIFIED)), ChainLayer("b", Value.of(3.0, Kind.CERTIFIED))]
    >>> rows = layer_complexities(two, Value.of(1.0, Kind.CERTIFIED), Setting())
    >>> [round(r.without.lipschitz.value, 9) for r in rows]
    [3.0, 1.0]
    """
    if not layers:
        raise InputError("Expected at least one layer with a weight.")
    base = replace(product((loss, Value.of(setting.signal, loss.kind))), statement="normscope Proposition OPT-6")
    plain = _after([x.norm for x in layers])
    folded = _after([_normalized(x) for x in layers])
    printed = [x.printed_normalizer for x in layers if x.printed_normalizer is not None]
    inverse_std = max(printed, key=lambda v: v.log) if printed else None
    rows = []
    for i, x in enumerate(layers):
        later = [y for y in layers[i:] if y.normalizer is not None]
        after = [y.norm for y in layers[i + 1 :]]
        without = _counts(base * plain[i], corollary_19(after, setting.alpha), setting, (CHAIN,))
        normalized = None
        if later:
            own = [] if x.normalizer is None else [x.normalizer]
            total = product((base, folded[i], *own))
            rate = corollary_19(after, setting.alpha, inverse_std, len(later))
            normalized = _counts(total, rate, setting, (CHAIN, FROZEN))
        rows.append(LayerComplexity(x.name, corollary_18(after, setting.alpha), without, normalized))
    return tuple(rows)


def of_result(result: Result, loss: Value, setting: Setting) -> tuple[LayerComplexity, ...]:
    """Return the counts for every layer of an analyzed network, taken as a chain.

    Normalizer ``k`` is taken to follow layer ``k``. Its constant is the one where the spread of its input stays above
    the floor seen in the data, if there was data, and the one on all inputs otherwise.

    Args:
        result: what ``analyze`` found.
        loss: the constant of the loss in the outputs.
        setting: accuracies, and what reaches a layer.

    Raises:
        InputError: if the network has no layer with a weight.
    """
    return layer_complexities(_paired(result), loss, setting)


def seen_as_chain(result: Result) -> bool:
    """Return whether the composed constant of a network is at most the product over its layers, as in a chain.

    Skip connections, attention, or activations steeper than one make it more, and then counts by layer say nothing.
    """
    proved = result.end_to_end.get("global_composition") or result.end_to_end.get("global")
    whole = product(_normalized(x) for x in _paired(result, floor=False))
    return proved is not None and proved.log <= whole.log + _SLACK


def _paired(result: Result, *, floor: bool = True) -> list[ChainLayer]:
    """Return the layers of a network, each with the normalizer of its number."""
    layers = []
    for i, found in enumerate(result.layers):
        normalizer = result.normalizers[i] if i < len(result.normalizers) else None
        constant = None if normalizer is None else (normalizer.on_floor if floor else None) or normalizer.proved
        printed = None if normalizer is None else normalizer.printed
        folded = found.folded if normalizer is not None else None
        layers.append(ChainLayer(found.name, found.upper, constant, printed, folded))
    return layers


def _normalized(layer: ChainLayer) -> Value:
    """Return the constant of a layer together with its normalizer."""
    if layer.normalizer is None:
        return layer.norm
    return layer.folded if layer.folded is not None else layer.norm * layer.normalizer


def _after(norms: Sequence[Value]) -> list[Value]:
    # for each, the product of those after it
    return list(accumulate(reversed(norms[1:]), mul, initial=Value(0.0, Kind.CERTIFIED)))[::-1]


def _counts(lipschitz: Value, rate: Value, setting: Setting, assumed: tuple[str, ...]) -> Counts:
    """Return the counts that follow from a constant, which holds for chains only and so is called an estimate."""
    assumptions = tuple(dict.fromkeys((*lipschitz.assumptions, *assumed)))
    domain = f"what reaches the layer is at most {setting.signal:g} long"
    label = "normscope Proposition OPT-6"
    constant = Value(lipschitz.log, Kind.ESTIMATE, domain, lipschitz.mode, label, assumptions)
    return Counts(constant, rate, *setting.counts(constant))


#: A quick analysis: constants, no search for bad inputs.
QUICK: dict[str, Any] = {"points": 1, "ascent": 0, "seed": 0, "stacked": False, "without_normalizers": False}


@dataclass(frozen=True, repr=False)
class Iterations(Shown, Saved):
    """Iteration counts of a network: of the chain of its layers, and of its real graph."""

    _kind = "complexity"
    _layout = ("normscope.report.complexity", "complexity_sections")
    _rows = "layers"

    result: Result  #: what ``analyze`` found
    loss: str  #: name of the loss
    constant: Value  #: of the loss, in the outputs
    setting: Setting  #: what counts depend on besides the network
    layers: Sequence[LayerComplexity]  #: counts of the network taken as a chain
    weights: Sequence[WeightComplexity] = ()  #: counts on its real graph; none where only a result was read

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: the counts, with the name of the network in place of its analysis."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self._kind,
            "model": self.result.model.get("name"),
            "plain_chain": seen_as_chain(self.result),
            "loss": {"name": self.loss, "constant": self.constant.to_dict()},
            "setting": asdict(self.setting),
            "layers": [
                {
                    "name": row.name,
                    "corollary_18": row.corollary_18.to_dict(),
                    "without_normalizers": fields_of(row.without),
                    "with_normalizers": None if row.normalized is None else fields_of(row.normalized),
                }
                for row in self.layers
            ],
            "weights": [fields_of(weight) for weight in self.weights],
        }


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
