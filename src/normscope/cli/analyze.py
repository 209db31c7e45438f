"""``normscope analyze``: the capacity of a model, or the norms of a checkpoint's weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from typer import Argument, BadParameter, Context, Option

from normscope.cli import options
from normscope.cli.console import Stages, finish, guarded
from normscope.cli.loading import Inputs, Named, load
from normscope.cli.output_files import checked_apart, checked_file, checked_folder, new_folder, save, writing
from normscope.core.errors import STOPPED, InputError, NormscopeError, attempt, failure
from normscope.core.files import user_path

if TYPE_CHECKING:
    from torch import nn

    from normscope.analysis.checkpoint import CheckpointResult
    from normscope.core.finding import Finding
    from normscope.core.result import Result
    from normscope.report.table import Section
    from normscope.weight_normalization.guarantees import Guarantees

Measured = TypeVar("Measured")
FILE, REPORT = "result.json", "report.html"
#: Written beside the result of a weight-normalized network.
WEIGHT_NORM = "weight_normalization.json"
#: Shown below a first look that more results follow.
FOLLOWS = "Computing tighter bounds; Ctrl-C stops and keeps what is known."
#: Shown if only the doctor's quick rules ran.
QUICK = "First look only: slower rules did not run; `normscope check` runs all of them."
#: Samples for the theory of weight normalization.
THEORY_SAMPLES = 256
#: Options that are passed on as fields of ``normscope.Options``, and all options about a model.
_SETTINGS = (
    "mode", "points", "ascent", "tolerance", "delta", "seed", "stacked", "share", "confidence", "sketch",
)  # fmt: skip
_OF_A_MODEL = (
    *_SETTINGS, "weights", "data", "data_root", "split", "limit", "normalize", "input", "radius", "time", "device",
    "no_without",
)  # fmt: skip
_MODEL = (
    f"{options.MODEL}; or a .safetensors or .pt file, a .safetensors.index.json or a directory of "
    "them, for the norms of the weights only."
)


@dataclass(frozen=True)
class Request(Named):
    """What a user requests from ``analyze``, for a named model and named data."""

    device: str | None  #: where to compute
    options: dict[str, Any]  #: fields of ``normscope.Options``


@guarded
def analyze(
    context: Context,
    model: Annotated[str, Argument(metavar="MODEL", help=_MODEL, show_default=False)],
    weights: options.WeightsFile = None,
    data: options.DataName = None,
    data_root: options.DataRoot = None,
    split: options.Split = "test",
    limit: options.Limit = None,
    normalize: options.Normalize = None,
    input: options.InputShape = None,
    mode: options.Mode = "running",
    points: Annotated[int | None, Option(min=1, help="Number of points at which the Jacobian is computed.")] = None,
    ascent: Annotated[int | None, Option(min=0, help="Number of steps in the search for worst-case inputs.")] = None,
    tolerance: options.Tolerance = None,
    delta: Annotated[float, Option(help="Failure probability of each probabilistic bound.")] = 1e-9,
    seed: options.Seed = 0,
    radius: Annotated[
        list[float] | None,
        Option(min=0.0, help="Certify the constant within this l2 distance of data points; may be repeated."),
    ] = None,
    share: Annotated[float, Option(help="Share of inputs like the data that a statement covers.")] = 0.95,
    confidence: Annotated[float, Option(help="Confidence of the statement about that share.")] = 0.99,
    sketch: Annotated[
        bool,
        Option("--sketch", help="Around data, sketch tangents of deep ReLU networks: less time, fails below 1e-9."),
    ] = False,
    time: Annotated[
        float | None,
        Option(min=0.0, help="Seconds to search for tighter bounds, on all inputs and around data points."),
    ] = None,
    device: options.Device = None,
    stacked: Annotated[
        bool | None,
        Option("--stacked/--no-stacked", help="Also bound a whole batch as one input, if the model has BatchNorm."),
    ] = None,
    no_without: Annotated[
        bool, Option("--no-without", help="Skip the comparison with the network without normalizers.")
    ] = False,
    fast: Annotated[bool, Option("--fast", help="Stop after the first look, which takes seconds.")] = False,
    out: options.Out = None,
    report: options.ReportFile = None,
    no_report: options.NoReport = False,
    check: Annotated[bool, Option("--check/--no-check", help="Also run the doctor (normscope check).")] = True,
    printed: Annotated[bool, Option("--printed", help="Also show the formulas printed in papers.")] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    everything: options.Everything = False,
) -> None:
    """Show how the output of MODEL reacts to its input, what normalization does, and what to do next.

    Lipschitz constants, layer by layer and end to end, each with its guarantee, and the doctor's findings. Writes
    result.json and report.html. A large network gets a first answer within seconds; Ctrl-C keeps what is known.
    """
    target, page = checked_places(out, FILE, report, no_report=no_report, name=model)
    settings = {name: context.params[name] for name in _SETTINGS}
    settings |= {"without_normalizers": not no_without, "radius": tuple(radius) if radius else None}
    if time is not None:
        settings["time"] = time
    request = Request(model, weights, data, data_root, split, limit, normalize, input, device, settings)
    with Stages(quiet=quiet, lines=not json) as stages:
        _refuse_unused(context)
        theory: list[Guarantees] = []
        failures: list[str] = []

        def first(look: Result) -> None:
            """Show and save the first look, so that it is kept whatever happens later."""
            from normscope.report.verdict import has_urgent, verdict_lines

            lines = verdict_lines(look)
            stages.above(lines if has_urgent(look) else (*lines[:2], FOLLOWS))
            save(look, target)
            if page is not None:
                _report(look, page, failures)

        result = run(request, stages, check=check, fast=fast, first=first, failures=failures, theory=theory)
        save(result, target)  # first, so that nothing that follows can lose it
        for found in theory:
            save(found, target.with_name(WEIGHT_NORM))
    if page is not None:
        _report(result, page, failures, panels=theory)
    sections = functools.partial(_sections, result, theory, everything=everything, printed=printed)
    finish(result, json=json, quiet=quiet, sections=sections, written=target, page=None if failures else page)
    if failures:
        raise NormscopeError("; ".join(dict.fromkeys(failures)))


def _sections(
    result: Result | CheckpointResult, theory: Sequence[Guarantees], *, everything: bool, printed: bool
) -> Sequence[Section]:
    """Return the report of a model, or of a checkpoint."""
    from normscope.core.result import Result
    from normscope.report.analysis import result_sections

    if not isinstance(result, Result):
        return result.sections(everything=everything)
    more = (section for found in theory for section in found.sections())
    return [*result_sections(result, everything=everything, printed=printed), *more]


def _report(result: Result | CheckpointResult, page: Path, failures: list[str], **rest: Any) -> None:
    """Write the report; if that fails, record the failure: the result is already written."""
    try:
        write_page(result, page, **rest)
    except BadParameter:
        raise
    except Exception as error:
        failures.append(failure("the report", error))


def run(
    request: Request,
    stages: Callable[[str], None],
    *,
    check: bool = False,
    fast: bool = False,
    first: Callable[[Result], None] | None = None,
    failures: list[str] | None = None,
    theory: list[Guarantees] | None = None,
) -> Result | CheckpointResult:
    """Analyze a model, or a checkpoint if the request names one.

    Args:
        request: what is requested.
        stages: called with a line of text at each step, as in all functions here.
        check: also run the doctor.
        fast: stop after the first look.
        first: called with the first look at a large network.
        failures: gets a message if the doctor fails; without it, the doctor raises.
        theory: gets what the theory of weight normalization proves, if it covers the model and the data have labels.
    """
    from normscope.analysis.checkpoint import analyze_checkpoint, is_checkpoint

    if is_checkpoint(request.model):
        place = user_path(request.model)
        return analyze_checkpoint(place if place.name else place.resolve(), stages)  # "." has no name
    from normscope.analysis import analyze as capacity
    from normscope.analysis.capacity import is_big
    from normscope.analysis.context import AnalysisRequest, prepare
    from normscope.doctor import check as ask

    def twin(model: nn.Module, data: Any, **rest: Any) -> Result:
        found: tuple[Finding, ...] | None = None
        prepared = None
        big = is_big(model)
        if fast or big:
            stages("first look: capturing the graph")
            shape, device = rest["input_shape"], request.device
            prepared = prepare(AnalysisRequest(model, data, limit=request.limit, input_shape=shape, device=device))

        def doctor(*, quick: bool) -> None:
            """Run the doctor: for a big network first the quick rules, and the others once the first look is shown."""
            nonlocal found
            if check:
                common = {name: value for name, value in rest.items() if name != "options"}
                seed = rest["options"].seed
                step = functools.partial(ask, model, data, seed=seed, prepared=prepared, quick=quick, **common)
                answer = step() if failures is None else attempt("the doctor", step, None, failures)
                found = None if answer is None else answer.findings

        def shown(look: Result) -> None:
            if first is not None:
                first(replace(look, findings=found, model=look.model | {"origin": {"typed": request.typed}}))
            doctor(quick=False)

        doctor(quick=big)
        result = capacity(model, data, fast=fast, first=shown, prepared=prepared, **rest)
        if theory is not None and not fast and STOPPED not in result.messages:
            theory.extend(weight_normalization(model, data, stages))
        said = (QUICK,) if fast and big and check else ()
        return replace(result, findings=found, messages=(*result.messages, *said))

    return measured(request, stages, twin)


def weight_normalization(model: nn.Module, inputs: Inputs | None, stages: Callable[[str], None]) -> list[Guarantees]:
    """Return what is proved about a weight-normalized network, or nothing if the theory does not cover it."""
    from normscope.weight_normalization import verify
    from normscope.weight_normalization.chain import read_chain

    x, labels = (None, None) if inputs is None else inputs.data.tensors()
    if x is None or labels is None:
        return []
    try:
        read_chain(model, x[:1])
        stages("theory of weight normalization")
        return [verify(model, x[:THEORY_SAMPLES], labels[:THEORY_SAMPLES])]
    except InputError:
        return []


def measured(request: Request, stages: Callable[[str], None], twin: Callable[..., Measured]) -> Measured:
    """Load model and data, and pass them to the Python twin of a verb.

    The twin takes what ``normscope.analyze`` takes; its result has ``model``, ``input`` and ``messages``, and is
    returned with the origin of model and data.
    """
    from normscope.analysis import Options

    options = Options(**request.options)
    checked_device(request.device)
    loaded = load(request, options.seed, stages)
    found: Any = loaded.call(twin, options=options, limit=request.limit, device=request.device)
    origin, data = loaded.origin, loaded.data
    notes = list(origin.notes)
    if origin.initialization == "random" and not any("random" in note for note in notes):
        notes.append(f"The weights are random (seed {options.seed}). Pass --weights to use those of a trained model.")
    if data is not None and data.records.note:
        notes.append(data.records.note)
    source = None if data is None else {"name": data.name, "split": request.split, "samples": len(data)}
    complete: Measured = replace(
        found,
        model=found.model | {"origin": asdict(origin) | {"typed": request.typed}},
        input=found.input | {"source": source},
        messages=(*notes, *found.messages),
    )
    return complete


def write_page(
    results: Result | CheckpointResult | Mapping[str, Result], target: Path, option: str = "--report", **rest: Any
) -> Path:
    """Write the report on one or several results, whole or not at all."""
    from normscope.report.html import save_html

    with writing(target, option):
        return save_html(results, target, **rest)


def _refuse_unused(context: Context) -> None:
    """Raise if options are given that have no effect on a checkpoint without its model."""
    from normscope.analysis.checkpoint import is_checkpoint

    values = context.params
    unset = ((), "cpu")  # no radius; the device on which weights are read anyway
    options = (p for p in context.command.params if p.name in _OF_A_MODEL and values[p.name] not in (p.default, *unset))
    given = ["/".join((*p.opts, *p.secondary_opts)) for p in options]
    if given and is_checkpoint(values["model"]):
        raise BadParameter(
            f"{', '.join(given)} cannot be used with a checkpoint ({values['model']}). Name the model itself "
            "(FILE.py:factory, zoo:NAME, hf:DIR, ...) and pass the checkpoint with --weights.",
            param_hint="MODEL",
        )


def checked_places(
    out: Path | None, file: str, report: Path | None, *, no_report: bool, name: str, page: str = REPORT
) -> tuple[Path, Path | None]:
    """Return the files for a result and its report, before any work is done.

    Args:
        out: folder for both; by default a new one below ``normscope-runs``.
        file: name of the result's file.
        report: file for the report, if it was named.
        no_report: write none.
        name: what the result is about, for the name of a new folder.
        page: name of the report if no file is given for it.
    """
    folder = checked_folder(new_folder(name) if out is None else out)
    target = checked_file(folder / file)
    if no_report and report is not None:
        raise BadParameter("--report and --no-report cannot be used together.")
    if no_report:
        return target, None
    written = checked_file(folder / page) if report is None else checked_file(report, "--report")
    checked_apart(written, target, "--report")
    return target, written


def checked_device(device: str | None) -> None:
    """Raise if torch cannot compute on a device."""
    if device is None:
        return
    import torch

    try:
        torch.zeros(1, device=device).sum().item()
    except (RuntimeError, AssertionError, NotImplementedError, ValueError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadParameter(
            f"Device {device!r} cannot be used: {first}. Without --device the model's own device is used.",
            param_hint="--device",
        ) from error
