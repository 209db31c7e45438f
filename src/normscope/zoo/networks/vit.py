"""Vision transformer: patches, class token, pre-norm blocks of attention and MLP."""

import torch
from torch import nn
from torch.nn import functional as F

from normscope.zoo.networks.normalizers import token_normalizer


class PatchEmbedding(nn.Conv2d):
    """One linear map of every patch of an image: a convolution whose stride is its size, its positions as a sequence.

    >>> embedding = PatchEmbedding(8, 4, 5)
    >>> embedding.tokens, embedding(torch.zeros(1, 3, 8, 8)).shape
    (4, torch.Size([1, 4, 5]))
    """

    def __init__(self, image_size: int, patch: int, width: int) -> None:
        if image_size % patch:
            raise ValueError(
                f"Expected image_size to be a multiple of patch, got image_size={image_size}, patch={patch}."
            )
        super().__init__(3, width, patch, stride=patch)
        self.tokens = (image_size // patch) ** 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images (N, 3, H, W) to tokens (N, T, width)."""
        return super().forward(x).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    r"""Multi-head attention :math:`\mathrm{softmax}(QK^\top/\sqrt{d})V`, then a linear layer.

    >>> Attention(8, 2)(torch.zeros(1, 3, 8)).shape
    torch.Size([1, 3, 8])
    """

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"Expected width to be a multiple of heads, got width={width}, heads={heads}.")
        self.heads = heads
        self.causal = causal
        self.qkv = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map tokens (N, T, C) to tokens."""
        batch, tokens, width = x.shape
        split = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.output(mixed.transpose(1, 2).reshape(batch, tokens, width))


class TransformerBlock(nn.Module):
    """Pre-norm block: ``x + A(N(x))``, then ``x + M(N(x))`` with a GELU MLP of four times the width."""

    def __init__(self, width: int, heads: int, norm: str, causal: bool = False, eps: float = 1e-6) -> None:
        super().__init__()
        self.norm1 = token_normalizer(norm, width, eps)
        self.attention = Attention(width, heads, causal)
        self.norm2 = token_normalizer(norm, width, eps)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map tokens (N, T, C) to tokens."""
        x = x + self.attention(self.norm1(x))
        return x + self.narrow(F.gelu(self.widen(self.norm2(x))))


class VisionTransformer(nn.Module):
    """ViT-Ti/16: 5,717,416 parameters with 1000 classes at 224 pixels.

    Patches to tokens, a class token, learned positions, blocks, and a linear layer on the class token.

    Args:
        patch: pixels of a patch's side.

    >>> VisionTransformer(image_size=8, patch=4, width=12, depth=1, classes=2)(torch.zeros(1, 3, 8, 8)).shape
    torch.Size([1, 2])
    """

    def __init__(
        self,
        norm: str = "ln",
        classes: int = 1000,
        image_size: int = 224,
        patch: int = 16,
        width: int = 192,
        depth: int = 12,
        heads: int = 3,
    ) -> None:
        super().__init__()
        self.input_shape = (3, image_size, image_size)
        self.embedding = PatchEmbedding(image_size, patch, width)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, self.embedding.tokens + 1, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, norm) for _ in range(depth)))
        self.norm = token_normalizer(norm, width, 1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images (N, 3, H, W) to logits (N, classes)."""
        tokens = torch.cat([self.class_token.expand(x.shape[0], -1, -1), self.embedding(x)], dim=1)
        return self.head(self.norm(self.blocks(tokens + self.positions))[:, 0])
