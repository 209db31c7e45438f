"""Recurrent networks over a sequence: the library's LSTM and GRU, and cells written out, with LayerNorm if wanted."""

import torch
from torch import nn

from normscope.zoo.networks.normalizers import token_normalizer


class Cell(nn.Module):
    """One step of a recurrent network: two products, each normalized, with a block for each gate."""

    gates: int

    def __init__(self, features: int, hidden: int, norm: str) -> None:
        super().__init__()
        self.hidden = hidden
        self.input = nn.Linear(features, self.gates * hidden)
        self.recurrent = nn.Linear(hidden, self.gates * hidden)
        self.input_norm = token_normalizer(norm, self.gates * hidden)
        self.recurrent_norm = token_normalizer(norm, self.gates * hidden)


class LSTMCell(Cell):
    r"""One step of an LSTM, written out.

    .. math:: (i, f, g, o) = N(W x) + N(U h), \quad c' = s(f) c + s(i) \tanh g, \quad h' = s(o) \tanh c'

    Args:
        norm: ``"ln"``, ``"rms"`` or ``"none"``, for the two products.
    """

    gates = 4

    def forward(self, x: torch.Tensor, state: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Return the next (h, c)."""
        h, c = state
        gates = self.input_norm(self.input(x)) + self.recurrent_norm(self.recurrent(h))
        i, f, g, o = gates.chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class GRUCell(Cell):
    r"""One step of a GRU, written out.

    .. math:: r = s(a_r + b_r), \quad z = s(a_z + b_z), \quad n = \tanh(a_n + r\, b_n), \quad h' = (1 - z) n + z h

    with :math:`a = N(W x)` and :math:`b = N(U h)`; the arguments are those of :class:`LSTMCell`.
    """

    gates = 3

    def forward(self, x: torch.Tensor, state: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Return the next (h,)."""
        (h,) = state
        a_r, a_z, a_n = self.input_norm(self.input(x)).chunk(3, dim=1)
        b_r, b_z, b_n = self.recurrent_norm(self.recurrent(h)).chunk(3, dim=1)
        z = torch.sigmoid(a_z + b_z)
        return ((1 - z) * torch.tanh(a_n + torch.sigmoid(a_r + b_r) * b_n) + z * h,)


_CELLS = {"lstm": LSTMCell, "gru": GRUCell}
_LAYERS = {"lstm": nn.LSTM, "gru": nn.GRU}


class Unrolled(nn.Module):
    """A cell applied along the sequence, then a linear layer on the last h.

    Args:
        kind: of the cell, ``"lstm"`` or ``"gru"``.

    >>> Unrolled("gru", norm="rms")(torch.zeros(2, 8, 8)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        kind: str = "lstm",
        norm: str = "none",
        features: int = 8,
        length: int = 8,
        hidden: int = 32,
        classes: int = 10,
    ) -> None:
        super().__init__()
        self.input_shape = (length, features)
        self.cell: Cell = _CELLS[kind](features, hidden, norm)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map sequences (N, T, features) to logits (N, classes)."""
        start = x.new_zeros(x.shape[0], self.cell.hidden)
        state: tuple[torch.Tensor, ...] = (start, start) if isinstance(self.cell, LSTMCell) else (start,)
        for element in x.unbind(dim=1):
            state = self.cell(element, state)
        return self.head(state[0])


class Recurrent(nn.Module):
    """``nn.LSTM`` or ``nn.GRU``, then a linear layer on the last h; by default it reads the rows of an 8x8 digit.

    Args:
        kind: of the layers, ``"lstm"`` or ``"gru"``.
        layers: stacked layers.

    >>> Recurrent("gru")(torch.zeros(2, 8, 8)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        kind: str = "lstm",
        features: int = 8,
        length: int = 8,
        hidden: int = 32,
        classes: int = 10,
        layers: int = 1,
    ) -> None:
        super().__init__()
        self.input_shape = (length, features)
        self.recurrent: nn.RNNBase = _LAYERS[kind](features, hidden, num_layers=layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map sequences (N, T, features) to logits (N, classes)."""
        outputs, _ = self.recurrent(x)
        return self.head(outputs[:, -1])
