"""``normscope demo``: the papers' network with and without BatchNorm, trained on digits, analyzed side by side."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from normscope.cli import options
from normscope.cli.analyze import FILE, REPORT, write_page
from normscope.cli.console import Stages, guarded, show
from normscope.cli.loading import Inputs
from normscope.cli.output_files import checked_file, checked_folder, save, write_file

if TYPE_CHECKING:
    from torch import nn

    from normscope.core.result import Result
    from normscope.report.analysis import Facts
    from normscope.report.table import Section

#: Column of the comparison and folder of the result, and the normalizer it stands for.
VARIANTS = {"plain": "none", "batchnorm": "bn"}
SUMMARY = "summary.txt"
WIDTH = 128
EPOCHS = 20
#: Radii around held-out digits within which the constants are certified.
RADII = (0.003, 0.01)
#: Shown below the table.
READING = (
    "'within 0.01 of 95 % of inputs': certified around held-out digits; holds for 95 % of digits like them with "
    "confidence 99 %: there the output moves at most this many times as far as the input",
    "on all inputs the true Lipschitz constant lies between 'attained' and 'certified'",
    "products of max 1/sigma change when weights are rescaled although the network does not: compare the product of "
    "folded layers instead",
    "'without normalizers' uses the same weights with BatchNorm removed: a different function, which was not trained",
    "formulas printed in papers for these networks are on the page",
)


@guarded
def demo(
    out: Annotated[Path, Option(help="Folder for the results.")] = Path("normscope-demo"),
    seed: options.Seed = 0,
    width: Annotated[int, Option(min=2, help="Width of the hidden layers.")] = WIDTH,
    epochs: Annotated[int, Option(min=1, help="Number of training epochs.")] = EPOCHS,
    quiet: options.Quiet = False,
) -> None:
    """Train the papers' ten-layer network without and with BatchNorm on digits, and compare both side by side.

    Writes a report to open in a browser. The digits come with the package; nothing is downloaded. Results go to
    the folder given by --out.
    """
    from normscope.report.analysis import verdict_section
    from normscope.report.table import Section, plain_text

    folder = checked_folder(out)
    for place in (folder, *(folder / name for name in VARIANTS)):
        checked_file(place / FILE)
    checked_file(folder / SUMMARY)
    checked_file(folder / REPORT)
    with Stages(quiet=quiet) as stages, one_thread():
        results, section, facts = compare(stages, seed=seed, width=width, epochs=epochs)
    written = [save(result, folder / name / FILE) for name, result in results.items()]
    written.append(save(results["batchnorm"], folder / FILE))
    verdicts = [verdict_section(result, name) for name, result in results.items()]
    introduction = (
        f"ten linear layers, {width} wide, ReLU, without and with BatchNorm; the same initial weights (seed {seed}), "
        f"{epochs} epochs on 1437 digits, analyzed on the 360 held out"
    )
    first = Section("Normscope demo", sentences=(introduction,))
    sections = [first, *verdicts, section, Section("how to read it", sentences=READING)]
    summary = plain_text(sections)
    written.append(write_file(folder / SUMMARY, summary + "\n"))
    title = "The same network without and with BatchNorm"
    page = write_page(results, folder / REPORT, "--out", facts=facts, title=title)
    if quiet:
        return
    show(sections)
    print("\nwritten:")
    for path in written:
        print(f"  {path}")
    print(f"\nopen in a browser:\n  {page}")


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread inside the block: sums then have one order, so a seed gives the same digits on any machine.

    Networks this small gain nothing from more.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def compare(stages: Stages, *, seed: int, width: int, epochs: int) -> tuple[dict[str, Result], Section, Facts]:
    """Train and analyze both variants; return the results, the table that compares them, and its additional rows."""
    from normscope.analysis import analyze
    from normscope.doctor import check
    from normscope.papers.study import labelled_data
    from normscope.report.analysis import compare_section
    from normscope.zoo.data.load import load_data
    from normscope.zoo.train import accuracy

    held_out = load_data("digits", split="test")
    results: dict[str, Result] = {}
    accuracies: list[str] = []
    for name, norm in VARIANTS.items():
        model = _trained(norm, stages, name, seed=seed, width=width, epochs=epochs)
        accuracies.append(f"{100 * accuracy(model, *labelled_data('digits', None, 'test')):.1f} %")
        title = f"zoo:relu10[norm={norm},width={width},in_features=64]"
        say = stages.about(name)
        result = analyze(model, Inputs(held_out), name=title, seed=seed, progress=say, radius=RADII)
        source = {"name": held_out.name, "split": "test", "samples": len(held_out)}
        findings = check(model, Inputs(held_out), name=title, seed=seed, progress=say).findings
        results[name] = replace(result, input=result.input | {"source": source}, findings=findings)
    facts = {"accuracy on held-out digits": accuracies}
    return results, compare_section(results, facts), facts


def _trained(norm: str, stages: Stages, name: str, *, seed: int, width: int, epochs: int) -> nn.Module:
    import torch

    from normscope.papers.study import labelled_data
    from normscope.zoo import catalogue as zoo
    from normscope.zoo.train import he_normal_, train

    model = zoo.build("relu10", seed=seed, norm=norm, width=width, in_features=64)
    he_normal_(model, torch.Generator().manual_seed(seed))
    train(
        model,
        *labelled_data("digits", None, "train"),
        epochs=epochs,
        seed=seed,
        progress=lambda epoch, loss: stages(f"{name}, training: epoch {epoch} of {epochs}, loss {loss:.4g}"),
    )
    return model.eval()
