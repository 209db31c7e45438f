"""Constants and ranges: the small algebra every nonlinear rule is written in."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from networks import points
from normscope.operators.expression import Expr, atom_expr
from normscope.operators.nonlinear import INF, Input, Lip, Opaque, Pointwise, Range, outward, product


class _Context:
    """A context with given answers."""

    blocks = 2

    def __init__(self, log: float = 0.0, inside: Range | None = None) -> None:
        self.log, self.inside = log, inside or Range()

    def lipschitz(self, expr: Expr) -> Lip:
        return Lip((self.log, -INF), (self.log, -INF))

    def range(self, expr: Expr) -> Range:
        return self.inside

    def centered_row(self, expr: Expr) -> float:
        return self.inside.row

    def input_range(self, block: int) -> Range:
        return self.inside

    def floor(self, name: str) -> Tensor | float:
        return 0.0


numbers = st.floats(1e-6, 1e6)


@settings(max_examples=50, deadline=None)
@given(a=st.tuples(numbers, numbers), b=st.tuples(numbers, numbers))
def test_constants_add_and_join_block_by_block(a: tuple[float, float], b: tuple[float, float]) -> None:
    """Sums add, concatenations add in squares, the better of two bounds is the smaller."""
    one, two = (Lip(tuple(map(math.log, t)), tuple(map(math.log, t))) for t in (a, b))
    for found, combine in (
        (one + two, lambda x, y: x + y),
        (one.root_sum_square(two), math.hypot),
        (one.minimum(two), min),
    ):
        expected = [combine(x, y) for x, y in zip(a, b, strict=True)]
        assert [math.exp(log) for log in found.certified] == pytest.approx(expected, rel=1e-9)
    assert math.exp(one.total()[0]) == pytest.approx(math.hypot(*a), rel=1e-9)


def test_scaling_keeps_zero_and_the_failure_probability() -> None:
    """A block that is not read stays at zero even after "no bound"; failures add up, never above one."""
    lip = Lip((0.0, -INF), (0.0, -INF), 0.25)
    assert lip.scaled(INF).certified == (INF, -INF)
    assert lip.scaled(-INF).certified == (-INF, -INF)
    assert lip.scaled(math.log(2.0), math.log(1.5), 0.5).probable[0] == pytest.approx(math.log(1.5))
    assert lip.scaled(0.0, delta=0.5).delta == 0.75
    assert (lip + lip.scaled(0.0, delta=0.9)).delta == 1.0
    assert Lip.constant(INF, 3).certified == (INF, INF, INF)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 4), min_size=0, max_size=3),
    seed=st.integers(0, 100),
    known=st.sets(st.sampled_from(("entries", "row", "norm")), min_size=1),
)
def test_what_follows_from_a_range_holds(shape: list[int], seed: int, known: set[str]) -> None:
    """Whatever is known of a tensor, everything derived from it holds for the tensor."""
    x = points(*shape, seed=seed) * 3
    row = float(x.norm(dim=-1).max()) if x.ndim else float(x.abs())
    given_range = Range(
        float(x.min()) if "entries" in known else -INF,
        float(x.max()) if "entries" in known else INF,
        row if "row" in known else INF,
        float(x.norm()) if "norm" in known else INF,
    )
    tight = given_range.tightened(tuple(shape))
    assert tight.low <= float(x.min())
    assert float(x.max()) <= tight.high
    assert row <= tight.row * (1 + 1e-12)
    assert float(x.norm()) <= tight.norm * (1 + 1e-12)
    assert max(tight.sup, tight.row, tight.norm) < INF


def test_ranges_meet() -> None:
    """Both conditions hold."""
    met = Range(-1.0, 5.0, 3.0, INF).meet(Range(-2.0, 2.0, INF, 4.0))
    assert met == Range(-1.0, 2.0, 3.0, 4.0)
    assert met.sup == 2.0
    assert Range().sup == INF


def test_products_of_bounds() -> None:
    """Nothing times anything is nothing, even times "no bound"."""
    assert product(0.0, INF) == 0.0
    assert product(2.0, INF) == INF
    assert product(-2.0, 3.0) == -6.0


def test_rounding_outward() -> None:
    """Wider on both sides, infinities stay."""
    low, high = outward(-2.0, 3.0)
    assert low < -2.0 < 3.0 < high
    assert outward(-INF, INF) == (-INF, INF)
    assert outward(0.0, 0.0) == (0.0, 0.0)


def test_inputs_and_opaque_operations() -> None:
    """A block has constant one in itself and zero in others; the unknown has none."""
    block = Input(1, "input")
    assert block.constant(_Context()).certified == (-INF, 0.0)  # type: ignore[arg-type]
    assert block.image(_Context(inside=Range(0.0, 1.0))) == Range(0.0, 1.0)  # type: ignore[arg-type]
    assert Opaque((), "why").constant(_Context()).certified == (INF, INF)  # type: ignore[arg-type]
    assert Opaque((), "why").image(_Context()) == Range()  # type: ignore[arg-type]


def _pointwise(*, needs_range: bool, vanishing: bool) -> Pointwise:
    slope: Callable[[float, float], float] = lambda a, b: 2 * max(abs(a), abs(b))  # noqa: E731
    square: Callable[[float, float], tuple[float, float]] = lambda a, b: (0.0, max(a * a, b * b))  # noqa: E731
    return Pointwise(atom_expr(None, (3,)), slope, square, needs_range=needs_range, vanishing=vanishing)


def test_entrywise_functions() -> None:
    """The square on [-1, 3]: slope 6, values up to 9, rows and norms by the slope."""
    inside = Range(-1.0, 3.0, 4.0, 5.0)
    local = _pointwise(needs_range=True, vanishing=True)
    context = _Context(math.log(10.0), inside)
    assert math.exp(local.constant(context).certified[0]) == pytest.approx(60.0)  # type: ignore[arg-type]
    assert local.image(context) == Range(0.0, 9.0, 24.0, 30.0)  # type: ignore[arg-type]
    assert _pointwise(needs_range=True, vanishing=False).image(context) == Range(0.0, 9.0)  # type: ignore[arg-type]
    everywhere = _pointwise(needs_range=False, vanishing=False)
    assert everywhere.constant(context).certified[0] == INF  # type: ignore[arg-type]


def test_the_slope_from_zero_counts_for_norms() -> None:
    """On [2, 3] the square has slope 6, and |g(t)| <= 6 |t|: from zero, not from the interval alone."""
    local = _pointwise(needs_range=True, vanishing=True)
    image = local.image(_Context(0.0, Range(2.0, 3.0, 5.0, 5.0)))  # type: ignore[arg-type]
    x = torch.tensor([2.0, 2.5, 3.0])
    assert float(x.square().norm()) <= image.norm


def test_norms_of_images_are_rounded_up() -> None:
    """The norms of ``0.1 x`` are never below the exact products, even where these underflow."""
    tenth = Pointwise(atom_expr(None, (3,)), lambda a, b: 0.1, lambda a, b: (a, b), needs_range=False, vanishing=True)
    for size in (5e-324, *(0.1 * i for i in range(1, 100))):
        image = tenth.image(_Context(0.0, Range(row=size, norm=size)))  # type: ignore[arg-type]
        assert Fraction(image.row) >= Fraction(0.1) * Fraction(size)
        assert Fraction(image.norm) >= Fraction(0.1) * Fraction(size)
    assert tenth.image(_Context()).norm == INF  # type: ignore[arg-type]
