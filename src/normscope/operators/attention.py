"""Softmax and attention."""

import math
from typing import Any

import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.operators.expression import Expr, as_expr
from normscope.operators.indexing import repeats_heads
from normscope.operators.layout import broadcast
from normscope.operators.nonlinear import INF, Context, Lip, Nonlinear, Opaque, Range, Stretch, outward, product
from normscope.operators.reduction import Contraction
from normscope.operators.registry import Call, rule


class Softmax(Stretch):
    """Softmax along an axis: its Jacobian ``diag(p) - p p^T`` has norm at most 1/2 (zero for one entry)."""

    def __init__(self, x: Expr, axis: int) -> None:
        self.axis = axis % max(1, len(x.shape))
        self.length = x.shape[self.axis] if x.shape else 1
        super().__init__(x, 0.5 if self.length > 1 else 0.0)

    def image(self, context: Context) -> Range:
        """Return the range of probabilities, or of zeros where every entry is masked."""
        x = self.inputs[0]
        groups = x.numel // max(1, self.length)
        last = self.axis == len(x.shape) - 1
        return Range(0.0, 1.0, row=1.0 if last else INF, norm=outward(0.0, math.sqrt(groups))[1])


class LogSoftmax(Stretch):
    """Log-softmax along an axis of n entries: ``I - 1 p^T`` has norm at most ``sqrt(n)``, approached as p -> e_j."""

    def __init__(self, x: Expr, axis: int) -> None:
        self.axis = axis % max(1, len(x.shape))
        self.length = x.shape[self.axis] if x.shape else 1
        super().__init__(x, math.sqrt(self.length) if self.length > 1 else 0.0)

    def image(self, context: Context) -> Range:
        """Return values between minus the spread of the input and zero."""
        inside = context.range(self.inputs[0])
        if inside.sup == INF:
            return Range(-INF, 0.0)
        return Range(*outward(inside.low - inside.high - math.log(max(1, self.length)), 0.0))


class LogSumExp(Contraction):
    """Log-sum-exp along axes, a smooth maximum: its gradient is a distribution, so it is 1-Lipschitz as well."""

    def image(self, context: Context) -> Range:
        """Return the range of the input, raised by the logarithm of the number of entries."""
        inside = context.range(self.inputs[0])
        most = math.log(max(1, self.inputs[0].numel))
        room = 0.0 if math.isinf(inside.high) else 2.0**-50 * (abs(inside.high) + most)
        return Range(inside.low, inside.high + most + room)


@rule("softmax", "_softmax", "_safe_softmax", "special_softmax", "log_softmax", "_log_softmax", "special_log_softmax")
def softmax(call: Call) -> Expr:
    """Softmax along ``dim``, or its logarithm."""
    kind = LogSoftmax if "log" in call.name else Softmax
    return call.atom(kind(call.first, int(call["dim"])))


@rule("logsumexp", "special_logsumexp")
def logsumexp(call: Call) -> Expr:
    """Log-sum-exp along ``dim``."""
    return call.atom(LogSumExp(call.first))


@statement("normscope", "F11", holds="rows of q, k, v bounded; any fixed mask and additive bias")
def attention_constants(
    queries: int, scale: float, query_row: float, key_row: float, value_row: float
) -> tuple[float, float, float]:
    """Return the constants of softmax attention with respect to q, k and v on bounded rows.

    ``||dO|| <= s R_v R_k ||dQ|| + s R_v R_q sqrt(N) ||dK|| + sqrt(N) ||dV||``

    with N queries, scale s, and R the largest row norms; from
    ``dO_i = sum_j P_ij dv_j + s Cov_i(v, k) dq_i + s sum_j P_ij (v_j - o_i) <q_i, dk_j>``, ``||P|| <= sqrt(N)``,
    ``||Cov_i(v, k)|| <= R_v R_k`` and column sums of P at most N. R_k and R_v may be measured from any fixed centre.

    >>> attention_constants(4, 0.5, 1.0, 1.0, 2.0)
    (1.0, 2.0, 2.0)
    """
    root = math.sqrt(queries)
    to_query = 0.0 if 0.0 in (scale, value_row, key_row) else scale * value_row * key_row
    to_key = 0.0 if 0.0 in (scale, value_row, query_row) else scale * value_row * query_row * root
    return to_query, to_key, root


@statement("normscope", "ATT-1", holds="rows of v within R of a fixed centre")
def score_constant(value_row: float) -> float:
    """Return the constant of softmax attention with respect to terms added to its scores.

    ``||dO|| <= sqrt(16/27) R ||dB||`` in ``O = softmax(S + B) V``: ``dO_i = sum_j P_ij (v_j - o_i) dB_ij``, with
    ``||v_j - o_i|| <= 2 R (1 - P_ij)`` and ``p^2 (1 - p)^2 <= 4/27 p``.

    >>> score_constant(1.0) < 0.77
    True
    """
    return product(math.sqrt(16 / 27) * (1 + 1e-15), value_row)


class Attention(Nonlinear):
    """``softmax(s Q K^T + mask) V`` on the ranges of q, k and v; the mask is fixed or depends on the input.

    Attributes:
        hides: some query may see no key; its output is zero.
        shown: a fixed mask: what is added to the logits, or which keys each query sees.
        exact_scale: s with its sign.
    """

    def __init__(
        self,
        q: Expr,
        k: Expr,
        v: Expr,
        scale: float,
        *,
        hides: bool = False,
        mask: Expr | None = None,
        shown: Tensor | None = None,
    ) -> None:
        self.inputs, self.scale, self.hides = (q, k, v) if mask is None else (q, k, v, mask), abs(scale), hides
        self.shown, self.exact_scale = shown, scale

    def constant(self, context: Context) -> Lip:
        """Return the constants of :func:`attention_constants` applied to those of q, k and v."""
        q, k, v = self.inputs[:3]
        if k.shape[-2] == 1:  # one key: the output is its value, whatever the query
            return context.lipschitz(v).times(math.sqrt(q.shape[-2]))
        rows = (0.0, 0.0, 0.0)
        if self.scale:
            rows = (context.range(q).row, context.centered_row(k), context.centered_row(v))
        lip = Lip.constant(-INF, context.blocks)
        for expr, factor in zip((q, k, v), attention_constants(q.shape[-2], self.scale, *rows), strict=True):
            lip = lip + context.lipschitz(expr).times(factor)
        for mask in self.inputs[3:]:
            lip = lip + context.lipschitz(mask).times(score_constant(context.centered_row(v)))
        return lip

    def image(self, context: Context) -> Range:
        """Return the range of the values: every output row is an average of value rows, or zero."""
        values = context.range(self.inputs[2])
        if self.hides:
            return Range(min(values.low, 0.0), max(values.high, 0.0), values.row)
        return Range(values.low, values.high, values.row)


@rule("scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu",
      "_scaled_dot_product_attention_math", "_scaled_dot_product_efficient_attention",
      "_scaled_dot_product_flash_attention", "_scaled_dot_product_attention_math_for_mps")  # fmt: skip
def attention(call: Call) -> Any:
    """Scaled dot-product attention in evaluation."""
    q, k, v = (call[name] for name in ("query", "key", "value"))
    mask = call.get("attn_mask", call.get("attn_bias"))
    moving = isinstance(mask, Expr)
    if moving and isinstance(mask.atom, Opaque):
        return call.opaque("attention whose mask changes with the input is discontinuous", known=True)
    if float(call.get("dropout_p", 0.0)) > 0:
        return call.opaque("attention with active dropout is random")
    q, k, v = map(as_expr, (q, k, v))
    if 0 in (q.numel, k.numel, v.numel):
        return call.opaque("attention over nothing")
    scale = call.arguments.get("scale")
    scale = 1.0 / math.sqrt(q.shape[-1]) * (1 + 1e-15) if scale is None else float(scale)
    if len(q.shape) > 2:  # grouped queries: fewer heads of keys; a single head is broadcast like any batch axis
        k, v = (repeats_heads(call, t, q.shape[-3]) if 1 < t.shape[-3] < q.shape[-3] else t for t in (k, v))
    batch = torch.broadcast_shapes(*(t.shape[:-2] for t in (q, k, v)))
    q, k, v = (broadcast(t, (*batch, *t.shape[-2:]), call) for t in (q, k, v))
    # A causal mask always shows the first key; a given mask may show none.
    added = broadcast(mask, (*batch, q.shape[-2], k.shape[-2]), call) if moving else None
    shown = None if moving else mask
    if bool(call.get("is_causal", False)):
        shown = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    atom = Attention(q, k, v, scale, hides=mask is not None, mask=added, shown=shown)
    return call.with_rest(call.atom(atom, (*q.shape[:-1], v.shape[-1])), "sums of exponentials used outside attention")
