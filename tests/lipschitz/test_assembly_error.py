"""The error of a formed matrix: never below what exact rational arithmetic shows."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, points, program_of, seeded
from normscope.linalg.bounds import NormBounds
from normscope.lipschitz import assembly_error as module
from normscope.lipschitz.assembly_error import Forming, forming_error
from normscope.operators.expression import Expr, LinearOp, atom_expr, evaluate, linear


def _exact(tensor: Tensor) -> list[list[Fraction]]:
    return [[Fraction(v) for v in row] for row in tensor.tolist()]


def _product(a: list[list[Fraction]], b: list[list[Fraction]]) -> list[list[Fraction]]:
    columns = list(zip(*b, strict=True))
    return [[sum((x * y for x, y in zip(row, column, strict=True)), Fraction(0)) for column in columns] for row in a]


def _distance(computed: Tensor, exact: list[list[Fraction]]) -> float:
    """Return the Frobenius norm of the error, which is at least its spectral norm."""
    pairs = zip(computed.flatten().tolist(), (v for row in exact for v in row), strict=True)
    return math.sqrt(float(sum(((Fraction(c) - e) ** 2 for c, e in pairs), Fraction(0))))


def _ends(model: nn.Module, *shape: int) -> tuple[Expr, Expr]:
    program = program_of(seeded(model), points(2, *shape))
    return program.atoms[0], program.outputs[0][1]


def _formed(source: Expr, target: Expr) -> Tensor:
    function = evaluate(source, target)
    return torch.stack([function(e.reshape(source.shape)).flatten() for e in torch.eye(source.numel).double()], 1)


@pytest.mark.parametrize("seed", range(4))
def test_a_difference_of_products_against_rational_arithmetic(seed: int) -> None:
    """``B A - D C`` with nearly equal products: the error found exactly stays below the bound, within two orders."""
    model = seeded(
        Lambda(lambda s, x: s.b(s.a(x)) - s.d(s.c(x)), **{k: nn.Linear(3, 3, bias=False) for k in "abcd"}), seed
    )
    for left, right in (("a", "c"), ("b", "d")):
        getattr(model, right).weight.data.copy_(getattr(model, left).weight * (1 + 1e-9))
    a, b, c, d = (_exact(getattr(model, k).weight.detach()) for k in "abcd")
    exact = [[p - q for p, q in zip(x, y, strict=True)] for x, y in zip(_product(b, a), _product(d, c), strict=True)]
    program = program_of(model, points(2, 3))
    source, target = program.atoms[0], program.outputs[0][1]
    found = forming_error(source, target)
    wrong = _distance(_formed(source, target), exact)
    assert wrong <= math.exp(found.log_error) + found.relative * 1e-8
    assert math.exp(found.log_error) < 1e-14


def test_powers_of_two_round_nothing() -> None:
    """Halving, doubling, changing signs and copying are exact, and so is the one sum at the end."""
    ends = _ends(Lambda(lambda s, x: x * 0.5 - x.flip(1) * 4), 3)
    assert forming_error(*ends).log_error == -math.inf
    assert forming_error(*ends, adjoint=True).log_error > -math.inf  # the adjoint adds up at the input


def test_the_mass_is_that_of_the_absolute_map() -> None:
    """It bounds the norm of the same segment with absolute coefficients, layer by layer."""
    torch.manual_seed(0)
    model = seeded(nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.AvgPool1d(2), nn.Flatten(), nn.Linear(9, 4)))
    program = program_of(model, points(2, 2, 6))
    source, target = program.atoms[0], program.outputs[0][1]
    for parameter in model.parameters():
        parameter.data.abs_()
    absolute = program_of(model, points(2, 2, 6))
    norm = float(torch.linalg.matrix_norm(_formed(absolute.atoms[0], absolute.outputs[0][1]), 2))
    assert norm <= math.exp(forming_error(source, target).log_mass) <= 20 * norm


def test_the_mass_of_a_large_matrix_is_found_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = points(23, 7, seed=4)
    x = atom_expr(None, (7,))
    whole = linear(LinearOp("matrix", lambda z: z @ weight.mT, None, {"weight": weight, "axis": -1}), [x], (23,))
    monkeypatch.setattr(module, "BLOCK_NUMBERS", 30)
    sums = weight.abs().sum(1).max() * weight.abs().sum(0).max()
    assert forming_error(x, whole).log_mass == pytest.approx(float(sums.log()) / 2, abs=1e-8)


def test_centring_and_generic_operations_count() -> None:
    """Centring has absolute norm below two; of an unknown operation every coefficient is looked at."""
    centred = _ends(Lambda(lambda s, x: x - x.mean(1, keepdim=True)), 5)
    assert 0.0 < forming_error(*centred).log_mass <= math.log(2.0) + 1e-6
    n = atom_expr(None, (5,))
    known = linear(LinearOp("contraction", lambda z: z - z.mean()), [n], (5,))
    absolute = (torch.eye(5, dtype=torch.float64) - 1 / 5).abs()
    assert forming_error(n, known).log_mass >= math.log(float(torch.linalg.matrix_norm(absolute, 2)))
    x = atom_expr(None, (4,))
    y = linear(LinearOp("generic", lambda z: 3 * z[1:] - z[:-1]), [x], (3,))
    assert math.log(4.0) <= forming_error(x, y).log_mass <= math.log(4.0) + 1e-6


def test_what_cannot_be_looked_at_has_no_bound() -> None:
    """A huge operation of which only its action is known: the error is infinite, and nothing is certified."""
    x = atom_expr(None, (5000,))
    found = forming_error(x, linear(LinearOp("generic", lambda z: z.roll(1)), [x], (5000,)))
    assert found.log_error == math.inf
    allowed = found.allow(NormBounds.exact(1.0, method=""))
    assert (allowed.log_lower, allowed.log_upper) == (-math.inf, math.inf)


def test_the_float_range_is_told() -> None:
    """Masses beyond what float64 holds, or what its square holds, are reported."""
    x = atom_expr(None, (2,))

    def chain(log10: int) -> Expr:
        scale = torch.tensor(10.0**log10, dtype=torch.float64)
        op = LinearOp("diagonal", lambda z: z * scale, None, {"scale": scale})
        return linear(op, [linear(op, [x], (2,))], (2,))

    plain, squares, beyond = (forming_error(x, chain(k)) for k in (-20, -100, -150))
    assert plain.fits
    assert plain.squares_fit
    assert squares.fits
    assert not squares.squares_fit
    assert not beyond.fits
    assert beyond.log_total == math.inf


def test_zero_maps_have_no_error() -> None:
    """A factor of zero leaves nothing, exactly."""
    found = forming_error(*_ends(Lambda(lambda s, x: s.a(x) * 0.0, a=nn.Linear(3, 3)), 3))
    assert found.log_mass == -math.inf
    assert found.log_error == -math.inf


def test_allowing_for_an_error_moves_both_ends() -> None:
    """``E`` is added above and taken away below, never past zero."""
    bounds = Forming(0.0, math.log(0.25), 0.0).allow(NormBounds.certified(0.0, math.log(2.0), "given"))
    assert bounds.lower == pytest.approx(0.75, rel=1e-12)
    assert bounds.upper == pytest.approx(2.25, rel=1e-12)
    assert bounds.upper >= 2.25
    assert Forming(0.0, math.log(3.0), 0.0).allow(NormBounds.exact(1.0, method="")).log_lower == -math.inf
