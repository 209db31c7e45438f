"""``normscope extremal``: networks that attain or break the bounds, with exploding and vanishing gradients."""

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, BadParameter, Option

from normscope.cli import options
from normscope.cli.console import finish, guarded
from normscope.cli.output_files import checked_file, write_file

_WIDTHS = "Width of every layer, or n_0,n_1,... (input first), which also sets the depth."


@guarded
def extremal(
    construction: Annotated[str, Argument(metavar="NAME", help="theorem-6, theorem-13, theorem-15 or layernorm.")],
    depth: Annotated[int | None, Option(min=1, help="Layers.", show_default="20")] = None,
    width: Annotated[str, Option(help=_WIDTHS)] = "8",
    scale: Annotated[float, Option(help="Norm of every weight; the result for its inverse is shown as well.")] = 2.0,
    layer: Annotated[int, Option(min=1, help="Layer whose weight is studied, counted from 1.")] = 1,
    input: Annotated[str | None, Option("--input", help="The input, e.g. 0,0,1. Default: 1,0,0,...")] = None,
    eps: Annotated[float, Option(help="eps of LayerNorm.")] = 1e-5,
    activation: Annotated[str, Option(help="Map between LayerNorms: relu or identity.")] = "relu",
    plot: Annotated[Path | None, Option(help="Write the chart to this .svg file.")] = None,
    json: options.PlainJson = False,
) -> None:
    """Build a network with a prescribed constant and show its gradients explode or vanish, layer by layer.

    theorem-6 has the constant a^K in its input; theorem-13 prescribed constants in the weight of a layer; theorem-15 a
    prescribed gradient of the training loss; layernorm a constant near eps^(-K/2) that would be one without LayerNorm.
    In Python, these networks are functions of normscope.papers.than2025.extremal, for testing other tools.
    """
    from normscope.papers.than2025.extremal.constructions import CONSTRUCTIONS, ConstructionSettings, extremal
    from normscope.report.extremal import extremal_chart

    if construction not in CONSTRUCTIONS:
        raise BadParameter(f"Expected one of {', '.join(CONSTRUCTIONS)}, got {construction!r}.", param_hint="NAME")
    if plot is not None and plot.suffix.lower() != ".svg":
        raise BadParameter(f"Expected a file ending in .svg, got {plot.name!r}.", param_hint="--plot")
    target = None if plot is None else checked_file(plot, "--plot")
    settings = ConstructionSettings(_widths(width, depth), scale, layer, _numbers(input), eps, activation)
    shown = extremal(construction, settings)
    if target is not None:
        write_file(target, extremal_chart(shown), "--plot")
    finish(shown, json=json, written=target, encoding=sys.stdout.encoding)


def _widths(text: str, depth: int | None) -> tuple[int, ...]:
    try:
        given = tuple(int(part) for part in text.split(","))
    except ValueError:
        given = ()
    if not given or min(given) < 1:
        raise BadParameter(f"Expected positive integers such as 16 or 3,4,5, got {text!r}.", param_hint="--width")
    if len(given) == 1:
        return given * ((depth or 20) + 1)
    if depth is not None:
        raise BadParameter(f"The widths {text} have depth {len(given) - 1} already. Leave this option out.",
                           param_hint="--depth")  # fmt: skip
    return given


def _numbers(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise BadParameter(f"Expected numbers separated by commas, got {text!r}.", param_hint="--input") from None
