"""The library's own ``nn.TransformerEncoder`` over a sequence of vectors."""

import torch
from torch import nn


class SequenceClassifier(nn.Module):
    """Classifier of sequences built on ``nn.TransformerEncoder``, post-norm unless ``norm_first``.

    Args:
        depth: number of encoder layers.
        norm_first: whether LayerNorm comes before attention and MLP.

    >>> SequenceClassifier(width=8, depth=1)(torch.zeros(2, 16, 16)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        features: int = 16,
        length: int = 16,
        classes: int = 10,
        width: int = 64,
        depth: int = 2,
        heads: int = 4,
        norm_first: bool = False,
    ) -> None:
        super().__init__()
        self.input_shape = (length, features)
        self.embedding = nn.Linear(features, width)
        self.positions = nn.Parameter(0.02 * torch.randn(1, length, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, dim_feedforward=4 * width, dropout=0.1, batch_first=True, norm_first=norm_first
        )
        last = nn.LayerNorm(width) if norm_first else None
        self.encoder = nn.TransformerEncoder(layer, depth, norm=last, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map sequences (N, T, features) to logits (N, classes)."""
        return self.head(self.encoder(self.embedding(x) + self.positions).mean(dim=1))
