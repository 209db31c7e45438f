"""A model by its modules, where there is no graph: the same numbers, less of them, and it says so."""

from __future__ import annotations

import copy
import warnings

import torch
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import spectral_norm

from fingerprints import fingerprint
from monitor.moments import batch, dense, small
from normscope.monitor.graph_view import GraphView
from normscope.monitor.module_view import ModuleView, weight_of
from normscope.monitor.probing import probe_inputs


def _views(model: nn.Module, mode: str = "batch") -> tuple[GraphView, ModuleView]:
    inputs, labels = probe_inputs(batch(), model)
    return GraphView(model, inputs, labels, None, mode), ModuleView(model, inputs, labels, None, mode, "no graph")


def test_both_views_agree() -> None:
    for mode in ("batch", "running"):
        graph, modules = _views(small(), mode)
        first, second = graph.run_probe(gradient=True), modules.run_probe(gradient=True)
        assert torch.allclose(first.loss, second.loss, atol=1e-6)
        assert first.gradients.keys() == second.gradients.keys()
        for name, value in first.gradients.items():
            assert torch.allclose(value, second.gradients[name], atol=1e-6), name
        for name, value in first.variances.items():
            assert torch.allclose(value, second.variances[name], rtol=1e-5), name
        assert torch.allclose(first.floors["ln"], second.floors["ln"], rtol=1e-5)


def test_layers_and_normalizers_agree() -> None:
    graph, modules = _views(small())
    for a, b in zip(graph.layers(), modules.layers(), strict=True):
        assert (a.name, a.parameter) == (b.name, b.parameter)
        assert torch.allclose(a.map(torch.float64).matrix(), b.map(torch.float64).matrix(), atol=1e-12)
    for one, two in zip(graph.normalizers(), modules.normalizers(), strict=True):
        assert (one.name, one.site.kind, one.site.eps) == (two.name, two.site.kind, two.site.eps)


def test_it_says_what_it_does_not_see() -> None:
    _, modules = _views(small())
    assert "no graph" in modules.notes[0]
    assert "not seen" in modules.notes[0]
    assert all(x.folded is None for x in modules.layers())


def test_the_model_is_untouched_in_training_mode_with_gradients() -> None:
    model = small()
    x, y = batch()
    nn.functional.cross_entropy(model(x), y).backward()
    inputs, labels = probe_inputs((x, y), model)
    before = fingerprint(model)
    view = ModuleView(model, inputs, labels, None, "batch")
    view.run_probe(gradient=True, parameters={"head.bias": torch.ones(3)})
    assert fingerprint(model) == before


def test_every_normalizer_class_is_described() -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.RMSNorm([4, 4, 4]), nn.GELU(), nn.Flatten(),
        nn.Linear(64, 3),
    )  # fmt: skip
    graph, modules = _views(model)
    for one, two in zip(graph.normalizers(), modules.normalizers(), strict=True):
        assert one.site.kind == two.site.kind
        assert one.site.spread.size == two.site.spread.size
    for name, floor in graph.run_probe().floors.items():
        assert torch.allclose(floor.flatten(), modules.run_probe().floors[name].flatten(), rtol=1e-5), name


def test_weights_are_read_as_in_evaluation_and_without_a_trace() -> None:
    """Reading a spectrally normalized weight in training mode would move its singular vectors."""
    model = nn.Sequential(spectral_norm(nn.Conv2d(2, 4, 3)), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 3))
    spectral_norm(model[3])
    graph, modules = _views(model.train())
    before = fingerprint(model)
    found = [(x.name, x.map(torch.float64).matrix()) for x in modules.layers()]
    modules.normalizers()
    assert fingerprint(model) == before
    for layer, (name, matrix) in zip(graph.layers(), found, strict=True):
        assert layer.name == name
        assert torch.allclose(layer.map(torch.float64).matrix(), matrix, atol=1e-6)
    truth = model.eval()[3].weight.detach().double()
    assert torch.allclose(found[1][1], truth, atol=1e-12)
    assert weight_of(nn.ReLU()) is None


def test_weights_computed_by_a_hook_are_those_of_now() -> None:
    """Torch's older functions compute the weight in the forward pass; after an update the attribute is the old one."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(64, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that they are old
        nn.utils.weight_norm(model[0])
        nn.utils.spectral_norm(model[2])
    model.train()(batch()[0])
    inputs, labels = probe_inputs(batch(), model)
    view = ModuleView(model, inputs, labels, None, "batch")
    with torch.no_grad():
        model[0].weight_g.mul_(2.0)
        model[2].weight_orig.add_(torch.eye(3, 64))
    before = fingerprint(model)
    found = {x.name: x.map(torch.float64).matrix() for x in view.layers()}
    assert [x.parameter for x in view.layers()] == ["0.weight_v", "2.weight_orig"]
    assert fingerprint(model) == before
    model.eval()(batch()[0])
    plain = nn.Conv2d(2, 4, 3, bias=False).double()
    plain.weight.data = model[0].weight.detach().double()
    assert torch.allclose(found["0"], dense(plain, (2, 6, 6)), atol=1e-12)
    assert torch.allclose(found["2"], model[2].weight.detach().double(), atol=1e-12)


def test_pruned_weights_are_those_of_now() -> None:
    layer = nn.Linear(3, 4)
    prune.l1_unstructured(layer, "weight", amount=0.5)
    with torch.no_grad():
        layer.weight_orig.mul_(2.0)  # an update; the weight itself is computed when the layer is called
    before = fingerprint(layer)
    assert torch.equal(weight_of(layer), (layer.weight_orig * layer.weight_mask).detach())
    assert fingerprint(layer) == before


def test_modules_that_are_others_are_seen_anew() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    _, view = _views(model)
    assert view.refresh() == ""
    model[0], model[3] = nn.Conv2d(2, 5, 5), nn.Linear(20, 3)
    model.insert(1, nn.BatchNorm2d(5))
    assert "4.weight" in view.refresh()
    assert view.refresh() == ""
    assert [x.name for x in view.layers()] == ["0", "4"]
    assert [n.name for n in view.normalizers()] == ["1"]
    double = copy.deepcopy(model).double()
    truth = dense(lambda x: double[0](x) - double[0](torch.zeros_like(x)), (2, 6, 6))
    assert torch.allclose(view.layers()[0].map(torch.float64).matrix(), truth, atol=1e-12)


def test_a_layer_that_is_no_longer_reached_is_none() -> None:
    class Optional(nn.Module):
        """Has a layer that may be left out."""

        def __init__(self) -> None:
            super().__init__()
            self.body, self.head, self.use = nn.Linear(72, 72), nn.Linear(72, 3), True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Return logits."""
            y = x.flatten(1)
            return self.head(self.body(y) if self.use else y)

    model = Optional()
    _, view = _views(model)
    assert [x.name for x in view.layers()] == ["body", "head"]
    model.use = False
    view.run_probe()
    assert [x.name for x in view.layers()] == ["head"]
