"""``normscope reproduce``: a figure of the paper, trained and drawn again, with its claims beside what was measured."""

from __future__ import annotations

import contextlib
import json as json_module
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscope.cli.console import Stages, guarded, show
from normscope.cli.options import LARGEST_SEED, Quiet
from normscope.cli.specification import checked_folder, writing
from normscope.cli.streams import aside

if TYPE_CHECKING:
    from normscope.papers.than2025.figures.evidence import Evidence


@guarded
def reproduce(
    figure: Annotated[str, typer.Argument(help="fig1, fig2 or fig3 of Than 2025.", show_default=False)],
    scale: Annotated[
        str, typer.Option(help="smoke (a minute, digits), laptop (half an hour, CIFAR-10) or paper (100 epochs).")
    ] = "laptop",
    data_root: Annotated[Path | None, typer.Option(help="Folder of CIFAR-10.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for runs and figures.")] = Path("normscope-reproduce"),
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Seed of weights and order.")] = 0,
    no_certify: Annotated[bool, typer.Option("--no-certify", help="Skip the certified constants.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the claims and measurements as JSON.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train the networks of a FIGURE, record what it shows, draw it, and say where the paper is borne out.

    Stop it at any time: the same command goes on where it stopped. Figures of one scale share their runs.
    """
    folder = checked_folder(out)
    progress = Stages(quiet=quiet, lines=not json)
    with aside(), _resumable(), progress as stages:
        body, evidence, written = run(figure, scale, folder, stages, root=data_root, seed=seed, certify=not no_certify)
    if json:
        print(json_module.dumps(body, indent=1, allow_nan=False))
    elif not quiet:
        from normscope.report.evidence import evidence_section

        show([evidence_section(figure, scale, evidence)])
        print("\nopen:")
        for path in written:
            print(f"  {path}")


@contextlib.contextmanager
def _resumable() -> Iterator[None]:
    """Say that stopping loses little."""
    try:
        yield
    except KeyboardInterrupt:
        print("normscope: whole epochs are kept; the same command goes on from there", file=sys.stderr)
        raise


def run(
    figure: str, scale: str, folder: Path, stages: Stages, *, root: Path | None, seed: int, certify: bool
) -> tuple[dict[str, Any], list[Evidence], list[Path]]:
    """Train what is missing, draw and collect the evidence.

    Args:
        figure: which.
        scale: how large.
        folder: for runs and figures.
        stages: called with a line of text at each step.
        root: where the data lie.
        seed: of everything random.
        certify: bound the networks at start and end.

    Returns:
        The JSON form, the evidence, and the files written.
    """
    stages("loading torch")
    from normscope.core.files import write_text
    from normscope.papers.than2025.figures.record import record
    from normscope.papers.than2025.figures.reproduction import evidence_of, facts
    from normscope.papers.than2025.figures.setting import settings_of
    from normscope.report.plot import figure_class

    settings = settings_of(figure, scale, seed)
    figure_class()  # a missing matplotlib is told before half an hour of training
    from normscope.report.figures import draw

    place = folder / f"{scale}-{seed}"
    runs = {s.name: record(s, place / s.name, root=root, progress=stages, certify=certify) for s in settings}
    evidence = evidence_of(figure, runs, place)
    body = facts(figure, scale, settings, evidence, certify=certify, located=root is not None)
    stages("drawing")
    drawn = draw(figure, runs)
    pictures = [place / f"{figure}.{ending}" for ending in ("png", "svg")]
    facts_file = place / f"{figure}.json"
    with writing(place):
        for file in pictures:
            drawn.savefig(file, dpi=150)
        write_text(facts_file, json_module.dumps(body, indent=1, allow_nan=False) + "\n")
    return body, evidence, [*pictures, facts_file]
