"""Token-wise maps: their matrix on one token, against the dense matrix of the whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from networks import Lambda, jacobian, points, program_of, seeded
from normscope.lipschitz import tokens
from normscope.lipschitz.tokens import token_axis, token_matrix


@pytest.mark.parametrize(
    ("build", "shape", "width"),
    [
        (lambda: nn.Linear(3, 5), (4, 3), 3),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)), (3, 2, 5), 3),
        (lambda: nn.Sequential(nn.Linear(6, 4), nn.Unflatten(2, (2, 2))), (7, 6), 6),
        (lambda: Lambda(lambda s, x: torch.cat([x, s.a(x)], -1), a=nn.Linear(2, 3)), (5, 2), 2),
        (lambda: nn.Upsample(scale_factor=2, mode="bicubic"), (3, 2, 2), 4),
    ],
)
def test_the_whole_is_identity_times_the_token_matrix(
    build: Callable[[], nn.Module], shape: tuple[int, ...], width: int
) -> None:
    """The singular values of the whole map are those of the token matrix, each as often as there are tokens."""
    model = seeded(build())
    program = program_of(model, points(2, *shape))
    matrix = token_matrix(program.atoms[0], program.outputs[0][1])
    assert matrix is not None
    assert matrix.shape[1] == width
    whole = torch.linalg.svdvals(jacobian(model, points(1, *shape).to(torch.float32).double()))
    count = program.atoms[0].numel // width
    expected = torch.linalg.svdvals(matrix).repeat_interleave(count)
    assert torch.allclose(whole[: len(expected)], expected[: len(whole)], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Conv1d(4, 4, 3),
        lambda: Lambda(lambda s, x: x.mean(1)),
        lambda: Lambda(lambda s, x: x.flatten(1).cumsum(1)),
    ],
)
def test_maps_that_mix_tokens_have_none(build: Callable[[], nn.Module]) -> None:
    """No axis is left along which the map is the same."""
    program = program_of(seeded(build()), points(2, 4, 6))
    found = token_axis(program.atoms[0], program.outputs[0][1])
    if found is not None:  # a mean over tokens still treats features alike
        matrix = token_matrix(program.atoms[0], program.outputs[0][1])
        assert matrix is not None
        assert matrix.shape == (1, 4)


def test_a_matrix_beyond_the_limit_is_not_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is on the sides of the token matrix."""
    program = program_of(seeded(nn.Linear(3, 5)), points(2, 4, 3))
    monkeypatch.setattr(tokens, "LARGEST_MATRIX", 4)
    assert token_matrix(program.atoms[0], program.outputs[0][1]) is None
