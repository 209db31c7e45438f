"""``normscope compare``: models, checkpoints or earlier results side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from typer import Argument, BadParameter, Context, Option

from normscope.cli import options
from normscope.cli.analyze import Request, checked_places, write_page
from normscope.cli.analyze import run as analyzed
from normscope.cli.console import Stages, finish, guarded, json_text
from normscope.cli.loading import Named, load
from normscope.cli.output_files import save, write_file
from normscope.core.errors import NormscopeError
from normscope.core.files import user_path
from normscope.core.names import numbered

if TYPE_CHECKING:
    from normscope.analysis.compare import Comparable, Comparison
    from normscope.core.finding import Finding

Asked = TypeVar("Asked", bound=Named)
FILE, ALIGNMENT = "comparison.json", "alignment.json"
#: Options that say how networks are analyzed or shown; with ``--modulo`` none is.
_OF_ANALYSES = ("device", "printed", "no_check", "report", "everything")
_ITEMS = (
    "Two or more of: models as for analyze (FILE.py:factory, zoo:NAME, ...), earlier results "
    "(result.json, or the folder it is in), checkpoints (.safetensors, .pt). The others are compared with "
    "the first."
)


@guarded
def compare(
    context: Context,
    items: Annotated[list[str], Argument(metavar="MODEL", help=_ITEMS, show_default=False)],
    model: Annotated[str | None, Option(help="Model to load the checkpoints into.")] = None,
    data: options.DataName = None,
    data_root: options.DataRoot = None,
    split: options.Split = "test",
    limit: options.Limit = None,
    normalize: options.Normalize = None,
    input: options.InputShape = None,
    mode: options.Mode = "running",
    seed: options.Seed = 0,
    device: options.Device = None,
    modulo: Annotated[
        str | None,
        Option(
            help="symmetries: measure only how far apart the weights of two models are once symmetries are removed."
        ),
    ] = None,
    printed: Annotated[bool, Option("--printed", help="Also show the formulas printed in papers.")] = False,
    no_check: Annotated[bool, Option("--no-check", help="Do not run the doctor.")] = False,
    out: options.Out = None,
    report: options.ReportFile = None,
    no_report: options.NoReport = False,
    json: Annotated[bool, Option("--json", help="Print only the comparison, as JSON.")] = False,
    quiet: options.Quiet = False,
    everything: Annotated[bool, Option("--all", help="Show every row, including those that did not change.")] = False,
) -> None:
    """Compare models, checkpoints or earlier results side by side: what changed, layer by layer, and what is new.

    With --model, checkpoints are loaded into that model; without it, only their weights are compared.
    """
    if len(items) < 2:
        raise BadParameter(f"Expected at least two models or results, got {len(items)}.", param_hint="MODEL")
    if modulo is not None:
        _refuse_unused(context, modulo)
        named = Named("", None, data, data_root, split, limit, normalize, input)
        _compare_modulo_symmetries(items, model, named, seed, out, json=json, quiet=quiet)
        return
    target, page = checked_places(out, FILE, report, no_report=no_report, name="compare")
    settings = {"mode": mode, "seed": seed}
    request = Request("", None, data, data_root, split, limit, normalize, input, device, settings)
    with Stages(quiet=quiet, lines=not json) as stages:
        found, findings = run(items, model, request, stages, check=not no_check)
        save(found, target)
        page = write_comparison(found, findings, page)
    finish(found, json=json, quiet=quiet, written=target, page=page, everything=everything, printed=printed)


def run(
    items: Sequence[str], model: str | None, common: Request, stages: Stages, *, check: bool
) -> tuple[Comparison, dict[str, Sequence[Finding]]]:
    """Read or compute the result of each item; return their comparison, and the doctor's findings on models.

    Checkpoints are weights of ``model``, if it was named; everything else about the analyses is in ``common``.
    """
    from normscope.analysis.compare import compare as compared
    from normscope.cli.report import read_whole, result_file
    from normscope.core.result import Result

    results: dict[str, Comparable] = {}
    findings: dict[str, Sequence[Finding]] = {}
    requests: dict[str, Request] = {}
    names = numbered(items, "{} ({})", plain_first=True)
    for name, item in zip(names, items, strict=True):
        place = result_file(user_path(item))
        if place.name.endswith(".json") and not place.name.endswith(".index.json"):
            results[name] = read_whole(place)
        else:
            requests[name] = _about(item, model, common)
    for name, request in requests.items():  # before the first is analyzed, which takes long
        _try(request, name, stages.about(name))
    for name, request in requests.items():
        found = results[name] = analyzed(request, stages.about(name), check=check)
        if isinstance(found, Result) and found.findings is not None:
            findings[name] = found.findings
    return compared({name: results[name] for name in names}, findings), findings


def _try(request: Request, name: str, stages: Callable[[str], None]) -> None:
    """Run a model once on its data or on an input of the given shape; errors name it, as there are several models.

    A checkpoint without its model cannot be run.
    """
    from normscope.analysis.checkpoint import is_checkpoint
    from normscope.graph.inputs import check_runs, first_samples, guess_inputs, iterate

    if is_checkpoint(request.model):
        return
    loaded = load(request, request.options["seed"], stages)
    try:
        with loaded.home.open():
            if loaded.inputs is None:
                guess_inputs(loaded.model, loaded.shape)
            else:
                check_runs(loaded.model, first_samples(next(iterate(loaded.inputs, loaded.model)), 2))
    except NormscopeError as error:
        raise type(error)(f"{name}: {error}") from error


def _about(item: str, model: str | None, common: Asked) -> Asked:
    """Return the request for one item: a model, or a checkpoint for the model, if that was named."""
    from normscope.analysis.checkpoint import is_checkpoint

    if model is not None and is_checkpoint(item):
        return replace(common, model=model, weights=Path(item))
    return replace(common, model=item)


def write_comparison(comparison: Comparison, findings: dict[str, Sequence[Finding]], page: Path | None) -> Path | None:
    """Write the page of a comparison and return it; checkpoints without their model have no common page."""
    from normscope.core.result import Result

    results = [r for r in comparison.results if isinstance(r, Result)]
    if page is None or len(results) < len(comparison.models):
        return None
    named = dict(zip(comparison.models, results, strict=True))
    sections = comparison.sections()[2:]  # the page has the names and the whole networks already
    return write_page(named, page, findings=findings, sections=sections)


def _refuse_unused(context: Context, modulo: str) -> None:
    """Raise if ``--modulo`` is unknown, or an option was given that has no meaning with it, even with its default."""
    if modulo != "symmetries":
        raise BadParameter(f"Expected symmetries, got {modulo}.", param_hint="--modulo")
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source is None or source.name == "DEFAULT":
            continue
        if option.name == "mode" and context.params["mode"] != "batch":
            raise BadParameter(
                "With --modulo, networks are compared as in training, where BatchNorm uses the statistics of the "
                f"batch: expected batch, got {context.params['mode']}.",
                param_hint="--mode",
            )
        if option.name in _OF_ANALYSES:
            raise BadParameter(
                "With --modulo, the weights are compared and nothing is analyzed. Leave this option out.",
                param_hint=option.opts[0],
            )


def _compare_modulo_symmetries(
    items: Sequence[str], model: str | None, named: Named, seed: int, out: Path | None, *, json: bool, quiet: bool
) -> None:
    """Print how far two sets of weights are apart before and after symmetries are removed."""
    if len(items) != 2:
        raise BadParameter(f"Expected two models, got {len(items)}.", param_hint="MODEL")
    target, _ = checked_places(out, ALIGNMENT, None, no_report=True, name="compare")
    with Stages(quiet=quiet, lines=not json) as stages:
        from normscope.geometry.align import align
        from normscope.geometry.discover import symmetry
        from normscope.graph.weights_validation import check_model

        first, second = (load(_about(item, model, named), seed, stages) for item in items)
        check_model(second.model)  # the first is checked as it is captured
        with first.home.open():
            found = symmetry(first.model, first.data, input_shape=first.shape, name=items[0], progress=stages)
            stages("aligning")
            result = align(found, second.model.state_dict())
    body = {"before": result.before, "after": result.after, "moved": result.moved, "same": result.same}
    text = json_text({"schema_version": 1, "kind": "alignment", "models": list(items), **body})
    write_file(target, text + "\n")
    if json:
        print(text)
    elif not quiet:
        print(f"relative distance of the weights: {result.before:.3g}; modulo symmetries: {result.after:.3g}")
        print(f"permuted units: {result.moved}")
        print("the same network" if result.same else "not the same network")
        print(f"\nwritten: {target}")
