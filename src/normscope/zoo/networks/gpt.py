"""Decoder-only transformer in the manner of GPT-2: learned positions, pre-norm blocks, causal attention."""

import torch
from torch import nn

from normscope.zoo.networks.normalizers import token_normalizer
from normscope.zoo.networks.vit import TransformerBlock


class GPT(nn.Module):
    """Decoder-only transformer; 12 layers of width 768, 12 heads, 50257 tokens, context 1024 are GPT-2.

    Args:
        context: longest sequence.
        layers: number of blocks.
        tied: whether the output layer is the token embedding.

    >>> GPT(width=8, layers=1, heads=2)(torch.zeros(1, 5, dtype=torch.long)).shape
    torch.Size([1, 5, 256])
    """

    def __init__(
        self,
        norm: str = "ln",
        vocabulary: int = 256,
        context: int = 64,
        width: int = 128,
        layers: int = 4,
        heads: int = 4,
        tied: bool = True,
    ) -> None:
        super().__init__()
        self.input_shape = (min(context, 16),)
        self.vocabulary = vocabulary
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, norm, True, 1e-5) for _ in range(layers)))
        self.norm = token_normalizer(norm, width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Map token ids (N, T) to logits (N, T, vocabulary)."""
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.head(self.norm(self.blocks(self.tokens(ids) + self.positions(places))))
