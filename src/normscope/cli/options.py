"""Options shared by several verbs, each declared once."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

#: How a model is named.
MODEL = (
    "FILE.py:factory, package.module:factory, zoo:NAME, hf:DIR, timm:NAME, torchvision:NAME, with arguments as in "
    "'zoo:relu10[norm=bn]'"
)
Model = Annotated[str, Argument(metavar="MODEL", help=MODEL, show_default=False)]
#: Generators take 64 bits; seeds made from this one stay within them.
LARGEST_SEED = 2**63 - 1

WeightsFile = Annotated[Path | None, Option(help="State dict (.safetensors, .pt) for the model.")]
DataName = Annotated[
    str | None,
    Option(help="digits, mnist, fashion-mnist, cifar10, or a tensor file (.npy, .npz, .pt, .safetensors)."),
]
DataRoot = Annotated[Path | None, Option(help="Folder of named data sets.")]
Split = Annotated[str, Option(help="Split of a named data set: test or train.")]
Limit = Annotated[int | None, Option(min=1, help="Use at most this many samples.")]
Normalize = Annotated[str | None, Option(help="Scaling of the inputs: unit, raw, or a preset such as imagenet.")]
InputShape = Annotated[str | None, Option("--input", help="Shape of one input, e.g. 3,224,224.")]
Mode = Annotated[str, Option(help="BatchNorm statistics: running, batch or frozen-batch.")]
Tolerance = Annotated[
    float | None, Option(help="Relative accuracy of each norm.", show_default="depends on the size of the network")
]
Out = Annotated[Path | None, Option(help="Folder for the results.", show_default="a new folder in normscope-runs")]
Seed = Annotated[int, Option(min=0, max=LARGEST_SEED, help="Random seed.")]
Device = Annotated[str | None, Option(help="Device, such as cpu or cuda.")]
ReportFile = Annotated[Path | None, Option(help="File for the HTML report.", show_default="report.html in --out")]
NoReport = Annotated[bool, Option("--no-report", help="Write no HTML report.")]
Json = Annotated[bool, Option("--json", help="Print only the result, as JSON.")]
PlainJson = Annotated[bool, Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print only errors.")]
Everything = Annotated[bool, Option("--all", help="Show every row of every table.")]


def split_commas(text: str | None) -> list[str]:
    """Return the parts of a list written with commas; blanks and empty parts do not count.

    >>> split_commas("a, b,,c"), split_commas(None)
    (['a', 'b', 'c'], [])
    """
    return [part.strip() for part in (text or "").split(",") if part.strip()]
