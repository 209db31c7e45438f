"""Certificates: what is no symmetry fails."""

from __future__ import annotations

import torch
from torch import nn

from normscope.geometry.candidates.rows import RowShifts
from normscope.geometry.candidates.scales import ChannelScales
from normscope.geometry.certificate import coefficients_of, relative_derivative, verify
from normscope.geometry.discover import symmetry
from normscope.geometry.groups import SymmetryGroup
from symmetric_networks import mlp


def test_what_fails_is_halved_and_left_out() -> None:
    torch.manual_seed(0)
    model = mlp(lambda h: [nn.BatchNorm1d(h)], nn.ReLU).double()
    found = symmetry(model, torch.randn(32, 3).double(), batch=32)
    exact, good = found.function.exact(), found.scale_invariant[0]
    assert isinstance(good.family, ChannelScales)
    wrong = RowShifts("3.weight", torch.Size([3, 4]), 0)
    assert relative_derivative(exact, wrong.field(exact.point, coefficients_of(wrong))) > 1e-2
    assert verify(exact, [SymmetryGroup("row", ("3.weight",), wrong.size, "", wrong)]) == []
    classes = good.family.classes
    basis = (*good.family.basis, {int(classes[3]): 1.0, int(classes[-1]): 1.0})
    mixed = ChannelScales(good.family.labels, classes, basis, found.function.names, good.family.shapes)
    kept = verify(exact, [SymmetryGroup("scale", good.parameters, mixed.size, "mixed", mixed)])
    assert [group.dimension for group in kept] in ([4], [5])
