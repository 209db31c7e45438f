"""MNIST and Fashion-MNIST: where their four idx files lie."""

from pathlib import Path

from normscope.zoo.data.idx import IdxImages
from normscope.zoo.data.locate import checked_split, first_folder, roots

_FOLDERS = {
    "mnist": ("", "mnist", "MNIST/raw"),
    "fashion-mnist": ("", "fashion-mnist", "FashionMNIST/raw"),
}
#: Where distributions install the files.
_SYSTEM = Path("/usr/share/datasets")
_HOW = {
    "mnist": "Download the four files of https://storage.googleapis.com/cvdf-datasets/mnist/ into one of them",
    "fashion-mnist": (
        "Install the Debian package dataset-fashion-mnist, or download the four files of "
        "https://github.com/zalandoresearch/fashion-mnist into one of them"
    ),
}


def _pairs(split: str) -> list[list[str]]:
    """Return the names the image and label files may have, plain files first."""
    part = "train" if split == "train" else "t10k"
    return [
        [f"{part}-images{dot}idx3-ubyte{ending}", f"{part}-labels{dot}idx1-ubyte{ending}"]
        for ending in ("", ".gz")
        for dot in ("-", ".")
    ]


def mnist(name: str = "mnist", root: str | Path | None = None, split: str = "test") -> IdxImages:
    """Return MNIST or Fashion-MNIST from the first folder that has it.

    Args:
        name: ``"mnist"`` or ``"fashion-mnist"``.
        root: a folder with the files, or with a folder of them.
        split: ``"train"`` (60,000 images) or ``"test"`` (10,000).

    >>> mnist(root="/nowhere")
    Traceback (most recent call last):
    normscope.core.errors.InputError: mnist not found. Looked in /nowhere, ...
    """
    checked_split(split, ("train", "test"))
    folders = [place / folder for place in roots(root) for folder in _FOLDERS[name]]
    if root is None:
        folders.append(_SYSTEM / name)
    pairs = _pairs(split)
    folder = first_folder(name, folders, pairs, _HOW[name])
    images, labels = next(pair for pair in pairs if all((folder / file).is_file() for file in pair))
    return IdxImages(folder / images, folder / labels)
