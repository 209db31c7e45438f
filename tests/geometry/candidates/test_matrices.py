"""Matrices: heads, linear layers in a row, and rotations of residual streams."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normscope.geometry.candidates.matrices import centred_basis
from normscope.geometry.discover import symmetry
from symmetric_networks import Attention, randomized


def matrices(model: nn.Module, x: Tensor) -> list[int]:
    """Return the dimensions of the matrix groups."""
    found = symmetry(randomized(model), x.double())
    return sorted(g.dimension for g in found.groups if g.kind in ("linear", "rotation"))


def test_heads_and_streams() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 4, 8)
    # two heads of width three: values and queries; SO(6) of the stream
    assert matrices(Attention(nn.RMSNorm, bias=False), x) == [9, 9, 9, 9, 15]
    # LayerNorm leaves the constants alone: SO(5)
    assert matrices(Attention(), x) == [9, 9, 9, 9, 10]


def test_rotary_positions_leave_a_turn_per_pair() -> None:
    torch.manual_seed(0)
    found = matrices(Attention(nn.RMSNorm, bias=False, turned=True, heads=3), torch.randn(4, 4, 8))
    assert found == [1, 1, 1, 4, 4, 4, 15]


def test_two_linear_layers() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 4, bias=False))
    assert matrices(model, torch.randn(8, 4)) == [9]


def test_tied_embeddings_allow_rotations_only_without_a_gain() -> None:
    class Tied(nn.Module):
        def __init__(self, gain: bool) -> None:
            super().__init__()
            self.table = nn.Embedding(7, 4)
            self.norm = nn.RMSNorm(4, elementwise_affine=gain)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.table(x)) @ self.table.weight.mT

    torch.manual_seed(0)
    tokens = torch.randint(7, (5, 3))
    for gain, expected in ((False, [6]), (True, [])):
        found = symmetry(randomized(Tied(gain)), tokens)
        assert [g.dimension for g in found.groups if g.kind == "rotation"] == expected


def test_centred_basis_is_orthonormal() -> None:
    basis = centred_basis(5)
    assert torch.allclose(basis.mT @ basis, torch.eye(4, dtype=torch.float64), atol=1e-12)


def test_heads_that_share_keys_and_values() -> None:
    class Grouped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.kv, self.o = nn.Linear(6, 12, bias=False), nn.Linear(6, 6, bias=False), nn.Linear(12, 6)

        def forward(self, x: Tensor) -> Tensor:
            q = self.q(x).unflatten(-1, (4, 3)).transpose(1, 2)
            k, v = self.kv(x).unflatten(-1, (2, 3)).transpose(1, 2).repeat_interleave(2, 1).split([2, 2], 1)
            k, v = (t.repeat_interleave(2, 1) for t in (k, v))
            z = nn.functional.scaled_dot_product_attention(q, k, v)
            return torch.tanh(self.o(z.transpose(1, 2).flatten(2)))

    torch.manual_seed(0)
    assert matrices(Grouped(), torch.randn(4, 5, 6)) == [9, 9]


def test_orbits_of_turns_are_exact() -> None:
    torch.manual_seed(0)
    found = symmetry(randomized(Attention(nn.RMSNorm, bias=False, turned=True, heads=3)), torch.randn(8, 4, 8).double())
    turns = [g for g in found.groups if "turned" in g.statement]
    assert turns
    for turn in turns:
        assert turn.family is not None
        exact = found.function.exact()
        assert exact.change(turn.family.move(exact.point, torch.ones(1).double(), 1.0)) < 1e-12
