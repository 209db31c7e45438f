"""Decoder-only transformer in the manner of Llama: RMSNorm by hand, rotary positions, grouped queries, SwiGLU.

Parameter names are those of the public Llama checkpoints, so that such a file fits a model of the same sizes.
"""

import torch
from torch import nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    r"""Written out: :math:`\gamma\, x / \sqrt{\mathrm{mean}(x^2) + \epsilon}`, the mean in float32 or better.

    >>> RMSNorm(2)(torch.tensor([3.0, 4.0])).square().mean().round(decimals=3)
    tensor(1., grad_fn=<RoundBackward1>)
    """

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize over the last axis."""
        wide = x if x.dtype == torch.float64 else x.float()
        scale = torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + self.eps)
        return self.weight * (wide * scale).to(x.dtype)


def rotate(x: torch.Tensor, base: float = 10000.0) -> torch.Tensor:
    r"""Rotate feature pairs (i, i + d/2) of position t by :math:`t\,\mathrm{base}^{-2i/d}`: an orthogonal map.

    >>> x = torch.randn(1, 1, 5, 4, generator=torch.Generator().manual_seed(0))
    >>> bool(torch.allclose(rotate(x).norm(dim=-1), x.norm(dim=-1)))
    True
    """
    length, features = x.shape[-2:]
    half = torch.arange(0, features, 2, device=x.device, dtype=torch.float64) / features
    angles = torch.arange(length, device=x.device, dtype=torch.float64)[:, None] * base**-half
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


class GroupedAttention(nn.Module):
    """Causal attention in which several query heads share one key and value head."""

    def __init__(self, width: int, heads: int, key_heads: int) -> None:
        super().__init__()
        if width % heads or heads % key_heads:
            raise ValueError(
                "Expected width to be a multiple of heads and heads a multiple of key_heads, "
                f"got width={width}, heads={heads}, key_heads={key_heads}."
            )
        self.heads, self.key_heads = heads, key_heads
        size = width // heads
        self.q_proj = nn.Linear(width, heads * size, bias=False)
        self.k_proj = nn.Linear(width, key_heads * size, bias=False)
        self.v_proj = nn.Linear(width, key_heads * size, bias=False)
        self.o_proj = nn.Linear(heads * size, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map tokens (N, T, C) to tokens."""
        batch, tokens, width = x.shape
        query = rotate(self.q_proj(x).view(batch, tokens, self.heads, -1).transpose(1, 2))
        key = rotate(self.k_proj(x).view(batch, tokens, self.key_heads, -1).transpose(1, 2))
        value = self.v_proj(x).view(batch, tokens, self.key_heads, -1).transpose(1, 2)
        repeats = self.heads // self.key_heads
        key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, tokens, width))


class SwiGLU(nn.Module):
    """Gated MLP ``D(silu(G x) * U x)``."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map tokens (N, T, C) to tokens."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Pre-norm block of grouped attention and gated MLP."""

    def __init__(self, width: int, hidden: int, heads: int, key_heads: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(width)
        self.self_attn = GroupedAttention(width, heads, key_heads)
        self.post_attention_layernorm = RMSNorm(width)
        self.mlp = SwiGLU(width, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map tokens (N, T, C) to tokens."""
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Token embedding, layers and the last RMSNorm."""

    def __init__(self, vocabulary: int, width: int, layers: int, hidden: int, heads: int, key_heads: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, hidden, heads, key_heads) for _ in range(layers))
        self.norm = RMSNorm(width)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Map token ids (N, T) to tokens (N, T, C)."""
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class LlamaLike(nn.Module):
    """Llama-like decoder and its output layer, tiny by default.

    Args:
        layers: number of layers.
        hidden: features inside the gated MLP.
        heads: query heads.
        key_heads: key and value heads.

    >>> LlamaLike(width=8, hidden=12)(torch.zeros(1, 5, dtype=torch.long)).shape
    torch.Size([1, 5, 256])
    """

    def __init__(
        self,
        vocabulary: int = 256,
        width: int = 128,
        layers: int = 2,
        hidden: int = 344,
        heads: int = 4,
        key_heads: int = 2,
    ) -> None:
        super().__init__()
        self.input_shape = (16,)
        self.vocabulary = vocabulary
        self.model = Decoder(vocabulary, width, layers, hidden, heads, key_heads)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Map token ids (N, T) to logits (N, T, vocabulary)."""
        return self.lm_head(self.model(ids))
