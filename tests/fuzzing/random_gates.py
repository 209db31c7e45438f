"""Random products of what depends on the input: gates, attention, recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fuzzing.draw import Draw, Function, Shape, randomized


def gate(draw: Draw, shape: Shape) -> nn.Module:
    """Return a product or quotient of two functions of the input."""
    n = shape[-1]
    inner = randomized(nn.Linear(n, n), draw)
    two = randomized(nn.Linear(n, 4), draw)
    axis = draw.integer(1, len(shape))

    def squeeze(m: Any, x: Tensor) -> Tensor:
        places = tuple(range(2, x.ndim))
        pooled = x.mean(places, keepdim=True) if places else x
        return x * torch.sigmoid(pooled * 1.5 - 0.2)

    forms: dict[str, Callable[[Any, Tensor], Tensor]] = {
        "sigmoid": lambda m, x: x * torch.sigmoid(m.inner(x)),
        "tanh": lambda m, x: torch.tanh(x) * torch.tanh(m.inner(x)),
        "glu": lambda m, x: F.glu(m.two(x), -1),
        "swiglu": lambda m, x: F.silu(m.inner(x)) * x,
        "squeeze": squeeze,
        "square": lambda m, x: x * x,
        "quotient": lambda m, x: torch.tanh(m.inner(x)) / (1.2 + torch.sin(x)),
        "softmax": lambda m, x: x * m.inner(x).softmax(axis),
        "lerp": lambda m, x: torch.lerp(x, m.inner(x), torch.sigmoid(x)),
        "addcmul": lambda m, x: torch.addcmul(x, torch.tanh(x), torch.sigmoid(m.inner(x))),
        "cosine": lambda m, x: F.cosine_similarity(torch.tanh(x), torch.cos(m.inner(x)), dim=-1).unsqueeze(-1),
    }
    name = draw.choice(sorted(forms))
    return Function(f"gate {name}", forms[name], inner=inner, two=two)


def attention(draw: Draw, shape: Shape) -> nn.Module:
    """Return attention over the tokens of (tokens, features)."""
    n, d = shape
    choices: list[Callable[[Draw, int, int], nn.Module]] = [_dot_product, _dot_product, _by_hand, _learned]
    if d % 2 == 0:
        choices += [_multi_head, _rotary, _grouped_queries]
    return draw.choice(choices)(draw, n, d)


def _mask(draw: Draw, n: int) -> Tensor | None:
    """Return a mask or additive bias of some kind, rows that hide every key included."""
    k = draw.integer(0, 4)
    if k == 0:
        return draw.mask(n, n, share=0.6)
    if k == 1:
        return draw.tensor(n, n, scale=2.0)
    if k == 2:
        return torch.zeros(n, n, dtype=torch.float64).masked_fill(draw.mask(n, n, share=0.3), -math.inf)
    return None


def _projections(draw: Draw, d: int, heads: int = 1) -> dict[str, Tensor]:
    """Return weights of queries, keys and values, and biases."""
    weights = {name: draw.tensor(d, d, scale=draw.scale(-0.6, 0.3) / math.sqrt(d)) for name in "qkv"}
    biases = {f"b{name}": draw.tensor(d, scale=draw.choice([0.0, 1.0])) for name in "qkv"}
    return weights | biases


def _dot_product(draw: Draw, n: int, d: int) -> nn.Module:
    """Return torch's own attention with a mask, a bias, a causal mask or a scale."""
    mask = _mask(draw, n)
    causal = mask is None and draw.chance(0.4)
    scale = draw.choice([None, 0.5, 0.0, 2.0])

    def apply(m: Any, x: Tensor) -> Tensor:
        q, k, v = (F.linear(x, getattr(m, c), getattr(m, f"b{c}")).unsqueeze(1) for c in "qkv")
        given = None if mask is None else m.mask
        return F.scaled_dot_product_attention(q, k, v, given, is_causal=causal, scale=scale).squeeze(1)

    return Function(f"attention causal={causal} scale={scale}", apply, mask=mask, **_projections(draw, d))


def _by_hand(draw: Draw, n: int, d: int) -> nn.Module:
    """Return attention written as softmax and matrix products."""
    mask = draw.mask(n, n, share=0.7)
    mask[:, 0] = True
    fill = draw.choice([-math.inf, -1e9])

    def apply(m: Any, x: Tensor) -> Tensor:
        q, k, v = (F.linear(x, getattr(m, c), getattr(m, f"b{c}")) for c in "qkv")
        scores = (q @ k.mT / math.sqrt(d)).masked_fill(~m.mask, fill)
        return scores.softmax(-1) @ v

    return Function("attention by hand", apply, mask=mask, **_projections(draw, d))


def _learned(draw: Draw, n: int, d: int) -> nn.Module:
    """Return attention of learned queries, or over learned keys or values, shared by the whole batch."""
    memory, which = draw.tensor(1, 3, d), draw.choice(["query", "key", "value"])
    scale = draw.scale(-0.5, 0.5)

    def apply(m: Any, x: Tensor) -> Tensor:
        bounded = torch.tanh(x)
        q = m.memory if which == "query" else bounded
        k = m.memory if which == "key" else bounded
        v = m.memory if which == "value" else bounded
        tokens = min(k.shape[1], v.shape[1])
        return F.scaled_dot_product_attention(q, k[:, :tokens], v[:, :tokens], scale=scale).expand(len(x), -1, -1)

    return Function(f"learned {which}", apply, memory=memory)


def _heads(x: Tensor, heads: int) -> Tensor:
    """Split the features into heads: (batch, heads, tokens, features per head)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _rotated(x: Tensor) -> Tensor:
    """Rotate pairs of features by angles that grow with the position."""
    n, d = x.shape[-2:]
    angle = torch.arange(n, dtype=x.dtype).unsqueeze(-1) * (1.0 + torch.arange(d // 2, dtype=x.dtype))
    cos, sin = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


def _rotary(draw: Draw, n: int, d: int) -> nn.Module:
    """Return attention with rotary positions."""

    def apply(m: Any, x: Tensor) -> Tensor:
        q, k, v = (F.linear(x, getattr(m, c), getattr(m, f"b{c}")).unsqueeze(1) for c in "qkv")
        return F.scaled_dot_product_attention(_rotated(q), _rotated(k), v, is_causal=True).squeeze(1)

    return Function("rotary attention", apply, **_projections(draw, d))


def _grouped_queries(draw: Draw, n: int, d: int) -> nn.Module:
    """Return attention whose two query heads share one key head."""
    width = d // 2
    weights = {"q": draw.tensor(d, d), "k": draw.tensor(width, d), "v": draw.tensor(width, d)}

    def apply(m: Any, x: Tensor) -> Tensor:
        q, k, v = _heads(x @ m.q.mT, 2), _heads(x @ m.k.mT, 1), _heads(x @ m.v.mT, 1)
        out = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return out.transpose(1, 2).flatten(2)

    return Function("grouped queries", apply, **weights)


def _multi_head(draw: Draw, n: int, d: int) -> nn.Module:
    """Return nn.MultiheadAttention, or a whole encoder layer."""
    if draw.chance(0.4):
        layer = nn.TransformerEncoderLayer(d, 2, 4, batch_first=True, norm_first=draw.chance(), layer_norm_eps=1e-3)
        return randomized(layer, draw).eval()
    inner = randomized(nn.MultiheadAttention(d, 2, batch_first=True), draw).eval()
    return Function("multi-head", lambda m, x: m.inner(x, x, x, need_weights=False)[0], inner=inner)


def recurrent(draw: Draw, shape: Shape) -> nn.Module:
    """Return a recurrent layer over (time, features)."""
    if draw.chance(0.3):
        return _cells(draw, shape)
    kind = draw.choice([nn.LSTM, nn.GRU, nn.RNN])
    layer = kind(
        shape[-1], draw.integer(1, 2), num_layers=draw.integer(1, 2), batch_first=True, bidirectional=draw.chance(0.3)
    )
    which = draw.integer(0, 1)

    def apply(m: Any, x: Tensor) -> Tensor:
        out, state = m.inner(x)
        last = state[0] if isinstance(state, tuple) else state
        return out if which == 0 else last.transpose(0, 1)

    return Function("recurrent", apply, inner=randomized(layer, draw).eval())


def _cells(draw: Draw, shape: Shape) -> nn.Module:
    """Return a recurrent cell run over time by hand, or a layer whose first state depends on the input."""
    kind = draw.choice([nn.LSTMCell, nn.GRUCell, nn.RNNCell])
    steps = min(2, shape[0])

    def by_hand(m: Any, x: Tensor) -> Tensor:
        state = None
        for t in range(steps):
            state = m.cell(x[:, t], state)
        return state[0] if isinstance(state, tuple) else state  # type: ignore[return-value]

    def from_input(m: Any, x: Tensor) -> Tensor:
        out, _ = m.layer(x, torch.tanh(x.sum(1)[:, :1]).unsqueeze(0))
        return out

    cell = randomized(kind(shape[-1], 2), draw)
    layer = randomized(nn.GRU(shape[-1], 1, batch_first=True), draw).eval()
    return Function("cells", draw.choice([by_hand, from_input]), cell=cell, layer=layer)
