"""Token-wise maps: their matrix on one token, against the dense matrix of the whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from networks import Lambda, jacobian, points, program_of, seeded
from normscope.lipschitz import tokens
from normscope.lipschitz.tokens import TokenMatrices, token_axis, token_matrices


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
    matrix = TokenMatrices(0).matrix(program.atoms[0], program.outputs[0][1])
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
        matrix = TokenMatrices(0).matrix(program.atoms[0], program.outputs[0][1])
        assert matrix is not None
        assert matrix.shape == (1, 4)


def test_a_matrix_beyond_the_limit_is_not_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is on the sides of the token matrix."""
    program = program_of(seeded(nn.Linear(3, 5)), points(2, 4, 3))
    monkeypatch.setattr(tokens, "LARGEST_MATRIX", 4)
    assert TokenMatrices(0).matrix(program.atoms[0], program.outputs[0][1]) is None


def _turned(s: Lambda, x: Tensor) -> Tensor:
    """Return rows turned by angles of their own, one half of a row against the other."""
    left, right = x.chunk(2, -1)
    return x * s.c + torch.cat([-right, left], -1) * s.s


TURNS = {"c": torch.linspace(0, 3, 5)[:, None].repeat(1, 6).cos().double()}
TURNS["s"] = (1 - TURNS["c"].square()).sqrt()


@pytest.mark.parametrize(
    ("function", "height"),
    [
        (_turned, 6),
        (lambda s, x: x * s.c, 6),
        (lambda s, x: torch.cat([x, x * s.s], -1), 12),
        (lambda s, x: (x * s.c).reshape(-1, 5, 2, 3), 6),
    ],
)
def test_rows_that_are_treated_otherwise_have_matrices_of_their_own(
    function: Callable[[Lambda, Tensor], Tensor], height: int
) -> None:
    """On the diagonal of the whole map, in order, and nothing beside it."""
    model = Lambda(function, **TURNS)
    program = program_of(model, points(2, 5, 6))
    found = token_matrices(program.atoms[0], program.outputs[0][1])
    assert found is not None
    matrices, stride = found
    assert matrices.shape == (5, height, 6)
    assert stride == height
    assert torch.allclose(torch.block_diag(*matrices), jacobian(model, points(1, 5, 6)), atol=1e-15)


def test_rows_between_other_axes_keep_their_matrices() -> None:
    """Attention puts heads before its tokens: each token's entries lie apart, in the order of the result."""
    model = Lambda(lambda s, x: (x * s.c).unflatten(2, (2, 3)).transpose(1, 2), **TURNS)
    program = program_of(model, points(2, 5, 6))
    found = token_matrices(program.atoms[0], program.outputs[0][1])
    assert found is not None
    matrices, stride = found
    assert stride == 3
    whole = jacobian(model, points(1, 5, 6)).reshape(2, 5, 3, 5, 6)
    for place, matrix in enumerate(matrices):
        assert torch.allclose(matrix, whole[:, place, :, place].reshape(6, 6), atol=1e-15)


@pytest.mark.parametrize("function", [lambda s, x: x.cumsum(1), lambda s, x: x.roll(1, 1)])
def test_mixed_rows_have_none(function: Callable[[Lambda, Tensor], Tensor]) -> None:
    """Neither have moved ones."""
    program = program_of(Lambda(function, **TURNS), points(2, 5, 6))
    assert token_matrices(program.atoms[0], program.outputs[0][1]) is None


def test_too_many_matrices_are_not_formed() -> None:
    """The limit is on their entries."""
    program = program_of(Lambda(_turned, **TURNS), points(2, 5, 6))
    assert token_matrices(program.atoms[0], program.outputs[0][1], most=5 * 6 * 6 - 1) is None


WEIGHT = torch.randn(5, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
ON_TOKENS: dict[str, Callable[[Lambda, Tensor], Tensor]] = {
    "slices": lambda s, x: functional.linear(x, torch.cat([s.w, s.w], 1)).chunk(5, -1)[2],
    "entries turned round": lambda s, x: x.flip(-1),
    "entries negated": lambda s, x: -x.flip(-1),
    "entries repeated": lambda s, x: x[..., 5:].expand(-1, -1, 3),
    "entries among zeros": lambda s, x: functional.pad(x, (1, 2)),
    "heads": lambda s, x: functional.linear(x.reshape(-1, 4, 2, 3), s.w).transpose(-1, -2),
    "factors before and after": lambda s, x: functional.linear(x[..., :3] * s.w[0], s.w) * s.w[:, 1],
    "paths that meet": lambda s, x: functional.linear(x[..., :3], s.w) + functional.linear(x[..., 3:], s.w) * 2,
    "side by side": lambda s, x: torch.cat([x * 3, functional.linear(x[..., 1:4], s.w)], -1),
    "centred": lambda s, x: x - x.mean(-1, keepdim=True),
    "repeated, then multiplied": lambda s, x: functional.linear(x[..., 4:5].expand(-1, -1, 3), s.w),
    "a constant beside it": lambda s, x: torch.cat([x, s.w[0, :2].expand(*x.shape[:-1], 2)], -1),
}


@pytest.mark.parametrize("name", ON_TOKENS)
def test_the_composed_matrix_is_the_jacobian_of_one_token(name: str) -> None:
    """Against autograd, entry by entry."""
    model = Lambda(ON_TOKENS[name], w=WEIGHT)
    program = program_of(model, points(2, 4, 6))
    source, target = program.atoms[0], program.outputs[0][1]
    axis = token_axis(source, target, wanted=(4, 6))
    matrix = TokenMatrices(0).matrix(source, target, axis)
    assert axis is not None
    assert matrix is not None
    whole = jacobian(model, points(1, 4, 6)).reshape(-1, *axis[1], 4, 6)
    assert torch.allclose(matrix, whole[:, 0, :, 0].reshape(-1, 6), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("turned", [False, True])
def test_a_weight_behind_a_layer_norm_takes_its_projection_from_its_own_side(turned: bool) -> None:
    """``W diag(gamma) (I - 11'/n)``, with a transposition between the two as well, and without the weight."""
    norm, layer = seeded(nn.LayerNorm(6)), seeded(nn.Linear(6, 40))
    norm.weight.data.uniform_(0.5, 2.0)
    model = Lambda(lambda s, x: s.layer(s.norm(x).transpose(1, 2) if turned else s.norm(x)), norm=norm, layer=layer)
    program = program_of(model, points(2, 1, 4, 6))
    source, target = program.atoms[-1], program.outputs[0][1]
    scaled = norm.weight.detach().double()[:, None] * (torch.eye(6).double() - 1 / 6)
    whole = TokenMatrices(0).matrix(source, target)
    assert whole is not None
    assert torch.allclose(whole, layer.weight.detach().double() @ scaled, atol=1e-14)
    before = target.inputs[0]
    part = TokenMatrices(0).matrix(source, before)
    assert part is not None
    assert torch.allclose(part, scaled, atol=1e-15)


def test_what_was_composed_is_extended_and_room_is_limited() -> None:
    """A longer map gives the same with and without the matrices of the shorter one; none are kept without room."""
    model = seeded(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 3)))
    program = program_of(model, points(2, 4, 6))
    source, layers = program.atoms[0], program.layers
    kept, empty = TokenMatrices(), TokenMatrices(0)
    for layer in layers:
        first, fresh = kept.matrix(source, layer), empty.matrix(source, layer)
        assert first is not None
        assert fresh is not None
        assert torch.equal(first, fresh)
    assert len(kept._kept) == len(layers)
    assert not empty._kept


def test_a_matrix_without_memory_is_not_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where six copies do not fit, other bounds are used."""
    program = program_of(seeded(nn.Linear(3, 5)), points(2, 4, 3))
    monkeypatch.setattr(tokens, "SMALL_MATRIX", 1)
    monkeypatch.setattr(tokens, "available", lambda: 6 * 8 * 15.0)
    assert TokenMatrices(0).matrix(program.atoms[0], program.outputs[0][1]) is None
