"""A model by its graph: live values, names, statistics, gradients."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fingerprints import fingerprint
from monitor.moments import Small, batch, dense, small
from normscope import analyze
from normscope.core.errors import CaptureError, InputError
from normscope.graph.guard import same_bits
from normscope.monitor.graph_view import GraphView
from normscope.monitor.probing import probe_inputs, view_of
from normscope.monitor.view import ProbePass


def _view(model: nn.Module, probe: object, mode: str = "batch") -> GraphView:
    inputs, labels = probe_inputs(probe, model)
    return GraphView(model, inputs, labels, None, mode)


def test_names_are_those_of_an_analysis() -> None:
    model = small()
    view, result = _view(model, batch()), analyze(model, batch()[0], stacked=False)
    assert [x.name for x in view.layers()] == [x.name for x in result.layers]
    assert [n.name for n in view.normalizers()] == [n.name for n in result.normalizers]


def test_maps_are_the_layers_as_they_act() -> None:
    model = small()
    layers = {x.name: x for x in _view(model, batch()).layers()}
    double = small().double()
    for name, shape in (("conv1", (2, 6, 6)), ("conv2", (5, 6, 6)), ("head", (16,))):
        layer = getattr(double, name)
        truth = dense(lambda x, layer=layer: layer(x) - layer(torch.zeros_like(x)), shape)
        found = layers[name].map(torch.float64).matrix()
        assert torch.allclose(found.reshape(truth.shape), truth, atol=1e-12), name


def test_folded_maps_are_layer_and_running_normalization() -> None:
    model = small()
    layers = {x.name: x for x in _view(model, batch()).layers()}
    double = small().double().eval()
    whole = lambda x: double.bn1(double.conv1(x)) - double.bn1(double.conv1(torch.zeros_like(x)))  # noqa: E731
    truth = dense(whole, (2, 6, 6))
    assert torch.allclose(layers["conv1"].folded(torch.float64).matrix(), truth, atol=1e-12)
    assert layers["conv2"].folded is None
    assert layers["head"].folded is None


def test_folded_matrices_of_plain_networks() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    model(torch.randn(32, 3, generator=torch.Generator().manual_seed(0)))
    (first, last) = _view(model, torch.randn(5, 3)).layers()
    scale = model[1].weight / (model[1].running_var + model[1].eps).sqrt()
    truth = (scale[:, None] * model[0].weight).detach()
    assert torch.allclose(first.folded(torch.float64).matrix().float(), truth, rtol=1e-6)
    assert last.folded is None


def test_values_are_read_from_the_live_model() -> None:
    model = small()
    view = _view(model, batch())
    before = view.layers()[0].map(torch.float32).matrix()
    old = view.run_probe()
    with torch.no_grad():
        model.conv1.weight.mul_(3.0)
        model.bn1.running_var.fill_(4.0)
        model.head.weight = nn.Parameter(torch.zeros_like(model.head.weight))  # another tensor altogether
    view.refresh()
    assert torch.allclose(view.layers()[0].map(torch.float32).matrix(), 3.0 * before)
    assert view.normalizers()[0].site.running[1].tolist() == [4.0] * 5
    assert view.layers()[2].map(torch.float32).matrix().abs().max() == 0.0
    assert torch.allclose(view.run_probe().variances["bn1"], 9.0 * old.variances["bn1"], rtol=1e-5)


@pytest.mark.parametrize("mode", ["batch", "running"])
def test_variances_and_floors_are_those_before_each(mode: str) -> None:
    model, (x, y) = small(), batch()
    seen = _view(model, (x, y), mode).run_probe()
    read: dict[str, Tensor] = {}
    copy = small().train(mode == "batch")
    for name in ("bn1", "ln"):
        getattr(copy, name).register_forward_pre_hook(lambda m, given, name=name: read.__setitem__(name, given[0]))
    logits = copy(x)
    assert torch.allclose(seen.variances["bn1"], read["bn1"].var(dim=(0, 2, 3), correction=0), rtol=1e-4)
    stds = read["ln"].detach().flatten(1).double().std(dim=1, correction=0)
    assert seen.floors["ln"].item() == pytest.approx(float(stds.min()), rel=1e-5)
    assert "bn1" not in seen.floors
    assert len(seen.activations) == 2
    assert torch.allclose(seen.outputs["output"], logits, atol=1e-5)
    assert torch.allclose(seen.loss, F.cross_entropy(logits, y), atol=1e-5)


def test_gradients_are_those_of_training() -> None:
    model, (x, y) = small(), batch()
    seen = _view(model, (x, y)).run_probe(gradient=True)
    copy = small()
    F.cross_entropy(copy(x), y).backward()
    assert seen.gradients.keys() == dict(copy.named_parameters()).keys()
    for name, parameter in copy.named_parameters():
        assert torch.allclose(seen.gradients[name], parameter.grad, atol=1e-6), name
    assert all(p.grad is None for p in model.parameters())


def test_frozen_parameters_have_no_gradient() -> None:
    model = small()
    model.conv1.weight.requires_grad_(False)
    assert "conv1.weight" not in _view(model, batch()).run_probe(gradient=True).gradients


def test_a_tied_weight_is_one_parameter() -> None:
    class Tied(nn.Module):
        """The head is the embedding."""

        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(10, 6)
            self.norm = nn.LayerNorm(6)
            self.head = nn.Linear(6, 10, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens: Tensor) -> Tensor:
            """Return scores of tokens."""
            return self.head(self.norm(self.embedding(tokens)))

    model = Tied()
    tokens = torch.arange(8).reshape(2, 4)
    view = _view(model, (tokens, tokens + 1))
    gradients = view.run_probe(gradient=True).gradients
    F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten() + 1).backward()
    assert gradients.keys() == dict(model.named_parameters()).keys()
    for name, parameter in model.named_parameters():
        assert torch.allclose(gradients[name], parameter.grad, atol=1e-6), name
    (head,) = view.layers()
    assert head.parameter == "embedding.weight"
    moved = view.run_probe(parameters={"embedding.weight": torch.zeros(10, 6)})
    assert moved.outputs["output"].abs().max() == 0.0


def test_buffers_a_model_writes_to_are_not_moved() -> None:
    class Counting(nn.Module):
        """Counts its calls, also in evaluation."""

        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)
            self.register_buffer("calls", torch.zeros(()))
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            """Count, and follow the mean of the input."""
            self.calls += 1
            self.mean.mul_(0.5).add_(x.detach().mean(0))
            return torch.relu(self.fc(x - self.mean))

    model, x = Counting(), torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    before = fingerprint(model)
    view = view_of(model, x, None, "batch")
    view.refresh()
    view.run_probe(gradient=True)
    view.layers()
    assert fingerprint(model) == before


def test_other_parameters_can_be_tried() -> None:
    model = small()
    view = _view(model, batch())
    moved = {"head.weight": torch.zeros(3, 16), "head.bias": torch.zeros(3)}
    seen = view.run_probe(parameters=moved)
    assert seen.outputs["output"].abs().max() == 0.0
    assert same_bits(model.head.weight, small().head.weight)


def test_a_normalizer_written_by_hand_is_seen() -> None:
    class Hand(nn.Module):
        """A layer normalization without a module."""

        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 6)

        def forward(self, x: Tensor) -> Tensor:
            """Normalize each row."""
            y = self.fc(x)
            centred = y - y.mean(-1, keepdim=True)
            return torch.tanh(centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt())

    view = _view(Hand(), torch.randn(3, 4))
    (normalizer,) = view.normalizers()
    assert normalizer.site.kind == "layer_norm"
    assert set(view.run_probe().floors) == {normalizer.name}


def test_weight_normalization_is_measured_on_the_effective_weight() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))
    model = nn.Sequential(layer, nn.Tanh())
    with torch.no_grad():
        layer.parametrizations.weight.original0.mul_(2.5)
    (found,) = _view(model, torch.randn(3, 3)).layers()
    assert torch.allclose(found.map(torch.float32).matrix(), layer.weight.detach(), atol=1e-6)
    assert found.parameter == "0.parametrizations.weight.original1"  # the directions


def test_a_model_with_a_fixed_batch_is_seen_at_the_whole_probe() -> None:
    class Fixed(nn.Module):
        """Knows its batch size."""

        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            """Add a tensor of a fixed size."""
            return self.fc(x) + torch.arange(6.0).reshape(6, 1)

    view = view_of(Fixed(), torch.randn(6, 2), None, "batch")
    assert view.inputs[0].shape[0] == 6
    assert view.run_probe().outputs["output"].shape == (6, 2)


def test_a_branch_that_training_leaves_is_captured_again() -> None:
    class Branching(nn.Module):
        """What it computes depends on a weight."""

        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            """Square where the bias says so."""
            y = self.fc(x)
            return torch.tanh(y) if float(self.fc.bias.detach().sum()) > 0 else 5.0 * y

    model, x = Branching(), torch.randn(4, 3)
    with torch.no_grad():
        model.fc.bias.fill_(1.0)
    view = _view(model, x)
    assert len(view.run_probe().activations) == 1
    assert "recorded by running" in view.notes[0]
    with torch.no_grad():
        model.fc.bias.fill_(-1.0)
    view.refresh()
    assert view.run_probe().activations == {}
    assert torch.allclose(view.run_probe().outputs["output"], model(x), atol=1e-6)


def test_a_weight_used_by_addmm_is_not_its_bias() -> None:
    class Turned(nn.Module):
        """As in GPT-2."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.ParameterDict({"bias": torch.zeros(4), "weight": torch.randn(3, 4)})

        def forward(self, x: Tensor) -> Tensor:
            """Multiply from the right."""
            return torch.addmm(self.inner["bias"], x, self.inner["weight"])

    class Outer(nn.Module):
        """Holds it."""

        def __init__(self) -> None:
            super().__init__()
            self.turned = Turned()

        def forward(self, x: Tensor) -> Tensor:
            """Apply it."""
            return torch.relu(self.turned(x))

    (layer,) = _view(Outer(), torch.randn(5, 3)).layers()
    assert layer.parameter == "turned.inner.weight"
    assert layer.output_axis == 1


def test_one_sample_has_no_batch_statistics() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    with pytest.raises(InputError, match="at least two samples"):
        _view(model, torch.randn(1, 3))
    assert _view(model, torch.randn(1, 3), "running").run_probe().variances


def test_small_is_what_the_other_tests_take_it_for() -> None:
    assert isinstance(small(), Small)


@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect", "replicate"])
@pytest.mark.parametrize("alone", [False, True])
def test_padding_is_part_of_a_convolution(mode: str, alone: bool) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        conv = nn.Conv2d(2, 3, 3, padding=(2, 1), stride=2, padding_mode=mode, bias=False)
    model = conv if alone else nn.Sequential(conv, nn.BatchNorm2d(3), nn.ReLU())
    layer = _view(model, torch.randn(4, 2, 5, 6, generator=torch.Generator().manual_seed(0))).layers()[0]
    found = layer.map(torch.float64).matrix(), None if layer.folded is None else layer.folded(torch.float64).matrix()
    truth = dense(conv.double(), (2, 5, 6))
    assert torch.allclose(found[0], truth, atol=1e-12)
    if not alone:
        assert torch.allclose(found[1], truth / (1 + model[1].eps) ** 0.5, atol=1e-12)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_padding_on_one_side_is_part_of_a_convolution() -> None:
    conv = nn.Conv1d(2, 3, 4, padding="same", bias=False)
    (layer,) = _view(nn.Sequential(conv, nn.ReLU()), torch.randn(4, 2, 7)).layers()
    assert torch.allclose(layer.map(torch.float64).matrix(), dense(conv.double(), (2, 7)), atol=1e-12)


def test_a_graph_is_never_read_with_tensors_the_model_no_longer_has() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    view = _view(model, torch.randn(5, 3))
    nn.utils.parametrizations.weight_norm(model[0])
    view._program = None
    for read in (view.layers, view.run_probe):
        with pytest.raises(CaptureError, match=r"needs 0\.weight, which the model no longer has"):
            read()
    assert "0.weight" in view.refresh()
    assert view.refresh() == ""
    assert view.layers()[0].parameter == "0.parametrizations.weight.original1"


def test_weights_that_are_cut_loose_are_seen_apart() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.ReLU(), nn.Linear(3, 3, bias=False))
    model[2].weight = model[0].weight
    view = _view(model, torch.randn(5, 3))
    model[2].weight = nn.Parameter(torch.zeros(3, 3))
    assert "2.weight differs" in view.refresh()
    assert view.layers()[1].map(torch.float32).matrix().abs().max() == 0.0
    assert view.layers()[0].map(torch.float32).matrix().abs().max() > 0.0


def test_outputs_of_every_form_are_compared() -> None:
    @dataclasses.dataclass
    class Scores:
        """What it gives."""

        logits: Tensor
        classes: Tensor
        more: tuple[Tensor, None]

    class Structured(nn.Module):
        """Gives an object."""

        def __init__(self) -> None:
            super().__init__()
            self.fc, self.shift = nn.Linear(3, 2), 0.0

        def forward(self, x: Tensor) -> Scores:
            """Return scores, classes and squares."""
            y = self.fc(x)
            return Scores(y, y.argmax(-1), (y.square() + self.shift, None))

    model = Structured()
    view = _view(model, torch.randn(5, 3))
    assert view.refresh() == ""
    captured = view.captured
    with torch.no_grad():
        model.fc.weight.mul_(2.0)
    assert view.refresh() == ""
    assert view.captured is captured
    model.shift = 1.0
    assert "computes something else" in view.refresh()
    assert view.refresh() == ""


def _product(seen: ProbePass) -> Tensor:
    """Return the product of the Hessian of a pass with ones."""
    slopes, leaves = list(seen.gradients.values()), [seen.leaves[name] for name in seen.gradients]
    parts = torch.autograd.grad(slopes, leaves, [torch.ones_like(leaf) for leaf in leaves], allow_unused=True)
    return torch.cat([part.flatten() for part in parts if part is not None])


def test_channels_last_change_no_second_derivative() -> None:
    """Products with channels last are those of the plain layout, and of a float64 twin by torch's own formulas."""
    view, twin, (x, y) = _view(small(), batch()), small().double().train(), batch()
    found = _product(view.run_probe(create_graph=True, statistics=False))
    assert view._channels_last
    view._channels_last = False
    assert torch.allclose(found, _product(view.run_probe(create_graph=True, statistics=False)), rtol=1e-4, atol=1e-5)
    named = dict(twin.named_parameters())
    slopes = torch.autograd.grad(F.cross_entropy(twin(x.double()), y), list(named.values()), create_graph=True)
    seen = ProbePass(gradients=dict(zip(named, slopes, strict=True)), leaves=named)
    assert torch.allclose(found.double(), _product(seen), rtol=1e-3, atol=1e-4)


def test_a_loss_that_needs_the_plain_layout_gets_it() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh())
    x, y = torch.randn(2, 3, 6, 6), torch.zeros(2, 64)
    inputs, labels = probe_inputs((x, y), model)
    view = GraphView(model, inputs, labels, lambda out, y: (out.view(2, -1) - y).square().mean(), "batch")
    assert view._channels_last
    found = view.run_probe(create_graph=True, statistics=False).gradients["0.weight"]
    assert not view._channels_last
    truth = torch.autograd.grad(model(x).square().mean(), model[0].weight)[0]
    assert torch.allclose(found, truth, rtol=1e-5, atol=1e-7)
