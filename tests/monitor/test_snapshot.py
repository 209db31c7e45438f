"""One moment of a run."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from monitor.moments import batch, moment_of, small
from normscope.core.guard import same_bits


def test_a_moment_moved_is_elsewhere_and_the_model_is_not() -> None:
    model, (x, y) = small(), batch()
    moment = moment_of(model, (x, y), gradient=True)
    gradient = moment.gradients
    loss, other = moment.moved(gradient, -0.1)
    copy = small()
    with torch.no_grad():
        for name, parameter in copy.named_parameters():
            parameter.sub_(0.1 * gradient[name])
    truth = F.cross_entropy(copy(x), y)
    truth.backward()
    assert abs(loss - float(truth.detach())) < 1e-6
    for name, parameter in copy.named_parameters():
        assert torch.allclose(other[name], parameter.grad, atol=1e-6), name
    assert all(same_bits(a, b) for a, b in zip(model.parameters(), small().parameters(), strict=True))


def test_gradients_can_be_asked_for_later() -> None:
    early, late = moment_of(small(), batch(), gradient=True), moment_of(small(), batch())
    assert not late.look.gradients
    assert all(torch.allclose(early.gradients[n], g) for n, g in late.gradients.items())


def test_weights_are_by_layer() -> None:
    assert {n: tuple(w.shape) for n, w in moment_of(small(), batch()).weights.items()} == {
        "conv1": (5, 2, 3, 3),
        "conv2": (4, 5, 3, 3),
        "head": (3, 16),
    }
