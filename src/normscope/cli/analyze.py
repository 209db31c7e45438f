"""``normscope analyze``: the capacity of a model, or the norms of a checkpoint's weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from normscope.cli.console import Stages, aside, guarded, show
from normscope.cli.loading import Inputs, Named, load
from normscope.cli.options import (
    MODEL,
    DataName,
    DataRoot,
    Device,
    Everything,
    InputShape,
    Json,
    Limit,
    Mode,
    NoReport,
    Normalize,
    Quiet,
    ReportFile,
    Seed,
    Split,
    Tolerance,
    WeightsFile,
)
from normscope.cli.specification import checked_apart, checked_file, checked_folder, parse_shape, writing
from normscope.core.errors import InputError, NormscopeError, attempt, failure
from normscope.core.files import user_path
from normscope.core.numbers import check_fraction

if TYPE_CHECKING:
    from torch import nn

    from normscope.analysis.checkpoint import CheckpointResult
    from normscope.core.finding import Finding
    from normscope.core.result import Result
    from normscope.lipschitz.weights.result import WeightResult
    from normscope.report.table import Section
    from normscope.weight_normalization.guarantees import Guarantees

Measured = TypeVar("Measured")
FILE, REPORT = "result.json", "report.html"
#: Written beside the result of a weight-normalized network.
WEIGHT_NORM = "weight_normalization.json"
#: Samples for the theory of weight normalization.
THEORY_SAMPLES = 256
SPLIT = "test"
#: Options that are not called as the field they set.
_SPELLED = {"stacked": "--stacked/--no-stacked", "without_normalizers": "--no-without"}
#: What is asked of the doctor as it is of the analysis.
_SHARED = ("model", "weights", "data", "root", "split", "limit", "normalize", "shape", "device")
_MODEL = (
    f"{MODEL}; or a .safetensors or .pt file, a .safetensors.index.json or a directory of them, for the norms of the "
    "weights alone."
)


@dataclass(frozen=True)
class Request(Named):
    """What a user asks of ``analyze``, of a named model on named data.

    Attributes:
        device: where to compute.
        options: fields of ``normscope.Options``.
    """

    device: str | None
    options: dict[str, Any]


@guarded
def analyze(
    model: Annotated[str, typer.Argument(help=_MODEL, show_default=False)],
    weights: WeightsFile = None,
    data: DataName = None,
    data_root: DataRoot = None,
    split: Split = SPLIT,
    limit: Limit = None,
    normalize: Normalize = None,
    input: InputShape = None,
    mode: Mode = "running",
    points: Annotated[int | None, typer.Option(min=1, help="Points at which the Jacobian is measured.")] = None,
    ascent: Annotated[int | None, typer.Option(min=0, help="Steps of the search for bad inputs.")] = None,
    tolerance: Tolerance = None,
    delta: Annotated[float, typer.Option(help="Failure probability of each probabilistic bound.")] = 1e-9,
    seed: Seed = 0,
    radius: Annotated[
        list[float] | None,
        typer.Option(min=0.0, help="Certify the constant within this l2 distance of data points; may be repeated."),
    ] = None,
    share: Annotated[float, typer.Option(help="Share of inputs like the data that is spoken about.")] = 0.95,
    confidence: Annotated[float, typer.Option(help="Confidence of what is said about that share.")] = 0.99,
    time: Annotated[
        float | None, typer.Option(min=0.0, help="Seconds of search, on all inputs and around data points.")
    ] = None,
    device: Device = None,
    stacked: Annotated[
        bool | None, typer.Option("--stacked/--no-stacked", help="Bound a batch as one input, if BatchNorm is there.")
    ] = None,
    no_without: Annotated[bool, typer.Option("--no-without", help="Skip the network without normalizers.")] = False,
    out: Annotated[Path, typer.Option(help=f"Folder for {FILE} and {REPORT}.")] = Path(),
    report: ReportFile = None,
    no_report: NoReport = False,
    check: Annotated[bool, typer.Option("--check", help="Also ask the doctor; the report has its findings.")] = False,
    json: Json = False,
    quiet: Quiet = False,
    everything: Everything = False,
) -> None:
    """Measure Lipschitz constants of MODEL, layer by layer and end to end; write result.json and report.html.

    Every number says what it guarantees: certified, with probability, attained from below, or as printed in a paper.
    """
    checked_numbers(tolerance, delta, share, confidence)
    shape = parse_shape(input)
    target, page = checked_places(out, FILE, report, no_report=no_report)
    options = {
        "mode": mode,
        "points": points,
        "ascent": ascent,
        "tolerance": tolerance,
        "delta": delta,
        "seed": seed,
        "stacked": stacked,
        "without_normalizers": not no_without,
        "radius": tuple(radius) if radius else None,
        "share": share,
        "confidence": confidence,
    } | ({} if time is None else {"time": time})
    request = Request(model, weights, data, data_root, split, limit, normalize, shape, device, options)
    with aside(), Stages(quiet=quiet, lines=not json) as stages:
        stages("loading torch")
        _check_unused(request, check=check, page=page)
        theory: list[Guarantees] = []
        result, sections = run(request, stages, everything=everything, theory=theory)
        write(result, target)  # first, so that nothing that follows can lose it
        for found in theory:
            with writing(target):
                found.save(target.with_name(WEIGHT_NORM))
        told: list[str] = []
        findings = attempt("the doctor", lambda: findings_of(request, stages), None, told) if check else None
    if page is not None:
        _report(result, page, told, findings=findings, panels=theory)
    if json:
        print(result.to_json())
    elif not quiet:
        show(sections)
        print(f"\nwritten: {target}")
        if page is not None and not told:
            print(f"open: {page}")
    if told:
        raise NormscopeError("; ".join(told))


def _report(result: Result | CheckpointResult, page: Path, told: list[str], **rest: Any) -> None:
    """Write the report; where it cannot be made, say so: the result is written already."""
    try:
        write_page(result, page, **rest)
    except typer.BadParameter:
        raise
    except Exception as error:
        told.append(failure("the report", error))


def run(
    request: Request, stages: Stages, *, everything: bool = False, theory: list[Guarantees] | None = None
) -> tuple[Result | CheckpointResult, list[Section]]:
    """Analyze a model, or a checkpoint where the request names one.

    Args:
        request: what is asked.
        stages: called with a line of text at each step.
        everything: whether the sections hold every row.
        theory: takes what the theory of weight normalization proves, where it covers the model and data have labels.

    Returns:
        The result and its report.

    Raises:
        NormscopeError: a subclass that says what is wrong.
    """
    stages("loading torch")
    from normscope.analysis.checkpoint import analyze_checkpoint, is_checkpoint

    if is_checkpoint(request.model):
        from normscope.report.checkpoint import checkpoint_sections

        place = user_path(request.model)
        weights = analyze_checkpoint(place if place.name else place.resolve(), stages)  # "." has no name
        return weights, checkpoint_sections(weights, everything=everything)
    from normscope.analysis import analyze as capacity
    from normscope.report.text import result_sections

    found = [] if theory is None else theory

    def capacity_and_theory(model: nn.Module, inputs: Inputs | None, **rest: Any) -> Result:
        result = capacity(model, inputs, **rest)
        found.extend(weight_normalization(model, inputs, stages))
        return result

    result = measured(request, stages, capacity_and_theory)
    sections = result_sections(result, everything=everything)
    if found:
        from normscope.report.weight_normalization import weight_normalization_sections

        sections += weight_normalization_sections(found[0])
    return result, sections


def weight_normalization(model: nn.Module, inputs: Inputs | None, stages: Stages) -> list[Guarantees]:
    """Return what is proved about a weight-normalized network, or nothing where the theory does not cover it.

    Args:
        model: any network.
        inputs: its data, if there are some; a sample of them is used.
        stages: called with a line of text at each step.
    """
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


def measured(request: Request, stages: Stages, twin: Callable[..., Measured]) -> Measured:
    """Load model and data, and hand them to the Python twin of a verb.

    Args:
        request: what is asked.
        stages: called with a line of text at each step.
        twin: takes what ``normscope.analyze`` takes; its result has ``model``, ``input`` and ``messages``.

    Returns:
        The result, which also says where model and data come from.

    Raises:
        NormscopeError: a subclass that says what is wrong.
    """
    from normscope.analysis import Options

    options = Options(**request.options)
    checked_device(request.device)
    loaded = load(request, options.seed, stages)
    with loaded.home.open():
        result: Any = twin(
            loaded.model,
            loaded.inputs,
            input_shape=loaded.shape,
            name=request.model,
            options=options,
            progress=stages,
            limit=request.limit,
            device=request.device,
        )
    origin, data = loaded.origin, loaded.data
    notes = list(origin.notes)
    if origin.initialization == "random" and not any("random" in note for note in notes):
        notes.append(f"the weights are random (seed {options.seed}): give --weights for those of a trained model")
    source = None if data is None else {"name": data.name, "split": request.split, "samples": len(data)}
    complete: Measured = replace(
        result,
        model=result.model | {"origin": asdict(origin)},
        input=result.input | {"source": source},
        messages=(*notes, *result.messages),
    )
    return complete


def write(result: Result | CheckpointResult | WeightResult, target: Path) -> Path:
    """Write a result, whole or not at all.

    Raises:
        typer.BadParameter: if it cannot be written there.
    """
    with writing(target):
        return result.save(target)


def write_page(
    results: Result | CheckpointResult | Mapping[str, Result], target: Path, option: str = "--report", **rest: Any
) -> Path:
    """Write the report on one or several results, whole or not at all.

    Raises:
        typer.BadParameter: if it cannot be written there.
    """
    from normscope.report.html import save_html

    with writing(target, option):
        return save_html(results, target, **rest)


def findings_of(request: Request, stages: Stages) -> Sequence[Finding]:
    """Ask the doctor about the model of a request."""
    from normscope.cli import check
    from normscope.doctor import Settings

    shared = {key: getattr(request, key) for key in _SHARED}
    rest: dict[str, Any] = {"optimizer": None, "batch_size": None, "dtype": None, "purpose": "", "before": None}
    asked = check.Request(**shared, **rest, seed=request.options["seed"])
    return check.run(asked, Settings(), stages)[0].findings


def _check_unused(request: Request, *, check: bool, page: Path | None) -> None:
    """Raise if options are given that would change nothing: most of them beside a checkpoint alone."""
    from normscope.analysis import Options
    from normscope.analysis.checkpoint import is_checkpoint

    if check and page is None:
        raise typer.BadParameter(
            "--check writes its findings to the report; drop --no-report, or run normscope check.",
            param_hint="--check",
        )
    usual = Options()
    said: dict[str, Any] = {
        "--weights": request.weights,
        "--data": request.data,
        "--data-root": request.root,
        "--split": None if request.split == SPLIT else request.split,
        "--limit": request.limit,
        "--normalize": request.normalize,
        "--input": request.shape,
        "--device": None if request.device == "cpu" else request.device,  # there weights are read
        "--check": check or None,
    }
    for key, value in request.options.items():
        said[_SPELLED.get(key, f"--{key}")] = None if value == getattr(usual, key) else value
    given = [option for option, value in said.items() if value is not None]
    if given and is_checkpoint(request.model):
        raise typer.BadParameter(
            f"{', '.join(given)} cannot be used with a checkpoint ({request.model}). Name the model itself "
            "(FILE.py:factory, zoo:NAME, hf:DIR, ...) and pass the checkpoint with --weights.",
            param_hint="MODEL",
        )


def checked_places(
    out: Path, name: str, report: Path | None, *, no_report: bool, page: str = REPORT
) -> tuple[Path, Path | None]:
    """Return the files for a result and its report, before any work is done.

    Args:
        out: folder for both.
        name: of the result's file.
        report: file for the report, if it was named.
        no_report: write none.
        page: what the report is called where it was not named.

    Raises:
        typer.BadParameter: if one cannot be written, or both are one.
    """
    folder = checked_folder(out)
    target = checked_file(folder / name)
    if no_report and report is not None:
        raise typer.BadParameter("--report and --no-report cannot be used together.")
    if no_report:
        return target, None
    written = checked_file(folder / page) if report is None else checked_file(report, "--report")
    checked_apart(written, target, "--report")
    return target, written


def checked_numbers(
    tolerance: float | None, delta: float | None = None, share: float | None = None, confidence: float | None = None
) -> None:
    """Raise if a number is out of range, before anything is loaded."""
    for value, what, option in (
        (tolerance, "a relative width", "--tolerance"),
        (delta, "a probability", "--delta"),
        (share, "a share", "--share"),
        (confidence, "a confidence", "--confidence"),
    ):
        try:
            if value is not None:
                check_fraction(value, what)
        except InputError as error:
            raise typer.BadParameter(str(error), param_hint=option) from None


def checked_device(device: str | None) -> None:
    """Raise if torch cannot compute on a device."""
    if device is None:
        return
    import torch

    try:
        torch.zeros(1, device=device).sum().item()
    except (RuntimeError, AssertionError, NotImplementedError, ValueError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise typer.BadParameter(
            f"Device {device!r} cannot be used: {first}. Without --device the model's own device is used.",
            param_hint="--device",
        ) from error
