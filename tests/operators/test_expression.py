"""Affine expressions: evaluated they are the network's linear part, and the axes they are said to keep, they keep."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, jacobian, points, program_of, seeded
from normscope.operators.expression import (
    KINDS,
    AtomSet,
    Expr,
    LinearOp,
    as_expr,
    atom_expr,
    between,
    dominators,
    evaluate,
    linear,
    offset,
    track_axis,
)


def _times(factor: float) -> LinearOp:
    return LinearOp("diagonal", lambda z: z * factor, None, {"scale": torch.tensor(factor, dtype=torch.float64)})


def _sum(*terms: Expr, bias: Tensor | None = None) -> Expr:
    def add(*tensors: Tensor) -> Tensor:
        return torch.stack(tensors).sum(0)

    return linear(LinearOp("sum", add, bias), terms, terms[0].shape)


def test_expressions_know_their_atoms_and_order() -> None:
    """An atom depends on itself alone, an operation on all atoms below, and ids grow in order of creation."""
    x, y = atom_expr("x", (2, 3)), atom_expr("y", (2, 3))
    z = _sum(linear(_times(2.0), [x], (2, 3)), y)
    assert x.atoms == {x.id}
    assert z.atoms == {x.id, y.id}
    assert x.id < y.id < z.id
    assert (x.numel, atom_expr("s", ()).numel) == (6, 1)
    assert as_expr(torch.ones(3)).atoms == frozenset()


@pytest.mark.parametrize("seed", range(5))
def test_a_set_of_atoms_is_a_set(seed: int) -> None:
    """Against sets of Python, far from zero and near it."""
    draw = random.Random(seed)
    a, b, c = ({draw.randrange(start, start + 90) for _ in range(draw.randrange(9))} for start in (0, 40, 5_000))
    for x, y in itertools.product((a, b, c, set()), repeat=2):
        ours, theirs = AtomSet(x), AtomSet(y)
        assert (list(ours), len(ours), bool(ours)) == (sorted(x), len(x), bool(x))
        assert (set(ours | theirs), set(ours & theirs), set(y & ours)) == (x | y, x & y, x & y)
        assert (ours == theirs, ours <= theirs, ours <= y, ours.isdisjoint(theirs), ours.isdisjoint(y)) == (
            x == y,
            x <= y,
            x <= y,
            x.isdisjoint(y),
            x.isdisjoint(y),
        )
        assert [i in ours for i in range(-1, 140)] == [i in x for i in range(-1, 140)]
        assert ours != theirs or hash(ours) == hash(theirs)


def test_evaluate_is_the_linear_part_and_offset_the_constant() -> None:
    """A diamond with biases: value = linear part + constant, the constant seen where every atom is zero."""
    x = atom_expr("x", (3,))
    a = linear(_times(2.0), [x], (3,))
    b = linear(LinearOp("isometry", lambda z: z.flip(0), torch.tensor([1.0, 2.0, 3.0])), [x], (3,))
    c = _sum(a, b, as_expr(torch.full((3,), 10.0)), bias=torch.tensor(0.5))
    point = torch.tensor([1.0, -1.0, 4.0], dtype=torch.float64)
    assert evaluate(x, c)(point).tolist() == (2 * point + point.flip(0)).tolist()
    memo: dict[int, Tensor] = {}
    assert offset(c, memo).tolist() == [11.5, 12.5, 13.5]
    assert offset(b, memo).tolist() == [1.0, 2.0, 3.0]


def test_evaluate_refuses_a_source_beside_the_path() -> None:
    """A source that does not lie on every path cannot say what the target is."""
    x, y = atom_expr("x", (2,)), atom_expr("y", (2,))
    with pytest.raises(ValueError, match="every path"):
        evaluate(x, _sum(x, y))(torch.ones(2))


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(2, 3)),
        lambda: Lambda(lambda s, x: (x - x.mean((2, 3), keepdim=True)) * 3 + s.c(x), c=nn.Conv2d(1, 1, 3, padding=1)),
        lambda: Lambda(lambda s, x: torch.cat([x.flip(2), x[:, :, :2] + 1], 2) / 7 - 2),
    ],
)
def test_a_linear_network_is_its_expression(build: Callable[[], nn.Module]) -> None:
    """Linear part and constant of a whole network against autograd and the network itself."""
    model, x = seeded(build()), points(1, 1, 4, 4)
    model = model.double()
    program = program_of(model, torch.cat([x, x]))
    ((_, target),) = program.outputs
    function = evaluate(program.atoms[0], target)
    truth = jacobian(model, x)
    formed = torch.stack([function(e.reshape(1, 1, 4, 4)).flatten() for e in torch.eye(16).double()], 1)
    assert torch.allclose(formed, truth, rtol=1e-12, atol=1e-12)
    assert torch.allclose(function(x) + offset(target, {}), model(x), rtol=1e-6, atol=1e-6)


def test_between_and_dominators_of_a_diamond() -> None:
    """Every path passes the first scaling and the last; the two branches are a block between them."""
    x = atom_expr("x", (2,))
    a = linear(_times(2.0), [x], (2,))
    left, right = linear(_times(3.0), [a], (2,)), linear(_times(4.0), [a], (2,))
    joined = _sum(left, right)
    last = linear(_times(5.0), [joined], (2,))
    assert [e.id for e in between(x, last)] == [a.id, left.id, right.id, joined.id, last.id]
    assert [e.id for e in dominators(x, last)] == [x.id, a.id, joined.id, last.id]
    assert dominators(x, x) == [x]


def test_a_constant_operand_is_no_path() -> None:
    """Adding a constant does not open a branch."""
    x = atom_expr("x", (2,))
    shifted = _sum(x, as_expr(torch.ones(2)))
    assert [e.id for e in dominators(x, shifted)] == [x.id, shifted.id]


AXES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(3, 2), (2, 3)),
    "linear then transpose": (lambda: Lambda(lambda s, x: s.a(x).transpose(1, 2), a=nn.Linear(3, 2)), (2, 3)),
    "1x1 convolution": (lambda: nn.Conv2d(2, 3, 1), (2, 2, 3)),
    "convolution": (lambda: nn.Conv2d(2, 2, 2), (2, 3, 3)),
    "scale per token": (lambda: Lambda(lambda s, x: s.a(x) * s.t, a=nn.Linear(3, 2), t=points(2, 1)), (2, 3)),
    "scale per feature": (lambda: Lambda(lambda s, x: s.a(x) * s.t, a=nn.Linear(3, 2), t=points(2)), (2, 3)),
    "heads": (lambda: Lambda(lambda s, x: s.a(x).unflatten(-1, (2, 2)).transpose(1, 2), a=nn.Linear(3, 4)), (2, 3)),
    "different widths side by side": (
        lambda: Lambda(lambda s, x: torch.cat([s.a(x), x, s.b(x)], -1), a=nn.Linear(3, 2), b=nn.Linear(3, 1)),
        (2, 3),
    ),
    "tokens side by side": (lambda: Lambda(lambda s, x: torch.cat([x, s.a(x)], 1), a=nn.Linear(3, 3)), (2, 3)),
    "mean of tokens": (lambda: Lambda(lambda s, x: s.a(x).mean(1, keepdim=True), a=nn.Linear(3, 2)), (2, 3)),
    "flip of tokens": (lambda: Lambda(lambda s, x: s.a(x).flip(1), a=nn.Linear(3, 2)), (2, 3)),
    "sum with a flip": (lambda: Lambda(lambda s, x: x + s.a(x.flip(2)), a=nn.Linear(3, 3)), (2, 3)),
    "one matrix per token": (lambda: Lambda(lambda s, x: (x[:, :, None] @ s.m)[:, :, 0], m=points(2, 3, 2)), (2, 3)),
    "select": (lambda: Lambda(lambda s, x: s.a(x)[:, :, 1], a=nn.Linear(3, 2)), (2, 3)),
    "flatten": (lambda: Lambda(lambda s, x: s.b(s.a(x).flatten(1)), a=nn.Linear(3, 2), b=nn.Linear(4, 2)), (2, 3)),
    "padding": (lambda: nn.Sequential(nn.Linear(3, 2), nn.ZeroPad1d(1)), (2, 3)),
    "expand": (lambda: Lambda(lambda s, x: s.a(x)[:, :, None] + s.t, a=nn.Linear(3, 2), t=points(4, 1)), (2, 3)),
}


@pytest.mark.parametrize("name", AXES)
def test_a_tracked_axis_is_acted_on_independently(name: str) -> None:
    """Wherever an axis is followed through, the dense matrix has no entry between two of its indices.

    And where the map is said to be the same at every index, the blocks are equal.
    """
    build, shape = AXES[name]
    model = seeded(build())
    program = program_of(model, points(2, *shape))
    ((_, target),) = program.outputs
    source = program.atoms[0]
    matrix = jacobian(model, points(1, *shape))
    for a, b in itertools.combinations(range(len(source.shape) + 1), 2):
        n, s = math.prod(source.shape[a:b]), math.prod(source.shape[b:])
        found = track_axis(source, target, (n, s)) if n > 1 else None
        if found is None:
            continue
        (m, t), alike = found
        assert m == n
        blocks = matrix.reshape(-1, n, t, source.numel // (n * s), n, s)
        for i, j in itertools.product(range(n), repeat=2):
            block = blocks[:, i, :, :, j]
            if i != j:
                assert not bool(block.any()), f"indices {i} and {j} of {(n, s)} are coupled"
            elif alike:
                assert torch.equal(block, blocks[:, 0, :, :, 0])


@pytest.mark.parametrize(
    ("name", "start", "expected"),
    [
        ("linear", (2, 3), ((2, 2), True)),
        ("linear then transpose", (2, 3), ((2, 1), True)),
        ("1x1 convolution", (6, 1), ((6, 1), True)),
        ("scale per token", (2, 3), ((2, 2), False)),
        ("scale per feature", (2, 3), ((2, 2), True)),
        ("different widths side by side", (2, 3), ((2, 6), True)),
        ("tokens side by side", (2, 3), None),
        ("mean of tokens", (2, 3), None),
        ("flip of tokens", (2, 3), None),
        ("one matrix per token", (2, 3), None),
        ("select", (2, 3), ((2, 1), True)),
        ("flatten", (2, 3), None),
        ("padding", (2, 3), ((2, 4), True)),
    ],
)
def test_token_axes_are_found(name: str, start: tuple[int, int], expected: object) -> None:
    """The axis of tokens is followed where it survives, and lost where tokens mix."""
    build, shape = AXES[name]
    program = program_of(seeded(build()), points(2, *shape))
    ((_, target),) = program.outputs
    assert track_axis(program.atoms[0], target, start) == expected


def test_every_kind_is_known() -> None:
    """No operation of a network has a kind that the norms do not know."""
    model = seeded(
        Lambda(
            lambda s, x: s.b(torch.cat([s.a(x).diff(), x - x.mean(1, keepdim=True)], 1)),
            a=nn.Linear(4, 4),
            b=nn.Linear(7, 2),
        )
    )
    program = program_of(model, points(2, 4))
    stack, kinds = [e for _, e in program.outputs], set()
    while stack:
        item = stack.pop()
        kinds |= {item.op.kind} if item.op is not None else set()
        stack.extend(item.inputs)
    assert kinds <= set(KINDS)
    assert {"matrix", "concat", "sum"} <= kinds
