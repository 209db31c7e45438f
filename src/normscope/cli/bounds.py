"""``normscope bounds``: every generalization bound of a classifier next to its true gap."""

from pathlib import Path
from typing import Annotated

from typer import Option

from normscope.cli import options
from normscope.cli.analyze import write_page
from normscope.cli.console import Stages, finish, guarded
from normscope.cli.loading import Named, load
from normscope.cli.output_files import checked_folder, save
from normscope.core.errors import InputError

_DATA = "digits, mnist, fashion-mnist, cifar10 (its {0} split), or a tensor file with labels."
FILE, PAGE = "bounds.json", "bounds.html"


@guarded
def bounds(
    model: options.Model,
    train: Annotated[str, Option(help="Training data: " + _DATA.format("train"), show_default=False)],
    test: Annotated[str, Option(help="Test data: " + _DATA.format("test"), show_default=False)],
    weights: options.WeightsFile = None,
    data_root: options.DataRoot = None,
    normalize: options.Normalize = None,
    limit: options.Limit = None,
    delta: Annotated[float, Option(help="Failure probability of each certificate.")] = 0.05,
    loss: Annotated[str, Option(help="Loss for Theorem 20: ramp, probability or cross-entropy.")] = "ramp",
    clip: Annotated[float | None, Option(help="Smallest probability used in cross-entropy.")] = None,
    box: Annotated[
        str | None, Option(help="Range LOW,HIGH of the inputs, known before the data; not needed for pixels.")
    ] = None,
    tuned_on_test: Annotated[bool, Option("--tuned-on-test", help="The test data was used for tuning.")] = False,
    mode: options.Mode = "running",
    posterior: Annotated[
        float, Option(min=0, help="Seconds to train a randomized network of this architecture for its bound.")
    ] = 0.0,
    only: Annotated[str | None, Option(help="Show only these rows, separated by semicolons.")] = None,
    out: Annotated[
        Path | None, Option(help=f"Folder for {FILE} and {PAGE}; the same command resumes where it stopped.")
    ] = None,
    seed: options.Seed = 0,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compute every generalization bound of a classifier next to the truth.

    Each row says whether the bound is vacuous and whether it is certified. Bounds that do not apply are refused, with
    the reason. The first row, from test samples alone, is the one to beat.
    """
    folder = None if out is None else checked_folder(out)
    region = None if box is None else _ends(box)
    with Stages(quiet=quiet, lines=not json) as stages:
        from normscope.analysis.bounds.run import bounds as computed
        from normscope.zoo.data.load import load_data

        loaded = load(Named(model, weights, train, data_root, "train", limit, normalize, None), seed, stages)
        other = load_data(test, data_root, "test", limit, normalize=normalize)
        with loaded.home.open():
            found = computed(
                loaded.model,
                train=loaded.data,
                test=other,
                delta=delta,
                loss=loss,
                clip=clip,
                box=region,
                tuned_on_test=tuned_on_test,
                mode=mode,
                posterior=posterior,
                only=None if only is None else [name.strip() for name in only.split(";")],
                folder=None if folder is None else folder / "kept",
                name=model,
                seed=seed,
                progress=stages,
            )
    page = None
    if folder is not None:
        save(found, folder / FILE)
        page = write_page({}, folder / PAGE, "--out", panels=[found])
    finish(found, json=json, quiet=quiet, page=page)


def _ends(text: str) -> tuple[float, float]:
    try:
        low, high = map(float, options.split_commas(text))
    except ValueError:
        raise InputError(f"Expected --box LOW,HIGH, two numbers, got {text!r}.") from None
    return low, high
