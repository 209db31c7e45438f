"""Certificates: what is no symmetry fails, what is one satisfies the identities of gradient and Hessian."""

from __future__ import annotations

import torch
from torch import nn

from normscope.geometry.candidates.rows import Rows
from normscope.geometry.candidates.scales import Scales
from normscope.geometry.certificate import coefficients_of, identities, relative_derivative, verify
from normscope.geometry.discover import symmetry
from normscope.geometry.groups import Group
from symmetric_networks import Residual, mlp, randomized


def test_hessian_of_scales_is_minus_the_gradient() -> None:
    torch.manual_seed(0)
    model = randomized(Residual(nn.BatchNorm1d, before=False))
    found = symmetry(model, torch.randn(32, 3).double(), loss="cross_entropy", batch=32)
    families = [g.family for g in found.groups if isinstance(g.family, Scales | Rows)]
    assert len(families) == 6
    for gradient, hessian in identities(found.function.exact(), families):
        assert gradient <= 1e-12
        assert hessian <= 1e-9


def test_eps_breaks_the_identities_and_is_seen() -> None:
    torch.manual_seed(0)
    model = mlp(lambda h: [nn.BatchNorm1d(h, eps=0.1)], nn.Tanh).double()
    found = symmetry(model, torch.randn(32, 3).double(), batch=32)
    family = found.scale_invariant[0].family
    assert isinstance(family, Scales)
    assert identities(found.function, [family])[0][1] > 1e-3


def test_what_fails_is_halved_and_left_out() -> None:
    torch.manual_seed(0)
    model = mlp(lambda h: [nn.BatchNorm1d(h)], nn.ReLU).double()
    found = symmetry(model, torch.randn(32, 3).double(), batch=32)
    exact, good = found.function.exact(), found.scale_invariant[0]
    assert isinstance(good.family, Scales)
    wrong = Rows("3.weight", torch.Size([3, 4]), 0)
    assert relative_derivative(exact, wrong.field(exact.point, coefficients_of(wrong))) > 1e-2
    assert verify(exact, Group("row", ("3.weight",), wrong.size, "", wrong)) == []
    solution = good.family.solution
    basis = (*good.family.basis, {int(solution.classes[3]): 1.0, int(solution.classes[-1]): 1.0})
    mixed = Scales(good.family.labels, solution, basis, found.function.names, good.family.shapes)
    kept = verify(exact, Group("scale", good.parameters, mixed.size, "mixed", mixed))
    assert [group.dimension for group in kept] in ([4], [5])
