"""The digits that come with the package: 1797 images of 8x8 pixels with values 0 to 16.

They are the test set of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (1998), UCI Machine
Learning Repository, https://doi.org/10.24432/C50P49, under the licence CC BY 4.0
(https://creativecommons.org/licenses/by/4.0/); the numbers are unchanged, stored as bytes.
"""

from importlib import resources

import numpy as np

from normscope.zoo.data.locate import checked_split
from normscope.zoo.data.source import Records

TOP = 16.0
#: The first images are for training.
TRAINING = 1437


def digits(split: str = "test") -> Records:
    """Return the embedded digits: images (n, 1, 8, 8) of small integers and their labels.

    >>> digits("train").count, digits("test").count
    (1437, 360)
    """
    checked_split(split, ("train", "test", "all"))
    with resources.files("normscope.zoo.data").joinpath("digits.npz").open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        images, labels = archive["images"], archive["labels"]
    part = {"train": slice(0, TRAINING), "test": slice(TRAINING, None), "all": slice(None)}[split]
    return Records(images[part, None], labels[part].astype(np.int64))
