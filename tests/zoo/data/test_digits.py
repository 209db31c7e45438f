"""The embedded digits against what their authors say of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from normscope.core.errors import InputError
from normscope.zoo.data.digits import digits
from normscope.zoo.data.load import load_data


def test_published_counts() -> None:
    """1797 images of values 0 to 16, with the classes' published sizes."""
    records = digits("all")
    images, labels = records.part(0, records.count)
    assert images.shape == (1797, 1, 8, 8)
    assert (int(images.min()), int(images.max())) == (0, 16)
    assert torch.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_first_image_is_the_repositorys_first_line() -> None:
    """The zero that everybody knows, row by row."""
    rows = ["0 0 5 13 9 1 0 0", "0 0 13 15 10 15 5 0", "0 3 15 2 0 11 8 0", "0 4 12 0 0 8 8 0"]
    rows += ["0 5 8 0 0 9 8 0", "0 4 11 0 1 12 7 0", "0 2 14 5 10 12 0 0", "0 0 6 13 10 0 0 0"]
    assert digits("all").inputs[0, 0].tolist() == [[int(value) for value in row.split()] for row in rows]
    assert digits("all").labels[:5].tolist() == [0, 1, 2, 3, 4]


def test_splits_share_no_image() -> None:
    """Together they are all."""
    train, test = digits("train"), digits("test")
    np.testing.assert_array_equal(np.concatenate([train.labels, test.labels]), digits("all").labels)
    with pytest.raises(InputError, match="train, test, all, got 'valid'"):
        digits("valid")


def test_values_are_scaled_to_one() -> None:
    """Sixteen is white."""
    inputs = load_data("digits", split="all").tensors().inputs
    assert (float(inputs.min()), float(inputs.max())) == (0.0, 1.0)
    assert load_data("digits", normalize="raw").tensors().inputs.max() == 16
