r"""Max-pools and maxima as ReLUs, so that a chain may run through them.

:math:`\max(a, b) = a + \mathrm{relu}(b - a)`. The entries of a window are compared in pairs, the larger ones in pairs
again: a bound over free slopes of these ReLUs covers every choice of an entry, and all mixtures of them.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from normscope.operators.expression import Expr, LinearOp, atom_expr, linear, reached
from normscope.operators.maximum import Maximum
from normscope.operators.nonlinear import Stretch
from normscope.operators.pooling import MaxPool


class SectorFunction(Stretch):
    """An entrywise function of which only the slopes matter.

    Args:
        x: what it acts on.
        sector: the least and the largest slope.
    """

    sector: tuple[float, float] = (0.0, 1.0)

    def __init__(self, x: Expr, sector: tuple[float, float] = (0.0, 1.0)) -> None:
        super().__init__(x, max(map(abs, sector)))
        self.sector = sector


def without_maxima(target: Expr, atoms: Mapping[int, Expr]) -> tuple[Expr, dict[int, Expr]]:
    """Return a tensor with all maxima that a chain meets below it written as ReLUs, and the atoms with the new ones.

    The tensor itself is returned if there are none.

    Args:
        target: the tensor.
        atoms: the atoms of the network by id.
    """
    new: dict[int, Expr] = {}
    for expr in reached([target], _followed):
        inputs = [new[i.id] for i in _followed(expr)]
        same = all(a is b for a, b in zip(inputs, _followed(expr), strict=True))
        if expr.op is None and is_maximum(expr):
            new[expr.id] = _as_relus(expr, inputs)
        elif same:
            new[expr.id] = expr
        elif expr.op is None:
            new[expr.id] = atom_expr(SectorFunction(inputs[0], expr.atom.sector), expr.shape)
        else:
            new[expr.id] = linear(expr.op, inputs, expr.shape)
    made = reached([new[target.id]], _followed)
    return new[target.id], {**atoms, **{e.id: e for e in made if isinstance(e.atom, SectorFunction)}}


def is_maximum(expr: Expr) -> bool:
    """Return whether an atom is a maximum that can be written as ReLUs."""
    return isinstance(expr.atom, Maximum) or (isinstance(expr.atom, MaxPool) and expr.atom.taps is not None)


def _followed(expr: Expr) -> Sequence[Expr]:
    """Return the expressions to which a chain continues below an expression."""
    if expr.op is not None:
        return expr.inputs
    return expr.atom.inputs if expr.atom.inputs and (is_maximum(expr) or expr.atom.sector is not None) else ()


def _as_relus(expr: Expr, inputs: Sequence[Expr]) -> Expr:
    if isinstance(expr.atom, MaxPool):
        return largest_of_taps(inputs[0], expr.atom.taps or [], expr.shape)
    f, g = inputs
    if expr.atom.largest:
        return _sum(f, _relu(_sum(g, _negative(f))))
    return _sum(f, _negative(_relu(_sum(f, _negative(g)))))


def largest_of_taps(x: Expr, taps: Sequence[Tensor], shape: Sequence[int]) -> Expr:
    """Return the largest of some entries for each window.

    Args:
        x: what is pooled.
        taps: for each place in a window, where in the flat input each window has it.
        shape: of the result.
    """
    places = torch.stack([t.flatten() for t in taps])
    while len(places) > 1:
        half = len(places) // 2
        a, b = _picked(x, places[:half]), _picked(x, places[half : 2 * half])
        parts = [_sum(a, _relu(_sum(b, _negative(a))))]
        if len(places) % 2:
            parts.append(_picked(x, places[2 * half :]))
        rows = torch.Size((sum(part.shape[0] for part in parts), places.shape[1]))
        x = (
            linear(LinearOp("concat", lambda *z: torch.cat(z, 0), None, {"axis": 0}), parts, rows)
            if parts[1:]
            else parts[0]
        )
        places = torch.arange(rows.numel()).reshape(rows)
    return _picked(x, places.reshape(tuple(shape)))


def _picked(x: Expr, places: Tensor) -> Expr:
    kind = "contraction" if len(places.unique()) == places.numel() else "nonnegative"
    return linear(LinearOp(kind, lambda z: z.reshape(-1)[places], None, {"coordinate": True}), [x], places.shape)


def _sum(*terms: Expr) -> Expr:
    return linear(LinearOp("sum", lambda *z: torch.stack(z).sum(0)), terms, terms[0].shape)


def _negative(x: Expr) -> Expr:
    scale = -torch.ones((), dtype=torch.float64)
    return linear(LinearOp("diagonal", lambda z: -z, None, {"scale": scale}), [x], x.shape)


def _relu(x: Expr) -> Expr:
    return atom_expr(SectorFunction(x), x.shape)
