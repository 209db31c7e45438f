"""``normscope fix``: new weights for the same function."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normscope.cli.console import Stages, guarded
from normscope.cli.specification import parse_shape, split_arguments

if TYPE_CHECKING:
    from normscope.fixes import FixResult

_MODEL = "FILE.py:factory, package.module:factory, zoo:NAME, hf:DIR, timm:NAME or torchvision:NAME."


@guarded
def fix(
    model: Annotated[str, typer.Argument(help=_MODEL, show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; write nothing.")] = False,
    write_to: Annotated[
        Path | None, typer.Option(help="Write the new state dict to this file (.safetensors or .pt).")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only these fixes: drop-bias, fold, balance, unit-norm.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="State dict (.safetensors, .pt) for the model.")] = None,
    data: Annotated[
        str | None, typer.Option(help="digits, mnist, fashion-mnist, cifar10, or a tensor file (.npy, .npz, .pt).")
    ] = None,
    data_root: Annotated[Path | None, typer.Option(help="Folder of named data sets.")] = None,
    split: Annotated[str, typer.Option(help="test or train.")] = "test",
    limit: Annotated[int | None, typer.Option(min=1, help="Use at most this many samples.")] = None,
    normalize: Annotated[str | None, typer.Option(help="unit, raw, or a preset such as imagenet.")] = None,
    input: Annotated[str | None, typer.Option("--input", help="Shape of one input, e.g. 3,224,224.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the JSON result alone.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="List every change.")] = False,
) -> None:
    """Mend the weights of MODEL where that leaves its function as it is.

    Sets cancelled biases to zero, folds BatchNorm into the layer before it, balances ReLU layers, rescales
    scale-invariant weights. The outputs are verified to be the same to 1e-5 in evaluation; what cannot be done exactly
    is refused, with the reason. The result is a state dict for the code as it is, and what a person may change in it.
    """
    _checked(dry_run, write_to, force)
    with contextlib.redirect_stdout(sys.stderr), Stages(lines=not json) as stages:
        stages("loading torch")
        result = _run(model, weights, data, data_root, split, limit, normalize, input, seed, only, stages)
        if write_to is not None:
            _write(result, write_to)
    if json:
        print(result.to_json())
        return
    from normscope.report.fixes import fix_text

    print(fix_text(result, everything=everything))
    if write_to is not None:
        print(f"written: {write_to}")


def _run(
    model: str,
    weights: Path | None,
    data: str | None,
    root: Path | None,
    split: str,
    limit: int | None,
    normalize: str | None,
    shape_text: str | None,
    seed: int,
    only: list[str] | None,
    stages: Stages,
) -> FixResult:
    """Load model and data, and fix."""
    from normscope.cli.analyze import Inputs
    from normscope.data.load import load_data
    from normscope.fixes import fix as mend
    from normscope.models.load import load_model

    shape = parse_shape(shape_text)
    spec, arguments = split_arguments(model)
    stages("loading the model")
    network, origin = load_model(spec, weights, seed=seed, **arguments)
    inputs = None
    if data is not None:
        stages("loading the data")
        inputs = Inputs(load_data(data, root, split, limit, normalize=normalize))
    elif shape is None and origin.kind == "zoo":
        shape = tuple(getattr(network, "input_shape", ())) or None
    names = [part.strip() for item in only or [] for part in item.split(",") if part.strip()]
    return mend(network, inputs, only=names, name=model, input_shape=shape, limit=limit, seed=seed, progress=stages)


def _checked(dry_run: bool, target: Path | None, force: bool) -> None:
    """Raise if it is not clear what to do with the result, before any work is done."""
    if dry_run == (target is not None):
        raise typer.BadParameter(
            "say either --dry-run, or where the new weights go: --write-to FILE.safetensors", param_hint="--write-to"
        )
    if target is None:
        return
    if target.suffix not in (".safetensors", ".pt"):
        raise typer.BadParameter(
            f"weights are written to a file ending in .safetensors or .pt; got {target.name}", param_hint="--write-to"
        )
    if target.is_dir() or (target.exists() and not force):
        raise typer.BadParameter(f"{target} exists already; name another file, or say --force", param_hint="--write-to")


def _write(result: FixResult, target: Path) -> None:
    """Write the new weights."""
    try:
        result.save(target)
    except OSError as error:
        raise typer.BadParameter(
            f"the file must be writable; {target}: {error.strerror or error}; name another", param_hint="--write-to"
        ) from error
