"""Max-pools and maxima as ReLUs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, jacobian_norm, points, program_of, seeded
from normscope.lipschitz.chains.join import Chains
from normscope.lipschitz.chains.max_pool import SectorFunction, without_maxima
from normscope.lipschitz.chains.region import region_below
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.segments import SegmentNorms
from normscope.operators.expression import Expr, operands, reached


def _value(target: Expr, given: Tensor) -> Tensor:
    """Compute an expression whose only nonlinear functions are ReLUs."""
    values: dict[int, Tensor] = {}
    for e in reached([target], operands):
        below = [values[i.id] for i in operands(e)]
        if e.op is not None:
            values[e.id] = e.op.apply(*below) + (0.0 if e.op.bias is None else e.op.bias.double())
        else:
            values[e.id] = below[0].relu() if isinstance(e.atom, SectorFunction) else given
    return values[target.id]


def _maxout(s: Lambda, x: Tensor) -> Tensor:
    return torch.maximum(s.a(x), torch.minimum(s.b(x), s.c(x)))


POOLS = {
    "pairs": (nn.MaxPool1d(2), (2, 6)),
    "windows that overlap, padded": (nn.MaxPool2d(3, stride=2, padding=1), (2, 5, 5)),
    "dilated, not divisible": (nn.MaxPool2d((2, 3), stride=(1, 2), dilation=(2, 1)), (1, 6, 7)),
    "maximum of a minimum": (Lambda(_maxout, a=nn.Linear(5, 4), b=nn.Linear(5, 4), c=nn.Linear(5, 4)), (5,)),
}


@pytest.mark.parametrize("name", POOLS)
def test_the_relus_compute_the_maximum(name: str) -> None:
    """On points of both signs."""
    model, shape = POOLS[name]
    model = seeded(model).double()
    program = program_of(model, points(1, *shape))
    target = program.outputs[0][1]
    opened, atoms = without_maxima(target, {a.id: a for a in program.atoms})
    assert opened is not target
    assert [s.id for s in region_below(opened, atoms).sources] == [program.atoms[0].id]
    for seed in range(4):
        x = points(1, *shape, seed=seed).double()
        assert torch.allclose(_value(opened, x), model(x), atol=1e-12)


def test_a_tensor_without_maxima_stays_itself() -> None:
    """Nothing is rebuilt."""
    program = program_of(seeded(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))), points(1, 3))
    target, atoms = program.outputs[0][1], {a.id: a for a in program.atoms}
    assert without_maxima(target, atoms) == (target, atoms)


def _convolutional(pool: nn.Module, features: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GELU(), pool, nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(features, 12), nn.Tanh(), nn.Linear(12, 5),
    )  # fmt: skip


NETWORKS = {
    "windows side by side": (_convolutional(nn.MaxPool2d(2), 16), (1, 8, 8)),
    "windows that overlap": (_convolutional(nn.MaxPool2d(3, stride=2, padding=1), 16), (1, 8, 8)),
    "maxout": (
        nn.Sequential(nn.Linear(6, 5), Lambda(_maxout, **{k: nn.Linear(5, 8) for k in "abc"}), nn.Linear(8, 3)),
        (6,),
    ),
}  # fmt: skip


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_chain_through_maxima_gains_and_no_jacobian_exceeds_it(name: str) -> None:
    """Against the composition joined to chains that end at every maximum."""
    network, shape = NETWORKS[name]
    model = seeded(network)
    program = program_of(model, points(2, *shape))
    through, cut = Chains(program, seconds=3.0), Chains(program, seconds=3.0)
    cut._regions = lambda target: [(region_below(target, cut._atoms), 0.75)]  # type: ignore[method-assign]
    bounds = [math.exp(Composition(program, Domain(), SegmentNorms(), c).total()[0]) for c in (through, cut)]
    worst = max(jacobian_norm(model, points(1, *shape, seed=i) * 10.0**e) for i in range(5) for e in range(-2, 2))
    assert 0 < worst <= bounds[0] < 0.97 * bounds[1]
