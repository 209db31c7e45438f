"""``normscope weights``: what a change of each weight can do to the output."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from normscope.cli.analyze import Request, checked_numbers, measured, write
from normscope.cli.console import Stages, guarded, show
from normscope.cli.specification import checked_folder, parse_shape

FILE = "weights.json"
_MODEL = (
    "FILE.py:factory, package.module:factory, zoo:NAME, hf:DIR, timm:NAME, torchvision:NAME, with arguments as in "
    "'zoo:relu10[norm=bn]'."
)


@guarded
def weights(
    model: Annotated[str, typer.Argument(help=_MODEL, show_default=False)],
    weights: Annotated[Path | None, typer.Option(help="State dict (.safetensors, .pt) for the model.")] = None,
    data: Annotated[
        str | None, typer.Option(help="digits, mnist, fashion-mnist, cifar10, or a tensor file (.npy, .npz, .pt).")
    ] = None,
    data_root: Annotated[Path | None, typer.Option(help="Folder of named data sets.")] = None,
    split: Annotated[str, typer.Option(help="test or train.")] = "test",
    limit: Annotated[int | None, typer.Option(min=1, help="Use at most this many samples.", show_default="64")] = None,
    normalize: Annotated[str | None, typer.Option(help="unit, raw, or a preset such as imagenet.")] = None,
    input: Annotated[str | None, typer.Option("--input", help="Shape of one input, e.g. 3,224,224.")] = None,
    mode: Annotated[
        str, typer.Option(help="What BatchNorm uses: running, batch or frozen-batch statistics.")
    ] = "running",
    points: Annotated[int | None, typer.Option(min=1, help="Points at which Jacobians are measured.")] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Relative width aimed at for each norm.", show_default="by the size")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...")] = None,
    stacked: Annotated[
        bool | None, typer.Option("--stacked/--no-stacked", help="Also take a batch as one input.")
    ] = None,
    out: Annotated[Path, typer.Option(help=f"Folder for {FILE}.")] = Path(),
    json: Annotated[bool, typer.Option("--json", help="Print the JSON result alone.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show every row of every table.")] = False,
) -> None:
    """Bound what a change of each weight of MODEL does to its output, and write weights.json.

    Exact Jacobians at data points, certified constants over the data, and Theorem 12 as printed beside them. Without
    --data only the constants with respect to the outputs of layers are bounded.
    """
    checked_numbers(tolerance, 0.5)
    shape = parse_shape(input)
    folder = checked_folder(out)
    options = {"mode": mode, "points": points, "tolerance": tolerance, "seed": seed, "stacked": stacked}
    request = Request(model, weights, data, data_root, split, limit, normalize, shape, device, options)
    # The user's code may print: stdout is for the result alone.
    with contextlib.redirect_stdout(sys.stderr), Stages(quiet=quiet, lines=not json) as stages:
        stages("loading torch")
        from normscope.analysis.weights import weight_lipschitz
        from normscope.report.weight_lipschitz import weight_sections

        result = measured(request, stages, weight_lipschitz)
    target = write(result, folder / FILE)
    if json:
        print(result.to_json())
    elif not quiet:
        show(weight_sections(result, everything=everything))
        print(f"\nwritten: {target}")
