"""Who feeds whom."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from checking import noise
from networks import Lambda, program_of
from normscope.doctor.structure import Structure, propagated


def _structure(model: nn.Module, x: Tensor) -> Structure:
    return Structure(program_of(model.double().eval(), x.double()))


def test_carried_is_the_linear_map() -> None:
    """Along both branches of a residual sum."""

    def forward(s: Lambda, x: Tensor) -> Tensor:
        y = s.a(x)
        return s.n(s.b(y) + y)

    model = Lambda(forward, a=nn.Linear(3, 3), b=nn.Linear(3, 3), n=nn.LayerNorm(3))
    structure = _structure(model, noise(2, 3))
    ((_, source, _),) = structure.sites()
    value = noise(1, 3, seed=5).double()
    first, second = structure.program.layers
    assert torch.allclose(propagated(first, source, value), value + value @ model.b.weight.T)
    assert torch.allclose(propagated(second, source, value), value)


def test_confined_means_no_way_around() -> None:
    """A skip from before the normalizer is one."""
    for skip in (False, True):
        model = Lambda(lambda s, x, skip=skip: (lambda y: s.n(y) + (y if skip else 0))(s.a(x)),
                       a=nn.Linear(3, 3), n=nn.LayerNorm(3))  # fmt: skip
        structure = _structure(model, noise(2, 3))
        ((site, _, _),) = structure.sites()
        assert structure.is_confined(structure.program.layers[0], site) is not skip
