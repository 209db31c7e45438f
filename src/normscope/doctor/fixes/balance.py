"""Balance pairs of layers around a positively homogeneous activation."""

import torch
from torch import Tensor

from normscope.doctor.fixes.change import CannotFix, Change, Draft
from normscope.operators.expression import Expr, LinearOp

KIND = "balance"
#: Activations with f(d x) = d f(x) for d > 0.
HOMOGENEOUS = ("aten.relu.default", "aten.relu_.default", "aten.leaky_relu.default", "aten.leaky_relu_.default")
#: Largest exponent of two of a factor, in magnitude; it must be an integer.
LARGEST_EXPONENT = 39


def balance_pairs(draft: Draft) -> None:
    """Scale the units between two layers so that incoming and outgoing weights have equal norms.

    ``W_2 f(W_1 x + b) = (W_2 D^-1) f(D (W_1 x + b))`` for a positive diagonal ``D`` and ``f(d x) = d f(x)``. Unit i
    gets ``d_i = sqrt(||column i of W_2|| / ||(row i of W_1, b_i)||)``, rounded to a power of two, so that
    scaling is exact.
    """
    program, parents = draft.subject.program, draft.subject.evaluation.parents
    layers = {e.id for e in program.layers}
    for atom in program.atoms:
        if atom.atom.op not in HOMOGENEOUS:
            continue
        before = atom.atom.inputs[0]
        readers = parents.get(atom.id, [])
        if before.id not in layers or len(readers) != 1 or readers[0].id not in layers:
            continue
        draft.attempt(KIND, atom.atom.owner, _balanced, before, readers[0])


def _balanced(draft: Draft, first: Expr, second: Expr) -> Change | None:
    """Return the change for one pair, or ``None`` if it is balanced."""
    one, two = first.op, second.op
    if one is None or two is None or len(draft.subject.evaluation.parents.get(first.id, [])) != 1:
        raise CannotFix("something else reads the output of the first layer")
    bias = draft.name_of(one.bias)
    names = [one.weight_name, two.weight_name, *([bias or "?"] if one.bias is not None else [])]
    if not (draft.is_plain(one) and draft.is_plain(two)):
        raise CannotFix("a weight is computed from others (a parametrization), or is not in the state dict")
    if not (_plain(one) and _plain(two)):
        raise CannotFix("a layer is transposed, has groups, or does not act on the last axis")
    if any(n not in draft.state or not draft.is_used_once(n) for n in names):
        raise CannotFix("a weight is used in several places")
    if one.kind != two.kind or first.op is second.op:
        raise CannotFix("a linear layer and a convolution do not share units")
    a, b = draft.double(names[0]), draft.double(names[1])
    into = a.flatten(1).square().sum(1)
    if bias:
        into = into + draft.double(bias).square()
    out = b.movedim(1, 0).flatten(1).square().sum(1)
    factors = powers_of_two(into.sqrt(), out.sqrt())
    if bool((factors == 1).all()):
        return None
    new = {
        names[0]: a * factors.reshape(-1, *(1,) * (a.ndim - 1)),
        names[1]: b / factors.reshape(1, -1, *(1,) * (b.ndim - 2)),
    }
    if bias:
        new[bias] = draft.double(bias) * factors
    changed = int((factors != 1).sum())
    what = f"{changed} of {factors.numel()} units between {names[0]} and {names[1]} balanced, by factors from "
    what += f"{float(factors.min()):g} to {float(factors.max()):g}"
    return Change(KIND, one.owner, what, new, "", "changed: steps of gradient descent depend on the balance")


def _plain(op: LinearOp) -> bool:
    """Return whether a layer's weight has its outputs first and its inputs second."""
    if op.kind == "convolution":
        return not op.data.get("transposed") and int(op.data.get("groups", 1)) == 1
    return op.data.get("axis", -1) == -1 and op.data["weight"].ndim == 2


def powers_of_two(into: Tensor, out: Tensor) -> Tensor:
    """Return the powers of two nearest to ``sqrt(out / into)``, from ``2^-39`` to ``2^39``; one where either is zero.

    >>> powers_of_two(torch.tensor([1.0, 4.0, 0.0]), torch.tensor([16.0, 4.0, 1.0])).tolist()
    [4.0, 1.0, 1.0]
    """
    usable = (into > 0) & (out > 0)
    ratio = torch.where(usable, out / into.clamp_min(torch.finfo(into.dtype).tiny), torch.ones_like(into))
    return torch.exp2((ratio.log2() / 2).round().clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT))
