"""``normscope reproduce``: reproduce a figure or an experiment of a paper, and compare its claims with measurements."""

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from normscope.cli import options
from normscope.cli.console import Stages, guarded, json_text, show
from normscope.cli.output_files import checked_folder, writing


@guarded
def reproduce(
    figure: Annotated[
        str,
        Argument(
            metavar="NAME",
            help="fig1 to fig3, geometry1 to geometry4, wn-depth, wn-width, wn-convergence, wn-activation, theorem-20, "
            "surrogate or ranking.",
            show_default=False,
        ),
    ],
    scale: Annotated[
        str,
        Option(
            help="Scale: smoke (a minute, digits), laptop (half an hour, CIFAR-10); for figures also long (hours: 100 "
            "epochs, ResNet-18 at a quarter of its width) or paper (100 epochs of the full networks, days)."
        ),
    ] = "laptop",
    data_root: Annotated[Path | None, Option(help="Folder of the data set, CIFAR-10 or MNIST.")] = None,
    out: Annotated[Path, Option(help="Folder for runs and figures.")] = Path("normscope-reproduce"),
    seed: Annotated[
        int, Option(min=0, max=options.LARGEST_SEED, help="Random seed of the weights and the data order.")
    ] = 0,
    no_certify: Annotated[bool, Option("--no-certify", help="Skip the certified constants.")] = False,
    json: Annotated[bool, Option("--json", help="Print the claims and measurements as JSON.")] = False,
    quiet: options.Quiet = False,
) -> None:
    """Reproduce a FIGURE or experiment of a paper, draw it, and say which claims are confirmed.

    Figures can be stopped at any time: the same command resumes where it stopped.
    """
    folder = checked_folder(out)
    try:
        with Stages(quiet=quiet, lines=not json) as stages, writing(folder):
            from normscope.report.reproduction import reproduce as reproduced

            done = reproduced(
                figure, scale, out=folder, data_root=data_root, seed=seed, certify=not no_certify, progress=stages
            )
    except KeyboardInterrupt:
        print("normscope: finished epochs are kept; the same command resumes from there", file=sys.stderr)
        raise
    if json:
        print(json_text(done.facts))
    elif not quiet:
        from normscope.report.reproduction import evidence_section

        show([evidence_section(figure, scale, done.evidence)])
        print("\nopen:")
        for path in done.files:
            print(f"  {path}")
