"""Gradient norms and ratios."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from monitor.moments import batch, moment_of, small
from normscope.monitor.quantities.gradient import Gradients, norm, total_norm


def test_norms_are_those_of_autograd() -> None:
    x, y = batch()
    found = Gradients().measure(moment_of(small(), (x, y), gradient=True))
    copy = small()
    F.cross_entropy(copy(x), y).backward()
    total = torch.cat([p.grad.flatten() for p in copy.parameters()]).double().norm()
    assert found["gradient/total"] == pytest.approx(float(total), rel=1e-5)
    grad, weight = copy.conv2.weight.grad.double().norm(), copy.conv2.weight.detach().double().norm()
    assert found["gradient/norm/conv2"] == pytest.approx(float(grad), rel=1e-5)
    assert found["gradient/ratio/conv2"] == pytest.approx(float(grad / weight), rel=1e-5)


def test_without_labels_there_is_no_gradient() -> None:
    assert Gradients().measure(moment_of(small(), batch()[0], gradient=True)) == {}


def test_norms_do_not_overflow() -> None:
    assert norm(torch.tensor([3e30, 4e30])) == pytest.approx(5e30)
    assert total_norm([torch.tensor([3e30]), torch.tensor([4e30])]) == pytest.approx(5e30)
    assert total_norm([]) == 0.0
