"""Balanced channels: the same function bit for bit, and the same numbers however the channels were scaled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import normscope
from networks import Lambda, captured_of, points, program_of, seeded
from normscope.graph.capture import Captured
from normscope.linalg.matrix_rounding import gamma
from normscope.lipschitz.local import balanced_channels, bounded_rounding, feedback_system, precise_values
from normscope.lipschitz.local.balanced_channels import BalancedProgram, balanced_program, with_balanced_channels
from normscope.lipschitz.local.ball import on_balls
from normscope.lipschitz.local.linear_steps import WEIGHT_ROUNDINGS, Steps
from normscope.lipschitz.local.tangent_propagation import TangentPropagation
from normscope.lipschitz.segments import Effort, SegmentNorms
from normscope.operators.program import Program


class Block(nn.Module):
    """A residual block with BatchNorm; its shortcut is padded, or a convolution, where channels are added."""

    def __init__(self, into: int, out: int, *, pads: bool) -> None:
        super().__init__()
        self.pads, self.added = pads, out - into
        self.a, self.b = nn.Conv2d(into, out, 3, padding=1, bias=False), nn.Conv2d(out, out, 3, padding=1)
        self.n, self.m = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.shortcut = nn.Conv2d(into, out, 1) if not pads and into != out else None

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        y = self.m(self.b(torch.relu(self.n(self.a(x)))))
        if self.shortcut is not None:
            x = self.shortcut(x)
        elif self.added:
            x = nn.functional.pad(x[:, :, :, :], (0, 0, 0, 0, self.added // 2, self.added - self.added // 2))
        return torch.relu(x + y)


def _residual(*, pads: bool) -> nn.Module:
    blocks = Block(4, 4, pads=pads), Block(4, 6, pads=pads)
    stem = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()
    return nn.Sequential(*stem, *blocks, nn.AvgPool2d(2), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(24, 3))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dense": (lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.LeakyReLU(), nn.Linear(6, 3)), (4,)),
    "padded residual": (lambda: _residual(pads=True), (2, 8, 8)),
    "projected residual": (lambda: _residual(pads=False), (2, 8, 8)),
    "tokens": (
        lambda: Lambda(
            lambda s, x: s.c(s.b(s.a(s.n(x)).relu()) + x).mean(1),
            n=nn.LayerNorm(4),
            a=nn.Linear(4, 6),
            b=nn.Linear(6, 4),
            c=nn.Linear(4, 3),
        ),
        (5, 4),
    ),
    "group normalization": (
        lambda: Lambda(
            lambda s, x: s.q(torch.relu(s.i(torch.relu(s.h(torch.relu(s.g(s.p(x)))))))),
            p=nn.Conv2d(2, 4, 3),
            g=nn.GroupNorm(2, 4),
            h=nn.Conv2d(4, 4, 3),
            i=nn.InstanceNorm2d(4, affine=True),
            q=nn.Conv2d(4, 3, 1),
        ),
        (2, 6, 6),
    ),
    "mean over places": (
        lambda: Lambda(lambda s, x: s.b(s.a(x).relu().mean((2, 3))), a=nn.Conv2d(2, 5, 3), b=nn.Linear(5, 2)),
        (2, 6, 6),
    ),
}


def _network(name: str) -> tuple[nn.Module, Tensor]:
    build, shape = NETWORKS[name]
    model = seeded(build()).eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                for tensor in (module.weight, module.bias, module.running_mean):
                    tensor.copy_(torch.randn(tensor.shape, generator=generator))
                module.running_var.uniform_(0.5, 2.0, generator=generator)
    return model, points(3, *shape)


def _scaled(captured: Captured, seed: int) -> Captured:
    """Return a captured network with every channel that is balanced scaled by a power of two, by another route."""
    balanced = with_balanced_channels(captured)
    generator = torch.Generator().manual_seed(seed)
    tensors = dict(balanced.tensors)
    for into, out in ((k, v) for k, v in PAIRS if k[0] in tensors and v in tensors):
        factor = torch.exp2(torch.randint(-6, 7, (len(tensors[into[0]]),), generator=generator).double())
        for name in into:
            tensors[name] = tensors[name] * factor.reshape(-1, *(1,) * (tensors[name].ndim - 1)).to(tensors[name])
        tensors[out] = tensors[out] / factor.reshape(1, -1, *(1,) * (tensors[out].ndim - 2)).to(tensors[out])
    return Captured(captured.graph, tensors, captured.example, captured.input_names)


#: Tensors that write channels which nothing but one weight reads: scaled by d and by 1/d.
PAIRS = (
    (("1.weight", "1.bias"), "3.weight"),
    (("3.n.weight", "3.n.bias"), "3.b.weight"),
    (("4.n.weight", "4.n.bias"), "4.b.weight"),
    (("a.weight", "a.bias"), "b.weight"),
    (("n.weight", "n.bias"), "a.weight"),
    (("g.weight", "g.bias"), "h.weight"),
    (("i.weight", "i.bias"), "q.weight"),
)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_function_stays_and_the_scales_do_not_matter(name: str) -> None:
    """Outputs are equal to the last bit; from any scales the same weights come out; something was scaled at all."""
    model, x = _network(name)
    captured = captured_of(model, x)
    found = with_balanced_channels(captured)
    assert torch.equal(found.run([x])[0], captured.run([x])[0])
    assert any(not torch.equal(found.tensors[k], v) for k, v in captured.tensors.items())
    for seed in (1, 2):
        other = _scaled(captured, seed)
        assert any(not torch.equal(other.tensors[k], v) for k, v in found.tensors.items())
        assert torch.equal(other.run([x])[0], captured.run([x])[0])
        again = with_balanced_channels(other)
        assert all(torch.equal(again.tensors[k], v) for k, v in found.tensors.items())


def test_residual_channels_are_scaled_alike() -> None:
    """The stream through sums, padding and pools: every writer, every reader, the running means."""
    model, x = _network("padded residual")
    captured = captured_of(model, x)
    found = with_balanced_channels(captured)
    other = copy.deepcopy(model)
    with torch.no_grad():  # the four channels of the stream times eight
        for name in ("1.weight", "1.bias", "3.m.weight", "3.m.bias"):
            other.get_parameter(name).mul_(8.0)
        other.get_parameter("4.m.weight")[1:5] *= 8.0
        other.get_parameter("4.m.bias")[1:5] *= 8.0
        other.get_parameter("3.a.weight").div_(8.0)
        other.get_parameter("4.a.weight").div_(8.0)
        other.get_parameter("8.weight")[:, 4:20] /= 8.0
    assert torch.equal(other(x), model(x))
    again = with_balanced_channels(captured_of(other, x))
    assert all(torch.equal(again.tensors[k], v) for k, v in found.tensors.items())


@pytest.mark.parametrize(
    "function",
    [
        lambda s, x: s.b(torch.tanh(s.a(x))),
        lambda s, x: s.b(torch.relu(s.a(x)) + 1.0),
        lambda s, x: s.b(torch.relu(s.a(x)).sort(1)[0]),
        lambda s, x: s.b(torch.relu(s.a(x[:, None].expand(3, 4, 4))).mT),
        lambda s, x: s.b(torch.layer_norm(s.a(x), (4,), s.a.bias)),
        lambda s, x: nn.functional.linear(torch.relu(s.a(x)), s.a.weight),
        lambda s, x: s.b(torch.relu(s.a(x))) * torch.relu(s.a(x)).sum(1, keepdim=True),
    ],
)
def test_other_operations_hold_their_channels(function: Callable[[Lambda, Tensor], Tensor]) -> None:
    """No factor goes through what does not commute with it, nor into a weight that is read twice."""
    model, x = seeded(Lambda(function, a=nn.Linear(4, 4), b=nn.Linear(4, 4))), points(3, 4)
    with torch.no_grad():
        model.a.weight[0] *= 100
    captured = captured_of(model, x)
    found = with_balanced_channels(captured)
    assert all(torch.equal(found.tensors[k], v) for k, v in captured.tensors.items())


def test_constants_around_the_data_do_not_move() -> None:
    """A network whose channels were scaled by 2^-6 to 2^6 has the same constants within a radius, to the last bit."""
    model, x = _network("dense")
    other = copy.deepcopy(model)
    factor = torch.exp2(torch.tensor([6.0, -6.0, 3.0, -5.0, 0.0, 2.0]))
    with torch.no_grad():
        for name in ("1.weight", "1.bias"):
            other.get_parameter(name).mul_(factor)
        other.get_parameter("3.weight").div_(factor)
    first, second = (normscope.analyze(m, x, radius=(0.0, 0.01)).around for m in (model, other))
    for row, same in zip(first.neighbourhoods, second.neighbourhoods, strict=True):
        assert row.constants == same.constants


def _rescaled(writers: list[nn.Module], readers: list[nn.Module], factor: Tensor, order: Tensor) -> None:
    """Multiply channels and put them into another order: all layers that write them, and all that read them."""
    with torch.no_grad():
        for layer in writers:
            for tensor in (
                layer.weight,
                layer.bias,
                *(getattr(layer, n, None) for n in ("running_mean", "running_var")),
            ):
                if tensor is None:
                    continue
                own = tensor is layer.weight or tensor is layer.bias  # statistics are in the scale of the input
                wide = factor.reshape(-1, *(1,) * (tensor.ndim - 1)) if own else 1.0
                tensor.copy_((wide * tensor)[order])
        for layer in readers:
            weight = layer.weight.reshape(layer.weight.shape[0], len(factor), -1)
            layer.weight.copy_((weight / factor[:, None])[:, order].reshape(layer.weight.shape))


def _drawn(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    factor = 10.0 ** (4 * torch.rand(count, generator=generator, dtype=torch.float64) - 2)
    return factor, torch.randperm(count, generator=generator)


def _dense_rescaled(model: nn.Module, generator: torch.Generator) -> None:
    for first, second in ((model[0], model[2]), (model[2], model[4])):
        _rescaled([first], [second], *_drawn(first.out_features, generator))


def _convolutional_rescaled(model: nn.Module, generator: torch.Generator) -> None:
    for first, second in ((model[0], model[2]), (model[2], model[6])):
        _rescaled([first], [second], *_drawn(first.out_channels, generator))


def _residual_rescaled(model: nn.Module, generator: torch.Generator) -> None:
    """Move the channels inside the blocks, and those of the stream: the second block adds one below and one above."""
    one, two = model[3], model[4]
    for block in (one, two):
        factor, order = _drawn(block.n.num_features, generator)
        with torch.no_grad():  # BatchNorm reads each channel alone: what is before it keeps its scale
            block.a.weight.copy_(block.a.weight[order])
        _rescaled([block.n], [block.b], factor, order)
    narrow, order = _drawn(4, generator)
    wide = torch.cat([narrow.new_tensor([0.02]), narrow, narrow.new_tensor([30.0])])
    behind = torch.cat([torch.tensor([0]), 1 + order, torch.tensor([5])])
    with torch.no_grad():
        model[0].weight.copy_(model[0].weight[order])
        model[0].bias.copy_(model[0].bias[order])
        one.b.weight.copy_(one.b.weight[order])
        one.b.bias.copy_(one.b.bias[order])
        two.b.weight.copy_(two.b.weight[behind])
        two.b.bias.copy_(two.b.bias[behind])
    _rescaled([model[1], one.m], [one.a, two.a], narrow, order)
    _rescaled([two.m], [model[8]], wide, behind)


def _pairs_rescaled(*pairs: tuple[str, str]) -> Callable[[nn.Module, torch.Generator], None]:
    """Return what scales the channels between pairs of layers of a model, and puts them into another order."""

    def move(model: nn.Module, generator: torch.Generator) -> None:
        for first, second in pairs:
            writes = model.get_submodule(first)
            factor, order = _drawn(len(writes.weight), generator)
            order = torch.arange(len(order)) if writes.weight.ndim == 1 else order  # a normalizer has groups
            _rescaled([writes], [model.get_submodule(second)], factor, order)

    return move


def _grouped(seed: int) -> nn.Module:
    """Channels behind a group normalization, and channels between convolutions."""
    return Lambda(
        lambda s, x: s.d(torch.relu(s.m(s.c(torch.relu(s.b(torch.relu(s.n(s.a(x)))))))).flatten(1)),
        a=nn.Conv2d(2, 6, 3, padding=1),
        n=nn.GroupNorm(2, 6),
        b=nn.Conv2d(6, 8, 3, padding=1),
        c=nn.Conv2d(8, 6, 3, padding=1),
        m=nn.GroupNorm(2, 6),
        d=nn.Linear(6 * 36, 3),
    )


def _transformer(seed: int) -> nn.Module:
    """A block of a transformer on tokens, with a ReLU between its last two layers."""

    def forward(s: Lambda, x: Tensor) -> Tensor:
        y = s.n(x)
        x = x + s.o(nn.functional.scaled_dot_product_attention(s.q(y), s.k(y), s.v(y)))
        return s.l((x + s.w(torch.relu(s.u(s.m(x))))).flatten(1))

    layers = {name: nn.Linear(8, 8) for name in "qkvo"}
    rest = {"u": nn.Linear(8, 20), "w": nn.Linear(20, 8), "l": nn.Linear(80, 3)}
    return Lambda(forward, n=nn.LayerNorm(8), m=nn.LayerNorm(8), **layers, **rest)


MOVED: dict[str, tuple[Callable[[int], nn.Module], Callable[[nn.Module, torch.Generator], None], tuple[int, ...]]] = {
    "dense": (
        lambda seed: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.LeakyReLU(), nn.Linear(16, 4)),
        _dense_rescaled,
        (8,),
    ),
    "convolutional": (
        lambda seed: nn.Sequential(
            *(nn.Conv2d(2, 5, 3, padding=1), nn.ReLU(), nn.Conv2d(5, 6, 3, 2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(6, 3)),
        ),
        _convolutional_rescaled,
        (2, 6, 6),
    ),
    "residual": (lambda seed: _residual(pads=True), _residual_rescaled, (2, 8, 8)),
    "group normalization": (_grouped, _pairs_rescaled(("n", "b"), ("b", "c")), (2, 6, 6)),
    "transformer": (_transformer, _pairs_rescaled(("u", "w"), ("m", "u")), (10, 8)),
}


@pytest.mark.turns(3)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", MOVED)
def test_factors_that_are_no_powers_of_two_do_not_move_them(name: str, seed: int) -> None:
    """Scaled over four orders of magnitude and permuted; some slopes change on the balls."""
    build, move, shape = MOVED[name]
    model = seeded(build(seed), seed).double().eval()
    generator = torch.Generator().manual_seed(seed)
    other, x = copy.deepcopy(model), points(2, *shape)
    radii = (0.003, 0.01) if name in ("group normalization", "transformer") else (0.05, 0.3)
    move(other, generator)
    assert torch.allclose(other(x), model(x), rtol=1e-10)
    found = []
    for network in (model, other):
        balanced = with_balanced_channels(captured_of(network, x))
        program, steps = balanced_program(balanced, balanced.at_batch(1)), Steps(SegmentNorms(Effort(1e-2, 1e-9, 0)))
        found.append([ball for point in x.split(1) for ball in on_balls(program, steps, [point], radii)])
    assert max(ball.units for ball in found[0]) > 2
    for ball, same in zip(*found, strict=True):
        assert same.constant == pytest.approx(ball.constant, rel=1e-7)


@pytest.mark.turns(3)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MOVED)
def test_values_of_the_original_are_those_of_the_balanced_copy(name: str, dtype: torch.dtype) -> None:
    build, move, shape = MOVED[name]
    model = seeded(build(0), 0).double().eval()
    move(model, torch.Generator().manual_seed(0))
    x = points(1, *shape).to(dtype)
    captured = with_balanced_channels(captured_of(model.to(dtype), x))
    program = balanced_program(captured, captured.at_batch(1))
    assert isinstance(program, BalancedProgram)
    walk = TangentPropagation(program, Steps(SegmentNorms()), [x.double()], 0.0)
    scaled, own = walk.values(), walk._values(walk.order())
    assert any(scale.numel() > 1 for _, _, scale in program.read)
    for key, at in scaled.items():
        torch.testing.assert_close(own[key].value, at.value, rtol=1e-10, atol=1e-10 * float(at.value.abs().max()))
        assert float((own[key].value - at.value).norm()) <= own[key].error + at.error


def test_weights_of_the_balanced_copy_are_rounded_three_times_at_most() -> None:
    """In rational numbers: each weight times the scale of what it writes, over that of what it reads."""
    model, x = seeded(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)), 0).double(), points(1, 3)
    captured = captured_of(model, x)
    program = balanced_program(captured, captured.at_batch(1))
    assert isinstance(program, BalancedProgram)
    (scale,) = (scale.flatten().tolist() for _, _, scale in program.read if bool((scale != 1).any()))
    first, last = (e.op.data["weight"].tolist() for e in program.layers)
    most = Fraction(gamma(WEIGHT_ROUNDINGS))
    for unit, factor in enumerate(map(Fraction, scale)):
        for exact, weight in zip(model[0].weight[unit].tolist(), first[unit], strict=True):
            assert abs(Fraction(weight) - Fraction(exact) * factor) <= most * abs(Fraction(weight))
        for exact, weight in zip(model[2].weight[:, unit].tolist(), [row[unit] for row in last], strict=True):
            assert abs(Fraction(weight) - Fraction(exact) / factor) <= most * abs(Fraction(weight))


def test_a_copy_that_is_another_network_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = seeded(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)), 0), points(1, 3).float()
    captured = captured_of(model, x)
    programs = iter([program_of(model, x), program_of(model[:2], x)])
    monkeypatch.setattr(balanced_channels, "build_program", lambda *_: next(programs))
    assert not isinstance(balanced_program(captured, captured.at_batch(1)), BalancedProgram)


@pytest.mark.turns(3)
@pytest.mark.parametrize("seed", range(3))
def test_deep_residual_networks_do_not_move_either(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are computed backwards; channels of the residual stream and inside the blocks are scaled and permuted.

    In double precision the constants agree. In single precision a permutation changes the rounding of every sum, and
    the searches for multipliers end at different ones (their bounds were up to 3e-4 apart). Both bounds are proved in
    double precision, so there each is compared with what the double-precision search finds.
    """
    monkeypatch.setattr(precise_values, "TOO_LARGE", 0.0)
    monkeypatch.setattr(bounded_rounding, "PRECISE", 0.0)
    model, x = seeded(_residual(pads=True), seed).double().eval(), points(1, 2, 8, 8)
    other = copy.deepcopy(model)
    _residual_rescaled(other, torch.Generator().manual_seed(seed))
    programs = []
    for network in (model, other):
        balanced = with_balanced_channels(captured_of(network, x))
        programs.append(balanced_program(balanced, balanced.at_batch(1)))

    def constants(program: Program) -> list[float]:
        balls = on_balls(program, Steps(SegmentNorms(Effort(1e-2, 1e-9, 0))), [x], [0.05, 0.3])
        assert balls[1].units > 20
        return [ball.constant for ball in balls]

    double = [constants(program) for program in programs]
    assert double[1] == pytest.approx(double[0], rel=1e-10)
    monkeypatch.setattr(feedback_system, "SINGLE_FROM", 2)
    for program in programs:
        assert constants(program) == pytest.approx(double[0], rel=1e-2)


def test_the_scale_that_a_batchnorm_takes_away_does_not_count() -> None:
    """Weights before a BatchNorm times 2^-8 to 2^8, its statistics alike: both balanced are the same."""
    model = seeded(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, eps=0.0), nn.ReLU(), nn.Linear(6, 3)), 0).eval()
    other, x = copy.deepcopy(model), points(2, 4)
    factor = torch.exp2(torch.tensor([8.0, -8.0, 3.0, -5.0, 0.0, 2.0]))
    with torch.no_grad():
        other[0].weight.mul_(factor[:, None])
        other[0].bias.mul_(factor)
        other[1].running_mean.mul_(factor)
        other[1].running_var.mul_(factor.square())
    assert torch.equal(model(x), other(x))
    made = []
    for network in (model, other):
        tensors = with_balanced_channels(captured_of(network, x)).tensors
        scale = tensors["1.weight"] / tensors["1.running_var"].sqrt()
        made.append((scale[:, None] * tensors["0.weight"], tensors["3.weight"]))
    for one, same in zip(*made, strict=True):
        assert torch.equal(one, same)
