"""``normscope extremal``: networks that attain or break the bounds, with exploding and vanishing gradients."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscope.cli.console import guarded, show
from normscope.cli.specification import checked_folder, writing

if TYPE_CHECKING:
    from normscope.core.value import Value

_WIDTHS = "Width of every layer, or n_0,n_1,... (input first), which also gives the depth."
#: Most layers for each of which a network is built, and most layers of all these networks together.
SAMPLED, BUILT = 24, 20_000


@dataclass(frozen=True)
class Request:
    """What a user asks for.

    Attributes:
        widths: ``n_0, ..., n_K``.
        scale: ``a``, of every layer.
        layer: ``i``, from one.
        point: the input, or none for the first unit vector.
        eps: of LayerNorm.
        activation: between LayerNorms.
    """

    widths: tuple[int, ...]
    scale: float
    layer: int
    point: tuple[float, ...] | None
    eps: float
    activation: str


@dataclass(frozen=True)
class Shown:
    """What a construction shows.

    Attributes:
        title: what it is.
        values: numbers by their names.
        series: lines of a chart by their names, ``(layer, log10)``.
        x_label: what the chart is over.
        y_label: what its numbers are.
        notes: what a reader must know.
    """

    title: str
    values: dict[str, Value]
    series: dict[str, list[tuple[float, float]]]
    x_label: str = "layer"
    y_label: str = "log10 of the gradient"
    notes: tuple[str, ...] = field(default=())


@guarded
def extremal(
    construction: Annotated[str, typer.Argument(help="theorem-6, theorem-13, theorem-15 or layernorm.")],
    depth: Annotated[int, typer.Option(min=1, help="Layers.")] = 20,
    width: Annotated[str, typer.Option(help=_WIDTHS)] = "8",
    scale: Annotated[float, typer.Option(help="Norm of every weight; its inverse is shown beside it.")] = 2.0,
    layer: Annotated[int, typer.Option(min=1, help="The layer whose weight is looked at, from one.")] = 1,
    input: Annotated[str | None, typer.Option("--input", help="The input, e.g. 0,0,1; else 1,0,0,...")] = None,
    eps: Annotated[float, typer.Option(help="eps of LayerNorm.")] = 1e-5,
    activation: Annotated[str, typer.Option(help="Between LayerNorms: relu or identity.")] = "relu",
    plot: Annotated[Path | None, typer.Option(help="Write the chart to this .svg file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Build a network with a prescribed constant and show it: gradients that explode or vanish, layer by layer.

    theorem-6 has the constant a^K in its input; theorem-13 prescribed constants in the weight of a layer; theorem-15 a
    prescribed gradient of the training loss; layernorm a constant near eps^(-K/2) where it would be one without it.
    The same networks are functions of normscope.extremal, to test any tool with.
    """
    build = _CONSTRUCTIONS.get(construction)
    if build is None:
        raise typer.BadParameter(
            f"known constructions are {', '.join(_CONSTRUCTIONS)}; got {construction!r}", param_hint="CONSTRUCTION"
        )
    target = None if plot is None else _checked_plot(plot)
    request = Request(_widths(width, depth), scale, layer, _numbers(input), eps, activation)
    shown = build(request)
    written = None
    if target is not None:
        from normscope.cli.line_chart import svg_chart
        from normscope.core.files import write_text

        with writing(target, "--plot"):
            written = write_text(target, svg_chart(shown.title, shown.x_label, shown.y_label, shown.series))
    if json:
        print(json_module.dumps(_document(construction, request, shown), indent=1, allow_nan=False))
        return
    show(_sections(shown))
    if written is not None:
        print(f"\nwritten: {written}")


def _theorem_6(request: Request) -> Shown:
    """Return the network of Theorem 6, its constant and gradients, for the scale and for its inverse."""
    from normscope.core.value import Kind, Value
    from normscope.extremal import gradients, scaled_output, theorem_6

    values: dict[str, Value] = {}
    series = {}
    for name, a in _both(request.scale).items():
        net = theorem_6(request.widths, a)
        values[f"constant, {name}"] = net.constant
        log = scaled_output(net.module, net.point).log  # type: ignore[arg-type]
        measured = Value(log, Kind.ESTIMATE, "the first unit vector", statement="normscope Proposition EXT-1")
        values[f"attained when run, {name}"] = measured
        layers = gradients(request.widths, a)
        series[f"passed back, {name}"] = [(float(g.layer), g.total_input.log10) for g in layers]
    title = f"Theorem 6: W = a I, ReLU, {len(request.widths) - 1} layers"
    notes = (
        "gradients of the weights are products of what is passed back and the signal: of one order for all layers",
    )
    return Shown(title, values, series, y_label="log10 of the gradient passed back", notes=notes)


def _theorem_13(request: Request) -> Shown:
    """Return the constants of Theorem 13 in the weight of a layer, printed and true, and those of every layer."""
    import torch

    from normscope.core.errors import InputError
    from normscope.extremal import theorem_13

    x = None if request.point is None else torch.tensor(request.point, dtype=torch.float64)
    net = theorem_13(request.widths, request.scale, request.layer, x)
    values = {"constant in the weight": net.constant, "attained": net.attained}
    if net.printed is not None:
        values["printed, equation (8)"] = net.printed
    series: dict[str, list[tuple[float, float]]] = {}
    for i in _sampled(len(request.widths) - 1):
        try:
            here = theorem_13(request.widths, request.scale, i, x)
        except InputError:  # nothing of the input reaches this layer: there is no constant to show
            continue
        series.setdefault("constant", []).append((float(i), here.constant.log10))
        if here.printed is not None:
            series.setdefault("printed", []).append((float(i), here.printed.log10))
    title = f"Theorem 13: constant in the weight of layer {request.layer} of {len(request.widths) - 1}"
    return Shown(title, values, series, y_label="log10 of the constant in the weight")


def _theorem_15(request: Request) -> Shown:
    """Return gradients of a logistic training loss at every layer, prescribed, for the scale and its inverse."""
    import torch

    from normscope.core.value import Kind, Value
    from normscope.extremal import theorem_15

    source = torch.Generator().manual_seed(0)
    inputs = torch.rand(8, request.widths[0], generator=source, dtype=torch.float64) + 0.5
    targets = torch.ones(8, dtype=torch.float64)
    values: dict[str, Value] = {}
    series: dict[str, list[tuple[float, float]]] = {}
    depth = len(request.widths) - 1
    for name, a in _both(request.scale).items():
        for i in sorted({request.layer, *_sampled(depth)}):
            # Scales before the layer are one: what grows is the gradient passed back alone.
            scales = [1.0] * (i - 1) + [a] * (depth - i + 1)
            weight = torch.eye(request.widths[i], request.widths[i - 1], dtype=torch.float64)
            net = theorem_15(request.widths, scales, weight, inputs, targets, _logistic, layer=i)
            size = Value(
                net.log_norm, Kind.ESTIMATE, "eight inputs, all misclassified", statement="than2025 Theorem 15"
            )
            series.setdefault(f"gradient, {name}", []).append((float(i), size.log10))
            if i == request.layer:
                values[f"gradient at layer {i}, {name}"] = size
                values[f"its factor c a^(K-i), {name}"] = net.factor
    title = f"Theorem 15: gradient of a training loss, {depth} layers"
    notes = ("the loss is logistic and all inputs are misclassified, so that its slope stays near one",)
    return Shown(title, values, series, y_label="log10 of the gradient of the weight", notes=notes)


def _logistic(prediction: Any, target: Any) -> Any:
    """Return ``log(1 + exp(y u))``: every positive output is wrong."""
    from torch.nn.functional import softplus

    return softplus(target * prediction)


def _layer_norm(request: Request) -> Shown:
    """Return the constants of a network of LayerNorms over its depth."""
    from normscope.extremal import layer_norm_blow_up

    width, depth = request.widths[0], len(request.widths) - 1
    if len(set(request.widths)) > 1:
        raise typer.BadParameter(f"layernorm has one width; got {request.widths}", param_hint="--width")
    net = layer_norm_blow_up(width, depth, request.eps, request.activation)
    series: dict[str, list[tuple[float, float]]] = {"at least": [], "at most": [], "without LayerNorm": []}
    for k in _sampled(depth):
        here = layer_norm_blow_up(width, k, request.eps, request.activation)
        series["at least"].append((float(k), here.attained.log10))
        series["at most"].append((float(k), here.constant.log10))
        series["without LayerNorm"].append((float(k), 0.0))
    title = f"Corollary 11: identity weights, LayerNorm, {request.activation}, {depth} layers, eps {request.eps:g}"
    values = {"constant, at least": net.attained, "constant, at most": net.constant}
    notes = ("without LayerNorm the same weights have the constant 1",)
    return Shown(title, values, series, "layers", "log10 of the Lipschitz constant", notes)


_CONSTRUCTIONS: dict[str, Callable[[Request], Shown]] = {
    "theorem-6": _theorem_6,
    "theorem-13": _theorem_13,
    "theorem-15": _theorem_15,
    "layernorm": _layer_norm,
}


def _both(scale: float) -> dict[str, float]:
    """Return a scale and its inverse, by name.

    Raises:
        typer.BadParameter: if it has none.
    """
    if not 1e-150 < scale < 1e150:
        raise typer.BadParameter(f"a scale is a positive number; got {scale}", param_hint="--scale")
    return {f"a = {scale:g}": scale, f"a = {1 / scale:g}": 1 / scale} if scale != 1 else {"a = 1": 1.0}


def _sampled(depth: int) -> list[int]:
    """Return layers evenly from the first to the last, not too many."""
    most = max(4, min(SAMPLED, BUILT // depth))
    if depth <= most:
        return list(range(1, depth + 1))
    return sorted({1 + round(j * (depth - 1) / (most - 1)) for j in range(most)})


def _widths(text: str, depth: int) -> tuple[int, ...]:
    """Return the widths: one for all, or all of them."""
    try:
        given = tuple(int(part) for part in text.split(","))
    except ValueError:
        given = ()
    if not given or min(given) < 1:
        raise typer.BadParameter(
            f"widths are positive whole numbers; got {text!r}; write e.g. 16 or 3,4,5", param_hint="--width"
        )
    return given * (depth + 1) if len(given) == 1 else given


def _numbers(text: str | None) -> tuple[float, ...] | None:
    """Return numbers separated by commas."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"an input is numbers separated by commas; got {text!r}", param_hint="--input"
        ) from None


def _checked_plot(path: Path) -> Path:
    """Return where to write a picture."""
    if path.suffix.lower() != ".svg":
        raise typer.BadParameter(f"a chart is written as .svg; got {path.name!r}", param_hint="--plot")
    checked_folder(path.parent)
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder; name a file", param_hint="--plot")
    return path


def _sections(shown: Shown) -> Any:
    """Return the report of a construction."""
    from normscope.cli.line_chart import blocks_for, sparkline
    from normscope.report.numbers import digits, kind_text, log10_text, number_text, value_text
    from normscope.report.table import Section, Table

    rows = tuple((k, value_text(v), log10_text(v), kind_text(v), v.statement) for k, v in shown.values.items())
    columns = ("number", "value", "log10", "kind", "statement")
    numbers = Section(shown.title, table=Table(columns, rows, frozenset(("number", "kind", "statement"))))
    lines = []
    for name, points in shown.series.items():
        first, last = points[0], points[-1]
        ends = f"{number_text(first[1])} at {digits(first[0])} .. {number_text(last[1])} at {digits(last[0])}"
        drawn = sparkline([y for _, y in points], blocks=blocks_for(sys.stdout.encoding))
        lines += [f"{name}: {ends}", f"  {drawn}"]
    return [numbers, Section(f"{shown.y_label}, by {shown.x_label}", tuple(lines), after=shown.notes)]


def _document(construction: str, request: Request, shown: Shown) -> dict[str, Any]:
    """Return the JSON form."""
    from normscope.core.value import json_number

    return {
        "schema_version": 1,
        "kind": "extremal",
        "construction": construction,
        "settings": {
            "widths": list(request.widths) if len(set(request.widths)) > 1 else request.widths[0],
            "depth": len(request.widths) - 1,
            "scale": request.scale,
            "layer": request.layer,
            "eps": request.eps,
            "activation": request.activation,
        },
        "values": {name: value.to_dict() for name, value in shown.values.items()},
        "series": {
            name: {"x": [x for x, _ in points], "log10": [json_number(y) for _, y in points]}
            for name, points in shown.series.items()
        },
        "notes": list(shown.notes),
    }
