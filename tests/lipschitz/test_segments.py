"""Norms of linear segments against the dense singular values of the same map, built by autograd."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from networks import Lambda, jacobian_norm, points, program_of, seeded
from normscope.linalg import dense
from normscope.linalg.bounds import NormBounds
from normscope.lipschitz import segments
from normscope.lipschitz.segments import Effort, SegmentNorms
from normscope.operators.expression import Expr, LinearOp, atom_expr, linear

Model = Callable[[], nn.Module]


def _rotary(x: Tensor) -> Tensor:
    """Rotary position embedding of (batch, tokens, 4)."""
    angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * torch.tensor([1.0, 0.1], dtype=torch.float64)
    cosine, sine = (torch.cat([t, t], -1).to(x) for t in (angles.cos(), angles.sin()))
    half = x.shape[-1] // 2
    return x * cosine + torch.cat([-x[..., half:], x[..., :half]], -1) * sine


def _noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5))


def _conv(*args: int, **settings: object) -> nn.Conv2d:
    return nn.Conv2d(*args, **settings)  # type: ignore[arg-type]


SEGMENTS: dict[str, tuple[Model, tuple[int, ...]]] = {
    "convolution, batch norm, pool, linear": (
        lambda: nn.Sequential(
            _conv(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(27, 5)
        ),
        (2, 6, 6),
    ),
    "x + convolution": (lambda: Lambda(lambda s, x: x + s.c(x), c=_conv(3, 3, 3, padding=1)), (3, 6, 6)),
    "another matrix for each token": (
        lambda: Lambda(lambda s, x: torch.einsum("ntj,tij->nti", x, s.w) + x, w=nn.Parameter(_noise(7, 4, 4))),
        (7, 4),
    ),
    "powers of two around a matrix": (lambda: Lambda(lambda s, x: s.a(4 * x) * 8, a=nn.Linear(5, 4)), (5,)),
    "powers of two around a permutation": (
        lambda: Lambda(lambda s, x: s.a((4 * x).flip(1) * 2), a=nn.Linear(5, 4)),
        (5,),
    ),
    "x + x": (lambda: Lambda(lambda s, x: x + x), (5,)),
    "side by side": (
        lambda: Lambda(lambda s, x: torch.cat([s.a(x), s.b(x)], -1), a=nn.Linear(5, 4), b=nn.Linear(5, 3)),
        (5,),
    ),
    "side by side, then linear": (
        lambda: Lambda(
            lambda s, x: s.c(torch.cat([s.a(x), s.b(x)], -1)), a=nn.Linear(5, 4), b=nn.Linear(5, 3), c=nn.Linear(7, 6)
        ),
        (5,),
    ),
    "1x1 after 1x1": (lambda: nn.Sequential(_conv(4, 6, 1), _conv(6, 3, 1)), (4, 7, 5)),
    "1x1, batch norm, 1x1": (lambda: nn.Sequential(_conv(4, 6, 1), nn.BatchNorm2d(6), _conv(6, 3, 1)), (4, 7, 5)),
    "two linear maps per token": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4)), (9, 6)),
    "many tokens": (lambda: nn.Sequential(nn.Linear(16, 24), nn.Linear(24, 16)), (90, 16)),
    "tokens side by side": (lambda: Lambda(lambda s, x: torch.cat([x, s.a(x)], -1), a=nn.Linear(6, 8)), (9, 6)),
    "heads": (
        lambda: Lambda(lambda s, x: s.a(x).unflatten(-1, (2, 3)).transpose(1, 2), a=nn.Linear(4, 6)),
        (5, 4),
    ),
    "rotary after linear": (lambda: Lambda(lambda s, x: _rotary(s.a(x)), a=nn.Linear(4, 4)), (7, 4)),
    "broadcast outer sum": (
        lambda: Lambda(lambda s, x: x[:, None, :] + s.a(x)[:, :, None], a=nn.Linear(4, 4)),
        (4,),
    ),
    "reflection padding": (lambda: nn.Sequential(nn.ReflectionPad2d(1), _conv(2, 3, 3)), (2, 6, 6)),
    "reflect mode": (lambda: _conv(2, 3, 3, padding=1, padding_mode="reflect"), (2, 6, 6)),
    "circular mode": (lambda: _conv(2, 3, 3, padding=1, padding_mode="circular"), (2, 6, 6)),
    "replicate mode": (lambda: _conv(2, 3, 3, padding=1, padding_mode="replicate"), (2, 6, 6)),
    "circular mode, batch norm": (
        lambda: nn.Sequential(_conv(2, 3, 3, padding=1, padding_mode="circular"), nn.BatchNorm2d(3)),
        (2, 6, 6),
    ),
    "groups and stride": (lambda: _conv(4, 6, 3, groups=2, stride=2), (4, 7, 7)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 2, 3, stride=2, padding=1, output_padding=1), (3, 4, 4)),
    "dilated": (lambda: _conv(2, 2, 3, dilation=2, padding=2), (2, 7, 7)),
    "one axis": (lambda: nn.Conv1d(2, 3, 4, stride=2), (2, 11)),
    "three axes": (lambda: nn.Conv3d(1, 2, 2), (1, 3, 4, 3)),
    "two convolutions": (lambda: nn.Sequential(_conv(2, 3, 3, padding=1), _conv(3, 2, 3, padding=1)), (2, 8, 8)),
    "mean over space": (lambda: Lambda(lambda s, x: x.mean((2, 3))), (3, 4, 4)),
    "cumulative sum": (lambda: Lambda(lambda s, x: x.cumsum(-1)), (7,)),
    "differences": (lambda: Lambda(lambda s, x: x.diff(dim=-1)), (7,)),
    "slice of linear": (lambda: Lambda(lambda s, x: s.a(x)[:, 1:3], a=nn.Linear(5, 4)), (5,)),
    "difference to a roll": (lambda: Lambda(lambda s, x: s.a(x) - s.a(x).roll(1, -1), a=nn.Linear(5, 4)), (5,)),
    "bilinear": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (2, 5, 5)),
    "bicubic": (lambda: nn.Upsample(scale_factor=2, mode="bicubic"), (1, 5, 5)),
    "pixel shuffle": (lambda: nn.Sequential(_conv(1, 4, 3), nn.PixelShuffle(2)), (1, 5, 5)),
    "matrix from the left": (lambda: Lambda(lambda s, x: s.m @ x, m=points(3, 5)), (5, 4)),
    "one matrix per head": (
        lambda: Lambda(lambda s, x: torch.einsum("bhk,hkm->bhm", x, s.m), m=points(3, 5, 2)),
        (3, 5),
    ),
    "copies": (lambda: Lambda(lambda s, x: x.repeat(1, 3)), (4,)),
    "index with repeats": (lambda: Lambda(lambda s, x: x[:, [0, 0, 1]]), (4,)),
    "windows": (lambda: Lambda(lambda s, x: functional.unfold(x, 2)), (2, 4, 4)),
    "mixed by a mask": (lambda: Lambda(lambda s, x: torch.where(s.m > 0, x, x.flip(1)), m=points(4)), (4,)),
    "shared twice": (lambda: Lambda(lambda s, x: s.a(s.a(x)), a=nn.Linear(4, 4)), (4,)),
}


def _measured(model: nn.Module, shape: tuple[int, ...], effort: Effort | None = None) -> NormBounds:
    """Return the norm of a linear model from its input to its output."""
    program = program_of(model, points(2, *shape))
    ((_, target),) = program.outputs
    return SegmentNorms(effort).norm(program.atoms[0], target)


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", SEGMENTS)
def test_a_segment_is_one_operator(name: str) -> None:
    """Whatever linear operations lie between two atoms, their norm is that of the one dense matrix they make."""
    build, shape = SEGMENTS[name]
    model = seeded(build())
    dtype = next((t.dtype for t in (*model.parameters(), *model.buffers())), torch.float32)
    truth = jacobian_norm(model, points(1, *shape).to(dtype).double())
    bounds = _measured(model, shape)
    assert bounds.lower <= truth * (1 + 1e-12)
    assert truth <= bounds.upper * (1 + 1e-13)
    assert bounds.upper == pytest.approx(truth, rel=1e-6)
    assert bounds.lower == pytest.approx(truth, rel=1e-6)
    assert bounds.delta == 0.0


def test_what_cancels_is_zero() -> None:
    """``x - x`` is the zero map, and so is a difference of two calls of one layer up to its rounding."""
    assert _measured(Lambda(lambda s, x: x - x), (5,)).log_upper == -math.inf
    twice = seeded(Lambda(lambda s, x: s.a(x) - s.a(x), a=nn.Linear(4, 3)))
    assert _measured(twice, (4,)).upper < 1e-14


@pytest.mark.parametrize("size", [2.0**20, 1e8, 1e13, 1e15])
def test_cancellation_never_hides_the_rest(size: float) -> None:
    """``size x - (size - 1) x`` is x: the certificate stays above one, and within the rounding of the two paths."""
    model = seeded(Lambda(lambda s, x: s.a(x) * size - s.b(x) * (size - 1), a=nn.Identity(), b=nn.Identity()))
    exact = Fraction(size) - Fraction(size - 1)
    bounds = _measured(model, (5,))
    assert bounds.lower <= exact <= bounds.upper
    assert bounds.upper <= float(exact) * (1 + 20 * 2.0**-53 * 2 * size) + 1e-12


def test_cancellation_of_matrices() -> None:
    """Nearly equal products of layers: the difference is what is left, with the rounding of the large paths."""
    model = seeded(Lambda(lambda s, x: s.a(x) * 1e8 - s.a(x) * (1e8 - 1), a=nn.Linear(5, 4)))
    truth = float(torch.linalg.matrix_norm(model.a.weight.detach(), 2))
    bounds = _measured(model, (5,))
    assert bounds.lower <= truth <= bounds.upper
    assert bounds.upper == pytest.approx(truth, rel=2e-6)


def test_a_sum_that_rounds_to_zero_is_not_called_zero() -> None:
    """0.1 + 0.2 - 0.30000000000000004 is 0.0 in float64 and -2.8e-17 in truth, on one entry and in a chain."""
    exact = abs(Fraction(0.1) + Fraction(0.2) - Fraction(0.30000000000000004))
    assert exact > 0

    def three(s: Lambda, x: Tensor) -> Tensor:
        return x * 0.1 + x * 0.2 - x * 0.30000000000000004

    assert _measured(Lambda(three), (3,)).upper >= exact
    chain = nn.Sequential(nn.Linear(1, 3, bias=False), nn.Linear(3, 1, bias=False)).double()
    chain[0].weight.data.copy_(torch.tensor([[0.1], [0.2], [0.30000000000000004]], dtype=torch.float64))
    chain[1].weight.data.copy_(torch.tensor([[1.0, 1.0, -1.0]], dtype=torch.float64))
    assert _measured(chain, (1,)).upper >= exact


def test_rotary_embedding_is_an_isometry() -> None:
    """A rotation of pairs of features by an angle that depends on the token has norm one."""
    bounds = _measured(seeded(Lambda(lambda s, x: _rotary(s.i(x)) + 0 * s.one, i=nn.Identity(), one=points(1))), (7, 4))
    assert bounds.lower <= 1.0 <= bounds.upper
    assert bounds.upper == pytest.approx(1.0, abs=1e-12)


def test_isometries_cost_nothing() -> None:
    """Reshapes, permutations and flips have norm one exactly."""
    model = Lambda(lambda s, x: x.flatten(1).flip(1).reshape(-1, 4, 3).transpose(1, 2))
    bounds = _measured(model, (3, 4))
    assert (bounds.log_lower, bounds.log_upper) == (0.0, 0.0)


@pytest.mark.parametrize("size", [1e-30, 1e-200, 1e30, 1e200])
def test_extreme_weights_stay_in_the_log_domain(size: float) -> None:
    """Products of five factors far outside the float range: the certificate is finite, positive and right."""
    model = seeded(nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(5)]))
    plain = jacobian_norm(model, points(1, 4))
    for layer in model:
        layer.weight.data.mul_(size)
    bounds = _measured(model, (4,))
    assert bounds.log_upper == pytest.approx(math.log(plain) + 5 * math.log(size), rel=1e-9)
    assert bounds.log_lower <= math.log(plain) + 5 * math.log(size) + 1e-9 <= bounds.log_upper + 2e-9


def test_extreme_weights_per_token() -> None:
    """The same where every token is treated alike, and where the squares of a Gram matrix would vanish."""
    for shape in ((6, 4), (300, 4)):
        model = seeded(nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(5)]))
        norms = [float(torch.linalg.matrix_norm(m.weight.detach(), 2)) for m in model]
        for layer in model:
            layer.weight.data.mul_(1e-120)
        bounds = _measured(model, shape)
        assert -math.inf < bounds.log_upper <= math.fsum(map(math.log, norms)) + 5 * math.log(1e-120) + 1e-6


def test_a_large_segment_has_a_certificate_and_a_probable_bound() -> None:
    """Beyond the size of a Gram matrix: the product of the parts is certified, Lanczos is tight with probability.

    Two circular convolutions multiply frequency by frequency, which is the independent truth.
    """
    n = 2000
    settings = {"padding": 1, "padding_mode": "circular", "bias": False}
    model = seeded(nn.Sequential(nn.Conv1d(1, 1, 3, **settings), nn.Conv1d(1, 1, 3, **settings)))
    model[0].weight.data.copy_(torch.tensor([[[1.0, 2.0, 1.0]]]))
    model[1].weight.data.copy_(torch.tensor([[[-1.0, 2.0, -1.0]]]))
    symbols = [torch.fft.fft(functional.pad(m.weight.detach().flatten(), (0, n - 3))) for m in model]
    truth = float((symbols[0] * symbols[1]).abs().max())
    assert truth == pytest.approx(4.0, rel=1e-5)  # low and high frequencies cancel each other: 4 instead of 16
    bounds = _measured(model, (1, n))
    assert bounds.lower <= truth * (1 + 1e-12)
    assert truth <= bounds.probable * (1 + 1e-12)
    assert bounds.probable <= truth * 1.02
    assert bounds.delta == 1e-9
    assert bounds.upper == pytest.approx(16.0, rel=6e-3)
    without = _measured(model, (1, n), Effort(lanczos=False))
    assert without.delta == 0.0
    assert without.upper >= truth


def test_a_weight_at_a_reused_address_is_another_weight() -> None:
    """The cache of convolutions keeps what it measured alive: a freed weight's memory never stands for a new one."""
    norms = SegmentNorms()
    for factor in (1.0, 5.0, 25.0, 125.0):
        model = seeded(_conv(2, 2, 3)).double()
        model.weight.data.mul_(factor)
        program = program_of(model, points(2, 2, 5, 5))
        truth = jacobian_norm(model, points(1, 2, 5, 5))
        ((_, target),) = program.outputs
        weight = target.op.data["weight"].clone()  # of the cache and this program alone
        op = LinearOp("convolution", target.op.apply, None, {**target.op.data, "weight": weight})
        fresh = linear(op, [program.atoms[0]], target.shape)
        assert norms.norm(program.atoms[0], fresh).upper == pytest.approx(truth, rel=1e-6)
        del op, fresh, weight, target, program, model


def test_equal_convolutions_are_measured_once() -> None:
    """A layer called twice on maps of one size costs one measurement."""
    lines: list[str] = []
    model = seeded(Lambda(lambda s, x: s.c(s.c(x).relu()), c=_conv(2, 2, 3, padding=1)))
    program = program_of(model, points(2, 2, 5, 5))
    norms = SegmentNorms(progress=lines.append)
    first, second = program.layers
    assert norms.norm(first.inputs[0], first) is norms.norm(second.inputs[0], second)
    assert len([line for line in lines if line.startswith("convolution")]) == 1


def test_a_generic_operation_beside_others() -> None:
    """An operation of which only its action is known is measured as it acts."""
    generic = LinearOp("generic", lambda z: z[..., 1:] * 3 - z[..., :-1])
    x = atom_expr(None, (1, 6))
    y = linear(generic, [x], (1, 5))
    bounds = SegmentNorms().norm(x, y)
    matrix = torch.zeros(5, 6, dtype=torch.float64)
    matrix[range(5), range(1, 6)], matrix[range(5), range(5)] = 3.0, -1.0
    truth = float(torch.linalg.matrix_norm(matrix, 2))
    assert bounds.lower <= truth <= bounds.upper
    assert bounds.upper == pytest.approx(truth, rel=1e-9)


def test_no_bound_is_invented_for_a_large_unknown_map() -> None:
    """Too large to look at every coefficient: no certificate, and Lanczos says what it may."""

    def apply(z: Tensor) -> Tensor:
        return z + 0.5 * z.roll(1, -1) - 0.25 * z.roll(3, -1)

    x = atom_expr(None, (4000,))
    bounds = SegmentNorms().norm(x, linear(LinearOp("generic", apply), [x], (4000,)))
    assert bounds.log_upper == math.inf
    angles = torch.arange(4000, dtype=torch.float64) * 2 * math.pi / 4000
    truth = float((1 + 0.5 * torch.exp(-1j * angles) - 0.25 * torch.exp(-3j * angles)).abs().max())
    assert bounds.lower <= truth <= bounds.probable


def test_has_closed_form() -> None:
    """Small maps, single convolutions and token-wise maps have one; a long chain of large convolutions has none."""

    def ends(model: nn.Module, shape: tuple[int, ...]) -> tuple[Expr, Expr]:
        program = program_of(seeded(model), points(2, *shape))
        return program.atoms[0], program.outputs[0][1]

    norms = SegmentNorms()
    assert norms.has_closed_form(*ends(nn.Linear(4, 4), (4,)))
    assert norms.has_closed_form(*ends(_conv(4, 4, 3), (4, 20, 20)))
    assert norms.has_closed_form(*ends(nn.Linear(4, 8), (400, 4)))
    two = nn.Sequential(_conv(4, 4, 3, padding=1), _conv(4, 4, 3, padding=1))
    assert not norms.has_closed_form(*ends(two, (4, 20, 20)))


def test_equal_powers_of_two_are_taken_out_and_weights_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new normalizer's weight is one; the layer alone and behind it need one norm, and two programs share it."""
    model = seeded(nn.Sequential(Lambda(lambda s, x: x * s.g, g=torch.full((6,), -0.25)), nn.Linear(6, 5)))
    measured: list[Tensor] = []
    largest = segments.largest_matrix_norm
    monkeypatch.setattr(segments, "largest_matrix_norm", lambda m, **k: (measured.append(m), largest(m, **k))[1])
    norms = SegmentNorms()
    for _ in range(2):
        program = program_of(model, points(2, 4, 6))
        bounds = norms.norm(program.atoms[0], program.outputs[0][1])
        true = float(torch.linalg.matrix_norm(0.25 * model[1].weight.detach().double(), ord=2))
        assert true * (1 - 1e-9) < bounds.lower <= true * (1 + 1e-13)
        assert true * (1 - 1e-13) <= bounds.upper < true * (1 + 1e-9)
    assert len(measured) == 1


def test_unequal_factors_stay() -> None:
    """Nothing is taken out where they differ."""
    model = seeded(Lambda(lambda s, x: s.a(x * s.g), g=torch.tensor([1.0, 2.0, 1.0]), a=nn.Linear(3, 3)))
    bounds = _measured(model, (4, 3))
    true = float(torch.linalg.matrix_norm(model.a.weight.detach().double() * model.g.detach().double(), ord=2))
    assert bounds.lower <= true * (1 + 1e-13)
    assert true * (1 - 1e-13) <= bounds.upper < true * (1 + 1e-9)


def test_a_large_weight_is_measured_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Block by block, and as closely."""
    monkeypatch.setattr(dense, "LARGEST_COPIED", 10)
    model = seeded(nn.Linear(6, 5))
    bounds = _measured(model, (4, 6))
    true = float(torch.linalg.matrix_norm(model.weight.detach().double(), ord=2))
    assert bounds.method == "cholesky in blocks"
    assert bounds.lower <= true * (1 + 1e-13)
    assert true * (1 - 1e-13) <= bounds.upper < true * (1 + 1e-6)


def test_of_several_large_matrices_the_largest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "LARGEST_COPIED", 10)
    weight = torch.stack([_noise(4, 5), 3 * _noise(4, 5)])
    true = float(torch.linalg.matrix_norm(weight.double(), ord=2).max())
    bounds = SegmentNorms()._of_weight(weight)
    assert true * (1 - 1e-13) <= bounds.upper < true * (1 + 1e-6)


@pytest.mark.parametrize("scale", [torch.tensor(0.3), torch.tensor([[1.7], [-0.2]]), _noise(2, 3).double()])
def test_the_matrix_of_factors(scale: Tensor) -> None:
    """Entry by entry what the operation does to unit vectors, and an error that covers factors rounded themselves."""
    x = atom_expr(None, (2, 3))
    y = linear(LinearOp("diagonal", lambda z: z * scale.to(z), None, {"scale": scale}), [x], (2, 3))
    matrix, log_error = SegmentNorms()._link(x, y)
    expected = [(unit.reshape(2, 3) * scale.double()).flatten() for unit in torch.eye(6, dtype=torch.float64)]
    assert matrix.dtype == torch.float64
    assert torch.equal(matrix, torch.stack(expected).mT)
    assert math.exp(log_error) >= 8 * 2.0**-53 * float(scale.abs().max())


def test_centring_is_formed_once_for_all_normalizers_of_a_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every norm is that of its own segment, and other shapes have other matrices."""
    shapes: list[tuple[int, ...]] = []
    usual = segments.images

    def counted(function: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Tensor:
        shapes.append(shape)
        return usual(function, shape)

    monkeypatch.setattr(segments, "images", counted)
    norms = SegmentNorms()
    for width in (4, 4, 4, 6):
        model = seeded(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width)))
        gamma, weight = model[0].weight.data.normal_().double(), model[1].weight.detach().double()
        program = program_of(model, points(1, width))
        centring = torch.eye(width, dtype=torch.float64) - 1.0 / width
        truth = float(torch.linalg.matrix_norm(weight @ gamma.diag() @ centring, ord=2))
        bounds = norms.norm(program.atoms[-1], program.outputs[0][1])
        assert bounds.lower <= truth * (1 + 1e-12)
        assert truth <= bounds.upper * (1 + 1e-12)
        assert bounds.upper == pytest.approx(truth, rel=1e-8)
    assert shapes == [(1, 4), (1, 6)]


def test_the_error_of_a_gram_matrix_follows_from_that_of_the_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """``(A + E)^T (A + E) - A^T A`` may have the norm ``2 ||A|| ||E|| + ||E||^2``."""
    given: list[tuple[float, float]] = []
    original = segments.gram_norm

    def noted(mapping: Any, gram: Tensor, gram_error: float, apply_error: float, **more: Any) -> NormBounds:
        given.append((gram_error, apply_error))
        return original(mapping, gram, gram_error, apply_error, **more)

    monkeypatch.setattr(segments, "gram_norm", noted)
    monkeypatch.setattr(segments, "LARGEST_FORMED", 0)
    x = atom_expr(None, (4,))
    found = SegmentNorms().norm(x, linear(LinearOp("generic", lambda z: 3 * z[1:] - z[:-1]), [x], (3,)))
    ((gram_error, apply_error),) = given
    assert gram_error >= 2 * math.exp(found.log_lower) * apply_error > 0
