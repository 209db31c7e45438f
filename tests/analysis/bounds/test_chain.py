"""A network as a chain: block matrices written out, the function they give, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from networks import Lambda
from normscope.analysis.bounds.chain import chain_of, has_biases, relu_units, row_squares
from normscope.analysis.bounds.result import RefusedError
from normscope.lipschitz.segments import SegmentNorms
from normscope.operators.program import build_program

from .conftest import captured_of


def _program(model: nn.Module, *shape: int) -> Any:
    captured = captured_of(model, *shape)
    return build_program(captured.graph, captured.tensors, captured.at_batch(1))


def _affine(function: Any, inputs: int) -> tuple[Tensor, Tensor]:
    """Return matrix and constant of an affine function of flat inputs."""
    zero = torch.zeros(inputs, dtype=torch.float64)
    return torch.autograd.functional.jacobian(function, zero), function(zero).detach()


def _blocks(net: Any) -> list[Tensor]:
    """Return the block matrices of the residual network by hand: state, constant; carried along where needed."""
    net = net.double().requires_grad_(False)
    c = math.sqrt(64)
    parts = [
        (lambda z: net.stem(z.view(1, 1, 8, 8)).flatten(), 64),
        (lambda z: net.norm(net.first(z.view(1, 2, 8, 8))).flatten(), 128),
        (lambda z: net.second(z.view(1, 2, 8, 8)).flatten(), 128),
        (lambda z: net.last(z), 64),
    ]
    maps = [_affine(f, n) for f, n in parts]
    short, _ = _affine(lambda z: F.pad(z.view(1, 2, 8, 8)[:, :, ::2, ::2], (0, 0, 0, 0, 1, 1)).flatten(), 128)
    one = torch.ones(1, 1, dtype=torch.float64)

    def with_bias(rows: list[Tensor], bias: Tensor) -> Tensor:
        top = torch.cat([torch.cat(rows, 1), bias[:, None] / c], 1)
        bottom = torch.cat([torch.zeros(1, top.shape[1] - 1, dtype=torch.float64), one], 1)
        return torch.cat([top, bottom])

    (a, ab), (b, bb), (d, db), (e, eb) = maps
    eye = torch.eye(128, dtype=torch.float64)
    return [with_bias([a], ab), with_bias([b + eye], bb), with_bias([d + short], db), with_bias([e], eb)[:-1]]


def test_plain_chain_is_measured_exactly() -> None:
    """Rows, Frobenius and sums of the matrices with their biases, as written out."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 3)).eval()
    net[1].running_var.uniform_(0.5, 2.0)
    layers = chain_of(_program(net, 4, 5), SegmentNorms())
    net.requires_grad_(False)
    scale = net[1].weight.double() / (net[1].running_var.double() + 1e-5).sqrt()
    bias = scale * (net[0].bias.double() - net[1].running_mean.double()) + net[1].bias.double()
    first = torch.cat([scale[:, None] * net[0].weight.double(), bias[:, None] / math.sqrt(5)], 1)
    first = torch.cat([first, torch.eye(6, dtype=torch.float64)[5:]])
    last = torch.cat([net[3].weight.double(), net[3].bias.double()[:, None] / math.sqrt(5)], 1)
    for layer, matrix in zip(layers, (first, last), strict=True):
        rows = matrix.norm(dim=1)
        found = [math.exp(v) for v in (layer.frobenius, layer.two_one, layer.row)]
        assert found == pytest.approx([float(rows.norm()), float(rows.sum()), float(rows.max())], rel=1e-6)
        assert math.exp(layer.spectral) >= float(torch.linalg.matrix_norm(matrix, 2)) * (1 - 1e-9)
        assert (layer.width, layer.fan_in) == tuple(matrix.shape)
    assert has_biases(layers, 5)


def test_residual_network_is_a_chain(residual: Any) -> None:
    """Norms are at least those of the block matrices, and at most what the triangle inequality loses."""
    layers = chain_of(_program(residual, 2, 1, 8, 8), SegmentNorms())
    matrices = _blocks(residual)
    assert len(layers) == len(matrices)
    for layer, matrix in zip(layers, matrices, strict=True):
        rows = matrix.norm(dim=1)
        true = [float(torch.linalg.matrix_norm(matrix, 2)), float(rows.norm()), float(rows.sum()), float(rows.max())]
        found = [math.exp(v) for v in (layer.spectral, layer.frobenius, layer.two_one, layer.row)]
        assert all(f >= t * (1 - 1e-9) for f, t in zip(found, true, strict=True))
        assert all(f <= 2 * t for f, t in zip(found, true, strict=True))
        assert (layer.width, layer.fan_in) == tuple(matrix.shape)


def test_block_matrices_give_the_network(residual: Any) -> None:
    """Multiplying them with ReLUs between is the network itself: nothing is approximated."""
    x = torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    residual.requires_grad_(False)
    state = torch.cat([x.flatten(), torch.tensor([8.0], dtype=torch.float64)])
    *hidden, last = _blocks(residual)
    for matrix in hidden:
        state = torch.relu(matrix @ state)
    assert torch.allclose(last @ state, residual(x)[0])


class _Copied(nn.Module):
    """Each entry three times, then a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[:, :, None].expand(-1, -1, 3).reshape(-1, 12))


@pytest.mark.parametrize("large", [False, True], ids=["written out", "bounded"])
def test_coefficients_of_copied_entries_add_up(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies by expansion or padding meet again in a row: squares of the single weights are too small."""
    torch.manual_seed(3)
    copies = {_Copied(): 3}
    for mode, most in (("zeros", 1), ("reflect", 9), ("replicate", 4), ("circular", 9)):
        layer = nn.Conv2d(1, 2, 3, padding=1, padding_mode=mode, bias=False)
        torch.nn.init.uniform_(layer.weight, 0.1, 1.0)
        copies[nn.Sequential(layer, nn.Flatten())] = most
    if large:
        monkeypatch.setattr("normscope.analysis.bounds.chain._ROWS", 1)
    for net, most in copies.items():
        shape = (4,) if isinstance(net, _Copied) else (1, 3, 3)
        matrix, _ = _affine(lambda z, net=net, shape=shape: net.double()(z.view(1, *shape)).flatten(), math.prod(shape))
        (found_layer,) = chain_of(_program(net.float(), 2, *shape), SegmentNorms())
        rows = matrix.norm(dim=1)
        found = [math.exp(v) for v in (found_layer.frobenius, found_layer.two_one, found_layer.row)]
        for value, truth in zip(found, (rows.norm(), rows.sum(), rows.max()), strict=True):
            assert float(truth) * (1 - 1e-7) <= value <= float(truth) * (most**0.5 if large else 1) * (1 + 1e-6)


class _Wide(nn.Module):
    """A skip over two layers: its carried tensor is not used at once."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(6, 6, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.a(x))
        return self.d(F.relu(self.c(F.relu(self.b(h))) + h))


def test_carried_along() -> None:
    """The layer between has the rows of an identity beside its own."""
    torch.manual_seed(1)
    net = _Wide()
    layers = chain_of(_program(net, 2, 6), SegmentNorms())
    assert [(x.fan_in, x.width) for x in layers] == [(6, 6), (6, 12), (12, 6), (6, 6)]
    assert math.exp(2 * layers[1].frobenius) == pytest.approx(float(net.b.weight.detach().double().square().sum()) + 6)
    assert not has_biases(layers, 6)


class _Signed(nn.Module):
    """A skip that carries the input, which may be negative."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.a(x)) + x)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (_Signed(), "may be negative"),
        (nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)), "not a ReLU"),
        (nn.Sequential(nn.Linear(3, 3), nn.LeakyReLU(2.0), nn.Linear(3, 2)), "slope above one"),
        (nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.ReLU(), nn.Linear(3, 2)), "not a ReLU"),
        (Lambda(lambda s, x: s.b(torch.tanh(s.a(x))), a=nn.Linear(3, 3), b=nn.Linear(3, 2)), "^the tanh layer is not"),
    ],
)
def test_refused(model: nn.Module, reason: str) -> None:
    """What is no chain is refused with the reason."""
    with pytest.raises(RefusedError, match=reason):
        chain_of(_program(model, 2, 3), SegmentNorms())


def test_units(residual: Any) -> None:
    """Of every ReLU, and none where there are other activations."""
    assert relu_units(_program(residual, 2, 1, 8, 8)) == [128, 128, 64]
    with pytest.raises(RefusedError):
        relu_units(_program(nn.Sequential(nn.Linear(3, 3), nn.GELU(), nn.Linear(3, 2)), 2, 3))


def test_rows_of_maps_in_a_row() -> None:
    """Pool and matrix together are written out: as the Jacobian says."""
    torch.manual_seed(2)
    net = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 3, bias=False))
    program = _program(net, 2, 1, 4, 4)
    found = row_squares(program.atoms[0], program.outputs[0][1])
    twin = net.double().requires_grad_(False)
    jacobian = torch.autograd.functional.jacobian(lambda x: twin(x)[0], torch.zeros(1, 1, 4, 4, dtype=torch.float64))
    assert torch.allclose(found, jacobian.flatten(1).square().sum(1))
