"""``normscope check``: the doctor."""

from __future__ import annotations

import ast
import contextlib
import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import BadParameter, Exit, Option

from normscope.cli import options
from normscope.cli.console import Stages, guarded, line_width, visible
from normscope.cli.loading import Named, load, split_arguments, user_function
from normscope.cli.output_files import checked_file, write_file
from normscope.core.files import user_path

if TYPE_CHECKING:
    from torch import nn

    from normscope.core.result import Result
    from normscope.doctor import CheckResult, Settings
    from normscope.report.sarif import SourceLocation

FORMATS = ("text", "json", "sarif", "github", "html")
#: Exit code of a check that fails.
FAILED = 1


@guarded
def check(
    model: options.Model,
    weights: options.WeightsFile = None,
    data: options.DataName = None,
    data_root: options.DataRoot = None,
    split: options.Split = "test",
    limit: options.Limit = None,
    normalize: options.Normalize = None,
    input: options.InputShape = None,
    optimizer: Annotated[
        str | None, Option(help="FILE.py:function that takes the model and returns its optimizer.")
    ] = None,
    batch_size: Annotated[int | None, Option(min=1, help="Number of samples per forward pass in training.")] = None,
    dtype: Annotated[str | None, Option(help="Precision the model will run in: float16, bfloat16, ...")] = None,
    purpose: Annotated[str, Option(help="Intended use: train, inference, finetune, private, contrastive or gan.")] = "",
    before: Annotated[Path | None, Option(help="Earlier weights of the same model, to compare with.")] = None,
    select: Annotated[list[str] | None, Option(help="Run only these rules (codes or prefixes of codes).")] = None,
    ignore: Annotated[list[str] | None, Option(help="Skip these rules (codes or prefixes of codes).")] = None,
    fail_on: Annotated[
        str | None, Option(help="Fail (exit 1) on info, warning, error or never.", show_default="warning")
    ] = None,
    baseline: Annotated[Path | None, Option(help="Baseline file; listed findings are suppressed.")] = None,
    write_baseline: Annotated[
        Path | None, Option(help="Write the findings to this baseline file and exit with 0.")
    ] = None,
    format: Annotated[str, Option("--format", help="Output format: text, json, sarif, github or html.")] = "text",
    json: Annotated[bool, Option("--json", help="The same as --format json.")] = False,
    out: Annotated[Path | None, Option(help="Write the report to this file instead of stdout.")] = None,
    isolated: Annotated[bool, Option("--isolated", help="Do not read pyproject.toml.")] = False,
    device: options.Device = None,
    seed: options.Seed = 0,
    quiet: options.Quiet = False,
) -> None:
    """Find problems with the normalization of MODEL: findings with codes, places, evidence and fixes.

    MODEL may also be the folder of a training run that a monitor recorded.

    Exit code 0: no finding at or above --fail-on; 1: at least one; 2: wrong use. Settings are also read from
    [tool.normscope] in pyproject.toml. `normscope explain CODE` explains a rule.
    """
    format = "json" if json else format
    if format not in FORMATS:
        raise BadParameter(f"Unknown format {format!r}. Choose from: {', '.join(FORMATS)}.", param_hint="--format")
    folder = run_folder(model)
    if folder is not None:
        ignored = {
            "--weights": weights, "--data": data, "--data-root": data_root, "--limit": limit, "--normalize": normalize,
            "--input": input, "--optimizer": optimizer, "--batch-size": batch_size, "--dtype": dtype,
            "--purpose": purpose, "--before": before, "--device": device,
        }  # fmt: skip
        given = [option for option, value in ignored.items() if value]
        if given:
            raise BadParameter(f"{', '.join(given)} cannot be used with the folder of a run: only a model needs it.")
    out = None if out is None else checked_file(out)
    write_baseline = None if write_baseline is None else checked_file(write_baseline, "--write-baseline")
    named = Named(model, weights, data, data_root, split, limit, normalize, input)
    width = line_width()
    with Stages(quiet=quiet, lines=format in ("text", "html")) as stages:
        settings = _settings(select, ignore, fail_on, baseline, isolated=isolated)
        if write_baseline is not None:
            settings = replace(settings, baseline=None)
        if folder is None:
            result, capacity = run(
                named, stages, optimizer, before, device=device, seed=seed, settings=settings, batch_size=batch_size,
                dtype=_dtype(dtype), purpose=purpose,
            )  # fmt: skip
            text = rendered(result, format, source_of(split_arguments(model)[0]), capacity, width=width)
        else:
            from normscope.monitor.check_run import check_run

            result = check_run(folder, settings=settings)
            text = rendered(result, format, width=width)
    if write_baseline is not None:
        from normscope.doctor.settings import baseline_text
        from normscope.report.numbers import plural

        write_file(write_baseline, baseline_text(result.findings), "--write-baseline")
        text, out = ("" if quiet else f"written: {write_baseline} ({plural(len(result.findings), 'finding')})"), None
    if out is not None:
        write_file(out, text + "\n")
        text = f"written: {out}"
    if not quiet and text:
        print(text)
    if result.failed and write_baseline is None:
        raise Exit(FAILED)


def run_folder(model: str) -> Path | None:
    """Return the folder of a training run, if that is what was named, complete or not."""
    from normscope.core.errors import InputError
    from normscope.monitor.run import read_config

    folder = user_path(model)
    if (folder / "metrics.jsonl").is_file():
        return folder
    with contextlib.suppress(InputError):  # not a run, but perhaps a folder of transformers
        read_config(folder)
        return folder
    return None


def run(
    named: Named,
    stages: Stages,
    optimizer: str | None,
    before: Path | None,
    *,
    device: str | None,
    seed: int,
    **rest: Any,
) -> tuple[CheckResult, Callable[[], Result]]:
    """Load a model, and check it; the other arguments are those of :func:`normscope.check`.

    Returns:
        The result, and a function that analyzes the model for a full report.
    """
    from normscope.cli.analyze import checked_device
    from normscope.doctor import check as doctor
    from normscope.report.findings import finding_line

    checked_device(device)
    loaded = load(named, seed, stages, derivatives=False)
    common = {"limit": named.limit, "device": device, "seed": seed}
    result = loaded.call(
        doctor,
        optimizer=None if optimizer is None else optimizer_of(optimizer, loaded.model, seed),
        before=None if before is None else _earlier(loaded.model, before),
        tell=lambda finding: stages.note(finding_line(finding)),
        **common,
        **rest,
    )

    def capacity() -> Result:
        from normscope.analysis import analyze

        return loaded.call(analyze, **common)

    return result, capacity


def rendered(
    result: CheckResult,
    format: str,
    source: SourceLocation | None = None,
    capacity: Callable[[], Result] | None = None,
    *,
    width: int = 118,
) -> str:
    """Return a result in one of :data:`FORMATS`, text wrapped to a width; a page also has the analysis."""
    from normscope.core.errors import NormscopeError
    from normscope.report.findings import findings_text, github_text
    from normscope.report.sarif import sarif_text

    if format == "json":
        return result.to_json()
    if format == "sarif":
        return sarif_text(result, source)
    if format == "github":
        return github_text(result, source)
    if format == "html":
        from normscope.report.findings import check_sections
        from normscope.report.html import report_html

        title = f"{result.model} for {result.purpose}" if result.purpose else ""
        if capacity is not None:
            with contextlib.suppress(NormscopeError):  # no graph: there is nothing to show but the findings
                return report_html(capacity(), findings=result.findings, title=title)
        return report_html({}, sections=check_sections(result, typed=True), title=title)
    return visible(findings_text(result, width), keep="\n")


def optimizer_of(spec: str, model: nn.Module, seed: int = 0) -> Any:
    """Return the optimizer that a user's function, ``FILE.py:function`` or the like, makes for a model."""
    import torch

    from normscope.core.errors import FactoryError
    from normscope.zoo.user_code import explained

    with user_function(spec, seed) as factory:
        with contextlib.suppress(ValueError):  # no signature to check beforehand: the call itself raises
            try:
                inspect.signature(factory).bind(model)
            except TypeError:
                raise FactoryError(f"{spec} must accept one argument, the model.") from None
        try:
            made = factory(model)
        except (Exception, SystemExit) as error:
            raise explained(error, f"Calling {spec} with the model", None) from error
    if not isinstance(made, torch.optim.Optimizer):
        raise FactoryError(f"Expected {spec} to return a torch.optim.Optimizer, got {type(made).__name__}.")
    return made


def source_of(spec: str) -> SourceLocation | None:
    """Return where a model is defined: the file of ``FILE.py:factory`` and the line of the factory."""
    from normscope.report.sarif import SourceLocation
    from normscope.zoo.load import parse_spec

    kind, location, name = parse_spec(spec)
    if kind != "file":
        return None
    line = 1
    with contextlib.suppress(OSError, SyntaxError, ValueError):
        for node in ast.parse(user_path(location).read_bytes()).body:
            if getattr(node, "name", None) == name.partition(".")[0]:
                line = node.lineno
    return SourceLocation(Path(location).as_posix(), line)


def _earlier(model: nn.Module, weights: Path) -> nn.Module:
    import copy

    from normscope.zoo.state_dict import load_weights

    earlier = copy.deepcopy(model)
    load_weights(earlier, weights)
    return earlier


def _settings(
    select: list[str] | None, ignore: list[str] | None, fail_on: str | None, baseline: Path | None, *, isolated: bool
) -> Settings:
    """Return the settings of the project with those of the command line on top."""
    from normscope.doctor.settings import Settings, read_settings

    settings = Settings() if isolated else read_settings()
    if select:
        settings = replace(settings, select=tuple(options.split_commas(",".join(select))))
    return replace(
        settings,
        ignore=(*settings.ignore, *options.split_commas(",".join(ignore or []))),
        fail_on=fail_on or settings.fail_on,
        baseline=baseline or settings.baseline,
    )


def _dtype(name: str | None) -> Any:
    if name is None:
        return None
    import torch

    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise BadParameter(
            f"Unknown precision {name!r}. Choose from: float16, bfloat16, float32, float64.", param_hint="--dtype"
        )
    return found
