"""Convolutions as torch computes them: every setting, weights and channels of all arrangements."""

from __future__ import annotations

import itertools
import math
import warnings

import pytest
import torch
import torch.nn.functional as F

from networks import points, upper_of
from operators.refute import linear, program, refuted

SETTINGS = [
    {"stride": s, "padding": p, "dilation": d, "groups": g}
    for s, p, d, g in itertools.product((1, 2), (0, 1), (1, 2), (1, 2))
]


@pytest.mark.turns(3)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_two_axes(settings: dict[str, int]) -> None:
    """Stride, padding, dilation and groups together."""
    weight, bias = points(4, 4 // settings["groups"], 2, 3), points(4, seed=1)
    linear((lambda x: F.conv2d(x, weight, bias, **settings), (4, 5, 6), None))


@pytest.mark.parametrize("output_padding", [0, 1])
@pytest.mark.parametrize("groups", [1, 2])
def test_transposed(groups: int, output_padding: int) -> None:
    """The adjoint of a strided convolution."""
    weight = points(4, 2, 3, 3)
    linear((
        lambda x: F.conv_transpose2d(x, weight, None, 2, 1, output_padding, groups), (4, 3, 3), None
    ))  # fmt: skip


def test_one_and_three_axes() -> None:
    """The same rules along any number of axes."""
    line, space = points(3, 2, 4), points(2, 1, 2, 2, 2)
    linear((lambda x: F.conv1d(x, line, padding=2), (2, 7), None))
    linear((lambda x: F.conv3d(x, space), (1, 3, 4, 3), None))


@pytest.mark.parametrize("word", ["same", "valid"])
def test_padding_by_name(word: str) -> None:
    """An odd kernel is padded evenly."""
    weight = points(2, 2, 3)
    linear((lambda x: F.conv1d(x, weight, padding=word), (2, 6), None))


def test_an_even_kernel_of_the_same_size() -> None:
    """One more zero at the end; against the dense matrix of the padded convolution."""
    weight = points(2, 2, 4)
    padded = refuted(lambda x: F.conv1d(F.pad(x, (1, 2)), weight), 2, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it copies the input
        found = upper_of(program(lambda x: F.conv1d(x, weight, padding="same"), 2, 6))
    assert found == pytest.approx(math.exp(padded.upper["everywhere"]), rel=1e-9)


def test_a_kernel_that_depends_on_the_input() -> None:
    """Dynamic convolutions are listed, not guessed."""
    found = program(lambda x: F.conv1d(x, x.mean(0, keepdim=True)), 2, 6)
    assert len(found.opaque) == 1
    assert not found.opaque[0].atom.known


def test_a_box_kernel() -> None:
    """The closed form of the second difference on n points: 1 + 2 cos(pi / (n + 1))."""
    linear((lambda x: F.conv1d(x, torch.ones(1, 1, 3).double(), padding=1), (1, 9), 1 + 2 * math.cos(math.pi / 10)))
