"""One moment of a run."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from monitor.moments import batch, moment_of, small
from normscope.graph.guard import same_bits
from normscope.monitor.quantities.chain import ChainEstimate
from normscope.monitor.quantities.folded import FoldedNorms
from normscope.monitor.quantities.inverse_sigma import InverseSigma
from normscope.monitor.quantities.norms import SpectralNorms
from normscope.monitor.view import MapOf
from normscope.monitor.warm_norms import WarmNorms


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
    assert not late.probe_pass.gradients
    assert all(torch.allclose(early.gradients[n], g) for n, g in late.gradients.items())


def test_weights_are_by_layer() -> None:
    assert {n: tuple(w.shape) for n, w in moment_of(small(), batch()).weights.items()} == {
        "conv1": (5, 2, 3, 3),
        "conv2": (4, 5, 3, 3),
        "head": (3, 16),
    }


def test_every_map_that_is_followed_has_a_name_of_its_own() -> None:
    """A norm starts from the vector remembered by its name: a layer and the layer folded are two maps."""

    class Names(WarmNorms):
        def measure(self, name: str, map_of: MapOf) -> float:
            names.append(name)
            return super().measure(name, map_of)

    names: list[str] = []
    moment = moment_of(small(), batch(), warm_norms=Names())
    assert {"conv1"} == moment.folded_norms.keys() < moment.norms.keys()
    assert len(names) == len(set(names)) == 4


def test_a_layer_that_has_no_norm_is_left_out_and_no_other() -> None:
    model = small()
    with torch.no_grad():
        model.conv1.weight[0, 0, 0, 0] = math.inf
    moment = moment_of(model, batch())
    assert moment.not_finite == {"conv1": "the weights of conv1"}
    truth = float(torch.linalg.matrix_norm(model.head.weight.detach().double(), 2))
    assert moment.norms.keys() == {"conv2", "head"}
    assert moment.norms["head"] == pytest.approx(truth, rel=1e-4)
    assert moment.folded_norms == {}
    for quantity in (SpectralNorms(), FoldedNorms(), ChainEstimate(), InverseSigma()):
        assert not [name for name in quantity.measure(moment) if name.startswith(("product/norms", "product/folded"))]
    assert ChainEstimate().measure(moment) == {}
