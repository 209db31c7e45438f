"""``normscope complexity``: iteration counts that follow from the constants of a network, printed and as they hold."""

from __future__ import annotations

import contextlib
import json as json_module
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscope.cli.analyze import Request, measured, run
from normscope.cli.console import Stages, guarded, show
from normscope.cli.options import DataRoot, InputShape, Limit
from normscope.cli.specification import parse_shape

if TYPE_CHECKING:
    from normscope.complexity import LayerComplexity, Setting, WeightComplexity
    from normscope.core.result import Result
    from normscope.core.value import Value
    from normscope.lipschitz.weights.result import WeightResult

NO_CHAIN = (
    "NOT a plain chain: its proved constant exceeds the product of its layers, so the chain's numbers are not about it"
)
_MODEL = "A result.json of analyze, or a model as analyze takes it, e.g. 'zoo:relu10[norm=bn]'."


@guarded
def complexity(
    model: Annotated[str, typer.Argument(help=_MODEL, show_default=False)],
    alpha: Annotated[float, typer.Option(help="Accuracy: length of a gradient, or distance from a minimum.")] = 0.1,
    delta: Annotated[float, typer.Option(help="Radius of Goldstein's stationarity.")] = 0.1,
    gap: Annotated[float, typer.Option(help="How far the start is above the infimum of the loss.")] = 1.0,
    radius: Annotated[float, typer.Option(help="Distance of the start from a minimizer, if convex.")] = 1.0,
    signal: Annotated[float, typer.Option(help="Bound on the norm of what reaches a layer.")] = 1.0,
    loss: Annotated[str, typer.Option(help="Name of the loss, e.g. cross-entropy or l1.")] = "cross-entropy",
    data: Annotated[str | None, typer.Option(help="Data for a model, as analyze takes it.")] = None,
    data_root: DataRoot = None,
    limit: Limit = None,
    input: InputShape = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show how many iterations each layer of MODEL is said to need, with and without its normalizers.

    Corollaries 18 and 19 as printed, and what the theorems they cite really say: once of the network as a plain chain,
    normalizer k after layer k, as the corollaries have it, and for a model once of its real graph.
    """
    from normscope.complexity import Setting, of_result, of_weights
    from normscope.lipschitz.loss import loss_constant

    setting = Setting(alpha, delta, gap, radius, signal)
    loss_constant(loss, 1)  # a name that is none is said before any work
    found: WeightResult | None = None
    if Path(model).suffix == ".json":
        result = _read(Path(model))
    else:
        result, found = _analyzed(model, data, data_root, limit, parse_shape(input), quiet=json)
    outputs = result.layers[-1].shape[0] if result.layers else 1
    constant = loss_constant(loss, outputs)
    rows = of_result(result, constant, setting)
    weights = () if found is None else of_weights(found, constant, setting)
    if json:
        print(json_module.dumps(_document(result, loss, constant, setting, rows, weights), indent=1, allow_nan=False))
        return
    show([*_sections(result, loss, constant, setting, rows), *_graph_sections(result, weights)])


def _read(path: Path) -> Result:
    """Return the result of a model that was written before.

    Raises:
        InputError: if the file is none.
    """
    from normscope.comparison.stored import read_result
    from normscope.core.errors import InputError
    from normscope.core.result import Result

    found = read_result(path)
    if not isinstance(found, Result):
        raise InputError(f"iteration counts are about a model; {path} is of a checkpoint; give the result of a model")
    return found


def _analyzed(
    model: str, data: str | None, root: Path | None, limit: int | None, shape: tuple[int, ...] | None, *, quiet: bool
) -> tuple[Result, WeightResult]:
    """Return the results of quick analyses, in the input and in the weights: constants, no search for bad inputs."""
    from normscope.analysis.weights import weight_lipschitz
    from normscope.core.errors import InputError
    from normscope.core.result import Result

    options = {"points": 1, "ascent": 0, "seed": 0, "stacked": False, "without_normalizers": False}
    request = Request(model, None, data, root, "test", limit, None, shape, None, options)
    with contextlib.redirect_stdout(sys.stderr), Stages(quiet=quiet) as stages:
        result, _ = run(request, stages)
        if not isinstance(result, Result):
            raise InputError(
                f"iteration counts need a network, not weights alone; {model} is a checkpoint: name the model"
            )
        return result, measured(request, stages, weight_lipschitz)


def _sections(result: Result, loss: str, constant: Value, setting: Setting, rows: tuple[LayerComplexity, ...]) -> Any:
    """Return the report."""
    from normscope.complexity import seen_as_chain
    from normscope.report.numbers import value_text
    from normscope.report.table import Section, Table, shortened

    head = Section(
        f"iterations for each weight of {result.model.get('name', 'the network')}",
        (
            f"loss {loss}, constant {value_text(constant)}; alpha {setting.alpha:g}, delta {setting.delta:g}, "
            f"gap {setting.gap:g}, radius {setting.radius:g}, signal {setting.signal:g}",
            "printed: Corollary 18 (needed) and 19 (suffices) of than2025; neither is a bound",
            "L: constant of the loss in the weight; Goldstein: order of what suffices, L^2 gap/(delta alpha^3)",
            "convex: what suffices if the loss were convex in the weight",
        ),
    )
    if not seen_as_chain(result):
        head = replace(head, lines=(*head.lines, NO_CHAIN))
    columns = ("layer", "printed 18", "printed 19", "L", "Goldstein", "convex")
    sections = [head]
    for title, normalized in (("without normalizers", False), ("with normalizers", True)):
        cells = []
        for row in rows:
            counts = row.normalized if normalized else row.without
            if counts is None:
                continue
            needed = value_text(None if normalized else row.corollary_18)
            numbers = (counts.corollary_19, counts.lipschitz, counts.goldstein, counts.convex)
            cells.append((row.name, needed, *map(value_text, numbers)))
        table, said = shortened(Table(columns, tuple(cells), frozenset(("layer",))), result.blocks, everything=False)
        sections.append(Section(title, table=table if cells else None, after=said if cells else ("there are none",)))
    assumed = dict.fromkeys(a for row in rows for c in (row.without, row.normalized) if c for a in _assumed(c))
    return [*sections, Section("assumed", tuple(assumed))]


def _graph_sections(result: Result, weights: Sequence[WeightComplexity]) -> list[Any]:
    """Return the counts on the real graph, where it was looked at."""
    from normscope.report.numbers import kind_text, value_text
    from normscope.report.table import Section, Table, shortened

    if not weights:
        return []
    columns = ("weight", "L", "Goldstein", "convex", "kind of L", "domain")
    cells = tuple(
        (w.name, *map(value_text, (w.lipschitz, w.goldstein, w.convex)), kind_text(w.lipschitz), w.lipschitz.domain)
        for w in weights
    )
    table, said = shortened(
        Table(columns, cells, frozenset(("weight", "kind of L", "domain"))), result.blocks, everything=False
    )
    return [Section("on the real graph, with its normalizers", table=table, after=said)]


def _assumed(counts: Any) -> tuple[str, ...]:
    """Return what the numbers of one layer assume."""
    return tuple(a for f in fields(counts) for a in getattr(counts, f.name).assumptions)


def _document(
    result: Result,
    loss: str,
    constant: Value,
    setting: Setting,
    rows: tuple[LayerComplexity, ...],
    weights: Sequence[WeightComplexity],
) -> dict[str, Any]:
    """Return the JSON form."""
    from normscope.complexity import seen_as_chain

    def counts(found: Any) -> dict[str, Any] | None:
        return None if found is None else {f.name: getattr(found, f.name).to_dict() for f in fields(found)}

    return {
        "schema_version": 1,
        "kind": "complexity",
        "model": result.model.get("name"),
        "plain_chain": seen_as_chain(result),
        "loss": {"name": loss, "constant": constant.to_dict()},
        "setting": {f.name: getattr(setting, f.name) for f in fields(setting)},
        "layers": [
            {
                "name": row.name,
                "corollary_18": row.corollary_18.to_dict(),
                "without_normalizers": counts(row.without),
                "with_normalizers": counts(row.normalized),
            }
            for row in rows
        ],
        "weights": [
            {"name": w.name} | {key: getattr(w, key).to_dict() for key in ("lipschitz", "goldstein", "convex")}
            for w in weights
        ],
    }
