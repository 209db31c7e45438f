"""Bounds by how much Jacobians vary: no Jacobian of a ball exceeds them, and small balls are tight."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from networks import Lambda, jacobian_norm, points, program_of, seeded
from normscope.lipschitz.local.jacobian_variation import JacobianVariation, division_variation, softmax_variation
from normscope.lipschitz.local.linear_steps import Steps
from normscope.lipschitz.local.tangents import UnboundedError
from normscope.lipschitz.segments import SegmentNorms


def _largest(difference: Callable[[Tensor], Tensor], start: Tensor, rho: float) -> float:
    """Return the largest norm of a matrix within a distance that gradient ascent finds."""
    step, best = start.clone().requires_grad_(), 0.0
    for _ in range(25):
        moved = step / step.norm() * rho
        norm = torch.linalg.matrix_norm(difference(moved), 2)
        best = max(best, float(norm.detach()))
        (slope,) = torch.autograd.grad(norm, step)
        step = (step + 0.3 * step.norm() * slope / (slope.norm() + 1e-30)).detach().requires_grad_()
    return best


@pytest.mark.parametrize("eps", [0.0, 0.1])
@pytest.mark.parametrize("size", [2, 5, 20])
def test_no_division_varies_more(size: int, eps: float) -> None:
    """Ascent stays below the bound, and comes close to it for small distances across."""
    a, ratios = 1.0 / size, []
    jacobian = torch.func.jacrev(lambda c: c / (a * c.square().sum() + eps).sqrt())
    for seed, part in enumerate((0.02, 0.2, 0.7)):
        c, start = points(size, seed=seed), points(size, seed=seed + 9)
        rho = part * float(c.norm())
        here = jacobian(c)
        found = _largest(lambda d, c=c, here=here: jacobian(c + d) - here, start - (seed % 2) * c, rho)
        bound = float(division_variation(c.norm(), torch.tensor(rho), a, eps))
        assert found <= bound
        ratios.append(found / bound)
    assert max(ratios) > 0.3
    assert division_variation(torch.tensor(1.0), torch.tensor(2.0), a, 0.0) == math.inf


@pytest.mark.parametrize("size", [2, 3, 17])
@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_no_softmax_varies_more(size: int, spread: float) -> None:
    """Ascent stays below the bound, for flat and for peaked rows, near and far."""
    jacobian = torch.func.jacrev(lambda z: z.softmax(0))
    for seed, rho in enumerate((0.02, 0.2, 1.0, 3.0)):
        z = spread * points(size, seed=seed)
        here = jacobian(z)
        found = _largest(lambda d, z=z, here=here: jacobian(z + d) - here, points(size, seed=seed + 5), rho)
        assert found <= float(softmax_variation(z.softmax(0)[None], torch.tensor([rho]))[0])


def _attention(s: nn.Module, x: Tensor) -> Tensor:
    z = s.n(x)
    x = x + s.o(F.scaled_dot_product_attention(s.q(z), s.k(z), s.v(z), is_causal=True))
    return s.h((x + s.w(F.gelu(s.u(s.m(x))))).mean(1))


def _block() -> nn.Module:
    parts = {name: nn.Linear(6, 6) for name in "qkvo"}
    more = {"u": nn.Linear(6, 12), "w": nn.Linear(12, 6), "h": nn.Linear(6, 3)}
    return Lambda(_attention, n=nn.LayerNorm(6), m=nn.RMSNorm(6), **parts, **more)


def _gate(s: nn.Module, x: Tensor) -> Tensor:
    return s.c(100.0 * torch.sigmoid(s.a(x)) * (0.01 * s.b(x)))


def _recurrent(s: nn.Module, x: Tensor) -> Tensor:
    return s.o(s.l(x)[0][:, -1])


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "transformer block": (_block, (1, 4, 6)),
    "unlike factors": (lambda: Lambda(_gate, a=nn.Linear(5, 6), b=nn.Linear(5, 6), c=nn.Linear(6, 3)), (1, 5)),
    "LSTM": (lambda: Lambda(_recurrent, l=nn.LSTM(3, 4, batch_first=True), o=nn.Linear(4, 2)), (1, 5, 3)),
    "group norm": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.Conv2d(4, 2, 2)),
        (1, 2, 5, 5),
    ),
    "log softmax": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.LogSoftmax(-1)), (1, 4)),
    "max pool": (
        lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.MaxPool1d(2), nn.Softplus(), nn.Conv1d(4, 2, 2)),
        (1, 2, 8),
    ),
}


def _constant(model: nn.Module, x: Tensor, radius: float) -> float:
    return JacobianVariation(program_of(model, x), Steps(SegmentNorms()), [x], radius).constant()


@pytest.mark.turns(6)
@pytest.mark.parametrize("radius", [0.003, 0.05, 0.3])
@pytest.mark.parametrize("name", NETWORKS)
def test_no_jacobian_of_the_ball_exceeds_it(name: str, radius: float) -> None:
    build, shape = NETWORKS[name]
    model, x = seeded(build()), points(*shape)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        bound = _constant(model, x, radius)
        here = jacobian_norm(model, x)
        assert bound >= here
        best, at = here, x
        for seed in range(30):  # steps from the best so far, back into the ball
            step = points(*shape, seed=seed) * radius
            moved = at - x + step * (0.3 if seed % 2 else 1.0)
            tried = x + moved * min(1.0, radius / float(moved.norm()))
            norm = jacobian_norm(model, tried)
            best, at = (norm, tried) if norm > best else (best, at)
    assert best <= bound
    if radius == 0.003:
        assert bound <= 1.5 * here


@pytest.mark.parametrize("name", NETWORKS)
def test_at_the_point_it_is_the_jacobian(name: str) -> None:
    """With what rounding may have done."""
    build, shape = NETWORKS[name]
    model, x = seeded(build()), points(*shape)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        norm = jacobian_norm(model, x)
        assert norm <= _constant(model, x, 0.0) <= norm * (1 + 1e-5)


def test_values_at_the_point_are_as_far_off_as_said() -> None:
    """Two ways to compute them in float64 differ by rounding alone."""
    model, x = seeded(_block()), points(1, 4, 6)
    walk = JacobianVariation(program_of(model, x), Steps(SegmentNorms()), [x], 0.0)
    walk.constant()
    (_, expr), *_ = walk.program.outputs
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert float((walk.nominal[expr.id].value - model(x).detach()).norm()) <= walk.off < 1e-9


def test_where_a_normalizer_may_divide_by_nothing_there_is_none() -> None:
    """A ball in which a group may lose its spread: eps alone is left, and for none the Jacobian has no bound."""
    model = seeded(nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6, eps=0.0), nn.Linear(6, 3)))
    with pytest.raises(UnboundedError, match="varies without bound on the ball"):
        _constant(model, points(1, 4), 50.0)


def test_work_is_counted_before_it_is_done() -> None:
    x = points(1, 4, 6)
    walk = JacobianVariation(program_of(seeded(_block()), x), Steps(SegmentNorms()), [x], 0.01, work=10.0)
    with pytest.raises(UnboundedError, match="request it with radius"):
        walk.constant()
