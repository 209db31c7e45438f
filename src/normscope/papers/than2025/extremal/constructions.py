"""The extremal constructions of the paper by name: their constants, and how these grow with layers or depth."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from normscope.core import display
from normscope.core.errors import InputError
from normscope.core.files import Saved
from normscope.core.json_form import SCHEMA_VERSION, to_plain
from normscope.core.statement import statement
from normscope.core.value import Kind, Value
from normscope.papers.than2025.extremal.theorem_6_networks import check_layer, layer_norm_blow_up, theorem_6
from normscope.papers.than2025.extremal.theorem_13_networks import gradients, theorem_13
from normscope.papers.than2025.extremal.theorem_15_networks import theorem_15

#: Most layers for each of which a network is built, and most layers of all these networks together.
SAMPLED, BUILT = 24, 20_000
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class ConstructionSettings:
    """Parameters of a construction."""

    widths: tuple[int, ...] = (8,) * 21  #: ``n_0, ..., n_K``
    scale: float = 2.0  #: ``a``, of every layer
    layer: int = 1  #: ``i``, from one
    point: tuple[float, ...] | None = None  #: the input, or none for the first unit vector
    eps: float = 1e-5  #: of LayerNorm
    activation: str = "relu"  #: between LayerNorms

    @property
    def depth(self) -> int:
        """Return ``K``."""
        return len(self.widths) - 1


@dataclass(frozen=True, repr=False)
class ConstructionReport(display.Shown, Saved):
    """The numbers and curves of a construction."""

    _kind = "extremal"
    _layout = ("normscope.report.extremal", "extremal_sections")
    _rows = "values"

    title: str  #: what it is
    values: dict[str, Value]  #: numbers by their names
    series: dict[str, Points]  #: lines of a chart by their names, ``(layer, log10)``
    x_label: str = "layer"  #: what the chart is over
    y_label: str = "log10 of the gradient"  #: what its numbers are
    notes: tuple[str, ...] = field(default=())  #: what a reader must know
    construction: str = ""  #: its name
    settings: ConstructionSettings = field(default_factory=ConstructionSettings)  #: what it was built with

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; one width stands for all that are equal."""
        widths = self.settings.widths
        names = ("depth", "scale", "layer", "eps", "activation")
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self._kind,
            "construction": self.construction,
            "settings": {
                "widths": list(widths) if len(set(widths)) > 1 else widths[0],
                **{name: getattr(self.settings, name) for name in names},
            },
            "values": to_plain(self.values),
            "series": {
                name: {"x": [x for x, _ in points], "log10": to_plain([y for _, y in points])}
                for name, points in self.series.items()
            },
            "notes": list(self.notes),
        }


def _theorem_6(settings: ConstructionSettings) -> ConstructionReport:
    """Return the network of Theorem 6, its constant and gradients, for the scale and for its inverse."""
    values: dict[str, Value] = {}
    series = {}
    for name, a in _both(settings.scale).items():
        net = theorem_6(settings.widths, a)
        values[f"constant, {name}"] = net.constant
        log = scaled_output(net.module, net.point).log  # type: ignore[arg-type]
        # Every layer rounds products, sums and a norm of n entries, and the logarithms of two numbers.
        steps = (settings.depth + 1) * (2 * max(settings.widths) + 20 + 4 * abs(math.log(a)))
        log -= steps * torch.finfo(net.point.dtype).eps
        measured = Value(log, Kind.LOWER, "the first unit vector", statement="normscope Proposition EXT-1")
        values[f"attained when run, {name}"] = measured
        layers = gradients(settings.widths, a)
        series[f"passed back, {name}"] = [(float(g.layer), g.total_input.log10) for g in layers]
    title = f"Theorem 6: W = a I, ReLU, {settings.depth} layers"
    notes = (
        "gradients of the weights are products of what is passed back and the signal: of one order for all layers",
    )
    return ConstructionReport(title, values, series, y_label="log10 of the gradient passed back", notes=notes)


def _theorem_13(settings: ConstructionSettings) -> ConstructionReport:
    """Return the constants of Theorem 13 in the weight of a layer, printed and true, and those of every layer."""
    x = None if settings.point is None else torch.tensor(settings.point, dtype=torch.float64)
    net = theorem_13(settings.widths, settings.scale, settings.layer, x)
    values = {"constant in the weight": net.constant, "attained": net.attained}
    if net.printed is not None:
        values["printed, equation (8)"] = net.printed
    series: dict[str, Points] = {}
    for i in sampled(settings.depth):
        try:
            here = theorem_13(settings.widths, settings.scale, i, x)
        except InputError:  # nothing of the input reaches this layer: there is no constant to show
            continue
        series.setdefault("constant", []).append((float(i), here.constant.log10))
        if here.printed is not None:
            series.setdefault("printed", []).append((float(i), here.printed.log10))
    title = f"Theorem 13: constant in the weight of layer {settings.layer} of {settings.depth}"
    return ConstructionReport(title, values, series, y_label="log10 of the constant in the weight")


def _theorem_15(settings: ConstructionSettings) -> ConstructionReport:
    """Return the prescribed gradients of a logistic training loss at every layer, for the scale and its inverse."""
    source = torch.Generator().manual_seed(0)
    inputs = torch.rand(8, settings.widths[0], generator=source, dtype=torch.float64) + 0.5
    targets = torch.ones(8, dtype=torch.float64)
    logistic = lambda prediction, target: softplus(target * prediction)  # noqa: E731  (every positive output is wrong)
    values: dict[str, Value] = {}
    series: dict[str, Points] = {}
    depth = settings.depth
    check_layer(settings.layer, depth)
    for name, a in _both(settings.scale).items():
        for i in sorted({settings.layer, *sampled(depth)}):
            # Scales before the layer are one, so that only the gradient passed back grows.
            scales = [1.0] * (i - 1) + [a] * (depth - i + 1)
            weight = torch.eye(settings.widths[i], settings.widths[i - 1], dtype=torch.float64)
            net = theorem_15(settings.widths, scales, weight, inputs, targets, logistic, layer=i)
            size = Value(net.log_norm, Kind.ESTIMATE, "eight inputs, all misclassified", None, "than2025 Theorem 15")
            series.setdefault(f"gradient, {name}", []).append((float(i), size.log10))
            if i == settings.layer:
                values[f"gradient at layer {i}, {name}"] = size
                values[f"its factor c a^(K-i), {name}"] = net.factor
    title = f"Theorem 15: gradient of a training loss, {depth} layers"
    notes = ("the loss is logistic and all inputs are misclassified, so that its slope stays near one",)
    return ConstructionReport(title, values, series, y_label="log10 of the gradient of the weight", notes=notes)


def _layer_norm(settings: ConstructionSettings) -> ConstructionReport:
    """Return the constants of a network of LayerNorms over its depth."""
    width, depth = settings.widths[0], settings.depth
    if len(set(settings.widths)) > 1:
        raise InputError(f"Expected the same width for every layer, got {settings.widths}.")
    net = layer_norm_blow_up(width, depth, settings.eps, settings.activation)
    nets = {float(k): layer_norm_blow_up(width, k, settings.eps, settings.activation) for k in sampled(depth)}
    series = {
        "at least": [(k, here.attained.log10) for k, here in nets.items()],
        "at most": [(k, here.constant.log10) for k, here in nets.items()],
        "without LayerNorm": [(k, 0.0) for k in nets],
    }
    title = f"Corollary 11: identity weights, LayerNorm, {settings.activation}, {depth} layers, eps {settings.eps:g}"
    values = {"constant, at least": net.attained, "constant, at most": net.constant}
    notes = ("without LayerNorm the same weights have the constant 1",)
    return ConstructionReport(title, values, series, "layers", "log10 of the Lipschitz constant", notes)


#: The functions that report the constructions, by name.
CONSTRUCTIONS: dict[str, Callable[[ConstructionSettings], ConstructionReport]] = {
    "theorem-6": _theorem_6,
    "theorem-13": _theorem_13,
    "theorem-15": _theorem_15,
    "layernorm": _layer_norm,
}


def extremal(construction: str, settings: ConstructionSettings | None = None) -> ConstructionReport:
    """Build a network with a prescribed constant and return its numbers.

    Args:
        construction: one of :data:`CONSTRUCTIONS`.
        settings: widths, scale, layer, input; by default 20 layers of width 8.

    Raises:
        InputError: if there is no such construction.

    >>> extremal("theorem-6").title
    'Theorem 6: W = a I, ReLU, 20 layers'
    """
    if construction not in CONSTRUCTIONS:
        raise InputError(f"Expected one of {', '.join(CONSTRUCTIONS)}, got {construction!r}.")
    settings = settings or ConstructionSettings()
    return replace(CONSTRUCTIONS[construction](settings), construction=construction, settings=settings)


def _both(scale: float) -> dict[str, float]:
    if not 1e-150 < scale < 1e150:
        raise InputError(f"Expected a scale from 1e-150 to 1e150, got {scale}.")
    return {f"a = {scale:g}": scale, f"a = {1 / scale:g}": 1 / scale} if scale != 1 else {"a = 1": 1.0}


def sampled(depth: int) -> list[int]:
    """Return a limited number of evenly spaced layers, including the first and the last.

    >>> sampled(5)
    [1, 2, 3, 4, 5]
    """
    most = max(4, min(SAMPLED, BUILT // depth))
    if depth <= most:
        return list(range(1, depth + 1))
    return sorted({1 + round(j * (depth - 1) / (most - 1)) for j in range(most)})


#: Maps with ``f(c x) = c f(x)`` for ``c >= 0``.
HOMOGENEOUS = (nn.ReLU, nn.LeakyReLU, nn.Identity, nn.PReLU, nn.Flatten)


class LogScaledVector(NamedTuple):
    """A vector as ``exp(log) * unit``; ``log`` is ``-inf`` for zero."""

    unit: Tensor  #: a vector of norm one, or zero
    log: float  #: natural logarithm of the norm


@statement("normscope", "Proposition EXT-1", holds="layers without bias and positively homogeneous activations")
def scaled_output(network: nn.Sequential, x: Tensor) -> LogScaledVector:
    """Return ``h(x)`` as a unit vector and the logarithm of its norm, however large or small it is.

    Each layer is applied to a unit vector and the norm of what comes out is added as a logarithm. Since ``h`` is
    positively homogeneous, ``||h(x)||/||x||`` is a quotient that it attains.

    Args:
        network: linear layers without bias, and ReLU or its like.
        x: an input, not batched.

    Returns:
        The output; exactly zero if the network is dead there.

    Raises:
        InputError: if a layer is not positively homogeneous.

    >>> from normscope.papers.than2025.extremal.theorem_6_networks import relu_network, scaled_identity
    >>> deep = relu_network([scaled_identity(2, 2, 3.0, torch.float64)] * 3000)
    >>> round(scaled_output(deep, torch.tensor([1.0, 0.0], dtype=torch.float64)).log - 3000 * math.log(3), 9)
    0.0
    """
    wrong = [
        type(m).__name__
        for m in network
        if not (isinstance(m, nn.Linear) and m.bias is None) and not isinstance(m, HOMOGENEOUS)
    ]
    if wrong:
        raise InputError(f"Expected linear layers without bias, or activations such as ReLU, got {wrong[0]}.")
    logs: list[float] = []
    unit = x.detach()
    with torch.no_grad():
        for module in (nn.Identity(), *network):
            unit = module(unit)
            largest = float(unit.abs().max()) if unit.numel() else 0.0
            if largest == 0:
                return LogScaledVector(unit, -math.inf)
            norm = float(torch.linalg.vector_norm(unit / largest))  # divided before, so that squares stay in range
            logs += [math.log(largest), math.log(norm)]
            unit = unit / largest / norm
    return LogScaledVector(unit, math.fsum(logs))
