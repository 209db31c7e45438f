"""The digits that come with the package: 1797 images of 8x8 pixels with values 0 to 16.

They are the test set of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (1998), UCI Machine
Learning Repository, https://doi.org/10.24432/C50P49, under the licence CC BY 4.0
(https://creativecommons.org/licenses/by/4.0/); the numbers are unchanged, stored as bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

import numpy as np
import torch

from normscope.zoo.data.locate import checked_split
from normscope.zoo.data.source import Block

TOP = 16.0
#: The first images are for training.
TRAINING = 1437


@dataclass(frozen=True)
class Digits:
    """Images (n, 1, 8, 8) of small integers and their labels; all of them take 115 kB."""

    images: np.ndarray
    marks: np.ndarray
    shape: tuple[int, ...] = (1, 8, 8)
    labelled: bool = True

    @property
    def count(self) -> int:
        """Number of images."""
        return len(self.marks)

    def blocks(self, size: int) -> Iterator[Block]:
        """Yield images and their labels."""
        for start in range(0, self.count, size):
            images = self.images[start : start + size, None]
            marks = self.marks[start : start + size].astype(np.int64)
            yield torch.from_numpy(images.copy()), torch.from_numpy(marks)


def digits(split: str = "test") -> Digits:
    """Return the embedded digits.

    >>> digits("train").count, digits("test").count
    (1437, 360)
    """
    checked_split(split, ("train", "test", "all"))
    with resources.files("normscope.zoo.data").joinpath("digits.npz").open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        images, marks = archive["images"], archive["labels"]
    part = {"train": slice(0, TRAINING), "test": slice(TRAINING, None), "all": slice(None)}[split]
    return Digits(images[part], marks[part])
