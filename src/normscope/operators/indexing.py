"""Operations that select, drop or overwrite entries at fixed positions."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from normscope.operators.expression import Expr
from normscope.operators.layout import add_terms, broadcast, kept_axes, reshaped, scaled
from normscope.operators.nonlinear import Context, Lip, Nonlinear, Range
from normscope.operators.registry import Call, expressions, rule

#: Operations that take entries along one axis, each at most once.
_ALONG = ("slice", "narrow", "slice_copy", "select", "select_copy")


@rule(*_ALONG, "index_select", "gather", "take", "take_along_dim", "index", "_unsafe_index", "diagonal",
      "linalg_diagonal", "unfold", "im2col", "masked_select", "embedding", "diag_embed", "diagflat", "diag",
      "unfold_copy", "diagonal_copy")  # fmt: skip
def copies(call: Call) -> Expr:
    """Select entries, or copy them to other positions, perhaps several times or among zeros."""
    if not call.only_first_depends:
        return call.opaque("an index that depends on the input is discontinuous", known=True)
    x, axes = call.first, None
    if call.name in (*_ALONG, "index_select"):
        axes = kept_axes(x, [call.get("dim", 0)], drop=call.name.startswith("select"))
    kind = "contraction" if call.name in _ALONG else "nonnegative"
    return call.linear(kind, call.bound(), [x], axes=axes, coordinate=True)


@rule("constant_pad_nd", "pad", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d",
      "replication_pad2d", "replication_pad3d", "_pad_circular", "_pad_enum")  # fmt: skip
def pad(call: Call) -> Expr:
    """Extend a tensor by zeros, a constant, or copies of its entries."""
    x = call.first
    modes = {"reflection": "reflect", "replication": "replicate", "_pad_circular": "circular"}
    mode = next((word for part, word in modes.items() if part in call.name), call.get("mode", "constant"))
    if isinstance(mode, int):
        mode = ("constant", "reflect", "replicate", "circular")[mode]
    amounts = list(call.get("pad", call.get("padding")))
    dims = range(len(x.shape) - len(amounts) // 2, len(x.shape))
    bias = None
    extra: dict[str, Any] = {"pads": True}
    if mode == "constant":
        value = float(call.get("value", 0.0))
        if value:
            bias = F.pad(torch.zeros(x.shape, dtype=torch.float64), amounts, value=value)
        kind = "contraction"  # negative amounts crop
    else:
        kind = "nonnegative"
        pairs = [(amounts[2 * i], amounts[2 * i + 1]) for i in range(len(amounts) // 2)][::-1]
        extra["pad_mode"] = (mode, pairs, list(x.shape[-len(pairs) :]))
    return call.linear(
        kind,
        lambda z: F.pad(z, amounts, mode=mode),
        [x],
        bias=bias,
        axes=kept_axes(x, list(dims)),
        coordinate=True,
        **extra,
    )


@rule("tril", "triu")
def triangle(call: Call) -> Expr:
    """Keep a triangle of the last two axes."""
    x = call.first
    ones = torch.ones(x.shape[-2:], dtype=torch.float64)
    diagonal = int(call.get("diagonal", 0))
    mask = ones.tril(diagonal) if "tril" in call.node.op else ones.triu(diagonal)
    return scaled(call, x, mask)


@rule("masked_fill", "where")
def masked(call: Call) -> Expr:
    """Choose entrywise by a mask that does not depend on the input."""
    if "where" in call.node.op and "self" not in call.arguments:
        return call.opaque("the positions of nonzero entries are discontinuous", known=True)
    if "where" in call.node.op:
        keep, yes, no = call["condition"], call["self"], call["other"]
    else:
        keep, yes, no = call["mask"], call["value"], call["self"]
    if isinstance(keep, Expr):
        return call.opaque("a choice by comparing input-dependent values may be discontinuous")
    keep = keep.to(torch.bool)
    terms = []
    bias = torch.zeros((), dtype=torch.float64)
    for mask, part in ((keep, yes), (~keep, no)):
        if isinstance(part, Expr):
            terms.append(scaled(call, part, mask.to(torch.float64)))
        else:
            value = torch.as_tensor(part, dtype=torch.float64).detach()
            bias = torch.where(mask, value, bias)
    return add_terms(call, terms, bias)


@rule("slice_scatter", "select_scatter", "diagonal_scatter", "scatter", "scatter_add", "index_put", "index_copy",
      "index_add", "_unsafe_index_put", "masked_scatter", "index_fill")  # fmt: skip
def overwritten(call: Call) -> Expr:
    """Overwrite, or add to, a part of a tensor: linear in the tensor and in what is put there.

    Its coefficients are 0 and 1, or a constant ``alpha``.
    """
    name = next((n for n in ("src", "source", "values", "value") if n in call.arguments), "")
    if not name or set(call.tainted()) - {"self", name} or float(call.get("alpha", 1)) < 0 or "reduce" in call.node.op:
        return call.opaque("a position or a reduction that depends on the input has no rule", known=True)
    base, source, shape = call["self"], call[name], call.shape
    if _twice(call):
        return call.opaque("two values are written to one position, and which one stays is undefined", known=True)
    apply, fixed = call.bound("self", name), [_fixed_part(part) for part in (base, source)]
    terms = []
    if isinstance(base, Expr):
        nothing = torch.zeros_like(fixed[1]) if isinstance(fixed[1], Tensor) else 0.0
        terms.append(scaled(call, base, apply(torch.ones(shape, dtype=torch.float64), nothing)))
    if isinstance(source, Expr):
        ones = apply(torch.zeros(shape, dtype=torch.float64), torch.ones(source.shape, dtype=torch.float64))
        once = float(ones.max()) == 1.0 and int(ones.sum()) == source.numel if ones.numel() else True
        kind = "embedding" if once else "nonnegative"
        terms.append(call.linear(kind, lambda z: apply(z.new_zeros(shape), z), [source]))
    return add_terms(call, terms, apply(*fixed))


def _fixed_part(part: Any) -> Any:
    """Return a tensor in float64, zeros for one that depends on the input, and a number as it is."""
    if isinstance(part, Expr):
        return torch.zeros(part.shape, dtype=torch.float64)
    return part.detach().to(torch.float64) if isinstance(part, Tensor) else part


def _twice(call: Call) -> bool:
    """Return whether values are written over each other: which one stays is undefined, and torch's adjoint is wrong."""
    zeros = torch.zeros(call.shape, dtype=torch.float64)
    op = call.name
    if op == "scatter":
        index = call["index"].to(zeros.device)
        written = zeros.scatter_add(call["dim"], index, torch.ones(index.shape, dtype=torch.float64))
    elif op in ("index_put", "_unsafe_index_put") and not call.get("accumulate", False):
        places = [None if i is None else i.to(zeros.device) for i in call["indices"]]
        written = torch.ops.aten.index_put(zeros, places, torch.ones((), dtype=torch.float64), True)
    elif op == "index_copy":
        written = torch.bincount(call["index"].flatten().to(zeros.device))
    else:
        return False
    return bool(written.numel()) and float(written.max()) > 1


def repeats_heads(call: Call, x: Expr, heads: int) -> Expr:
    """Repeat each key or value head for the query heads that share it (grouped-query attention)."""
    times = heads // x.shape[-3]
    if times == 1:
        return x
    inner = (*x.shape[:-3], x.shape[-3], 1, *x.shape[-2:])
    wide = broadcast(reshaped(call, x, inner), (*x.shape[:-3], x.shape[-3], times, *x.shape[-2:]), call)
    return reshaped(call, wide, (*x.shape[:-3], heads, *x.shape[-2:]))


@rule("scatter_reduce", "index_reduce")
def scatter_reduce(call: Call) -> Expr:
    """Reduce entries that share a place with each other and with what is there, at places that are fixed.

    Sums and means are linear. Every output is the largest (or smallest) of entries of its own: 1-Lipschitz.
    """
    name = "src" if "src" in call.arguments else "source"
    if set(call.tainted()) - {"self", name}:
        return call.opaque("a position that depends on the input is discontinuous", known=True)
    how = str(call["reduce"])
    if how not in ("sum", "mean", "amax", "amin"):
        return call.opaque(f"no rule for a reduction by {how}")
    base, source, apply = call["self"], call[name], call.bound("self", name)
    parts = expressions([base, source])
    if how in ("amax", "amin"):
        return call.atom(Extremes(tuple(parts), [t for t in (base, source) if isinstance(t, Tensor)]))
    terms = []
    if isinstance(base, Expr):
        terms.append(call.linear("nonnegative", lambda z: apply(z, z.new_zeros(source.shape)), [base]))
    if isinstance(source, Expr):
        terms.append(call.linear("nonnegative", lambda z: apply(z.new_zeros(base.shape), z), [source]))
    return add_terms(call, terms, apply(_fixed_part(base), _fixed_part(source)))


class Extremes(Nonlinear):
    """Largest or smallest entries of disjoint sets of entries of one or two tensors, and of constants."""

    def __init__(self, inputs: tuple[Expr, ...], constants: list[Tensor]) -> None:
        self.inputs, self.constants = inputs, constants

    def constant(self, context: Context) -> Lip:
        """Return the root of the sum of squares of the constants."""
        first, *others = (context.lipschitz(e) for e in self.inputs)
        return first.root_sum_square(*others)

    def image(self, context: Context) -> Range:
        """Return the range of all entries together."""
        inside = [context.range(e) for e in self.inputs]
        low = [r.low for r in inside] + [float(t.min()) for t in self.constants if t.numel()]
        high = [r.high for r in inside] + [float(t.max()) for t in self.constants if t.numel()]
        return Range(min(low), max(high))
