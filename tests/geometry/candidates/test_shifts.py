"""Shifts: biases that are taken away, taken up, or added to each other."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normscope.geometry.candidates.shifts import all_but_one, ones
from normscope.geometry.discover import symmetry
from symmetric_networks import nullity, randomized


def dimensions(model: nn.Module, x: Tensor, kind: str = "shift") -> dict[str, int]:
    """Return the dimension of the shifts by the parameter that starts them."""
    torch.manual_seed(0)
    return {g.parameters[0]: g.dimension for g in symmetry(model, x).groups if g.kind == kind}


def test_a_bias_is_taken_up_by_the_next_one() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    assert dimensions(model, torch.randn(8, 3)) == {"0.bias": 4}


def test_zero_padding_shows_a_shift() -> None:
    padded = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Conv2d(2, 2, 3, padding=1))
    plain = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Conv2d(2, 2, 3))
    x = torch.randn(2, 1, 6, 6)
    assert dimensions(padded, x) == {}
    assert dimensions(plain, x) == {"0.bias": 2}


def test_two_summands_share_a_constant() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 4), nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.one(x) + self.two(x * x))

    assert dimensions(Sum(), torch.randn(8, 3)) == {"one.bias": 4}


def test_keys_have_no_use_for_a_bias() -> None:
    model = nn.MultiheadAttention(4, 2, batch_first=True)

    class Self(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = model
            with torch.no_grad():
                model.in_proj_bias.normal_()

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x, need_weights=False)[0]

    # the constants of keys vanish in softmax, those of values go through to the bias of the output
    assert dimensions(Self(), torch.randn(3, 5, 4)) == {"attention.in_proj_bias": 8}


def test_bases() -> None:
    assert all_but_one(6, 2).tolist() == [0, 1, 3, 4]
    assert ones(4, 2).tolist() == [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]


class PostNorm(nn.Module):
    """A block normalized behind its sum, with dropout, positions relative to each other, and a bias by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first = nn.Linear(3, 4), nn.LayerNorm(4)
        self.q, self.k, self.v, self.o = (nn.Linear(4, 4) for _ in range(4))
        self.table = nn.Parameter(torch.randn(9, 1))
        self.drop, self.last, self.offset = nn.Dropout(0.1), nn.LayerNorm(4), nn.Parameter(torch.zeros(1, 1, 4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores for each of five places."""
        x = self.first(self.stem(x))
        places = torch.arange(5)
        near = self.table[(places[:, None] - places + 4).reshape(-1)].reshape(5, 5)
        weights = torch.softmax(self.q(x) @ self.k(x).mT + near, -1)
        x = self.last(x + self.drop(self.o(weights @ self.v(x))))
        return self.head(torch.tanh(x) + self.offset)


def test_tables_bare_biases_and_sums_behind_dropout() -> None:
    torch.manual_seed(0)
    found = symmetry(randomized(PostNorm()).eval(), torch.randn(80, 5, 3, dtype=torch.float64), batch=80)
    shifts = {g.parameters[0]: g.dimension for g in found.groups if g.kind == "shift"}
    assert shifts["table"] == 1
    assert shifts["offset"] == 4
    assert found.dimension == nullity(found.function.exact(), 1e-20)
