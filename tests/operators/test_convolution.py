"""Convolutions as torch computes them: every setting, weights and channels of all arrangements."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from networks import points, upper_of
from normscope.operators import convolution
from normscope.operators.convolution import convolved_stack, stack_layout
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


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _settings(
    weight: Tensor,
    stride: tuple[int, ...] = (1, 1),
    padding: tuple[tuple[int, int], ...] = ((0, 0), (0, 0)),
    dilation: tuple[int, ...] = (1, 1),
) -> dict[str, Any]:
    rest = {"groups": 1, "transposed": False, "output_padding": (0, 0)}
    return {"weight": weight, "stride": stride, "padding": padding, "dilation": dilation, **rest}


@pytest.mark.parametrize("block", [1, 300, 2**16])
def test_it_is_the_convolution_of_torch(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "BLOCK", block)
    monkeypatch.setattr(convolution, "WASTE", 10.0)
    taken = 0
    cases = itertools.product([(1, 1), (3, 2), (4, 3)], [(1, 1), (2, 1), (3, 2)], [0, 1, 2], [1, 2])
    for kernel, stride, pad, dilation in cases:
        z, w = _normal(11, 3, 7, 6), _normal(2, 3, *kernel, seed=1)
        data = _settings(w, stride, ((pad, 1), (0, pad)), (dilation, dilation))
        wide = torch.nn.functional.pad(z, (0, pad, pad, 1))
        expected = torch.nn.functional.conv2d(wide, w, stride=stride, dilation=dilation)
        if stack_layout(data, 11, (7, 6)) is not None:
            taken += 1
            torch.testing.assert_close(convolved_stack(data, z), expected, rtol=1e-13, atol=1e-13)
    assert taken > 40


def test_few_images_and_large_kernels_are_left_to_torch() -> None:
    assert stack_layout(_settings(_normal(2, 1, 3, 3)), 9, (9, 9)) is not None
    assert stack_layout(_settings(_normal(2, 1, 3, 3)), 7, (9, 9)) is None
    assert stack_layout(_settings(_normal(2, 1, 9, 9)), 100, (5, 5)) is None
    assert stack_layout(_settings(_normal(2, 1, 3)), 100, (5,)) is None
