"""Symmetries are found, all of them and no others: their number is that of the zeros of the Gauss-Newton matrix."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import normscope
from architectures import ARCHITECTURES
from fingerprints import fingerprint
from networks import Lambda, points, seeded
from normscope.core.errors import CaptureError, InputError
from normscope.geometry.discover import symmetry
from symmetric_networks import Attention, Behind, Convolutional, Residual, mlp, nullity, randomized


class Bottleneck(nn.Module):
    """Two blocks that write into a linear stream through BatchNorm, the second with a shortcut, as MobileNetV2 has."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.first, self.start = nn.Linear(3, 2, bias=bias), nn.BatchNorm1d(2)
        self.widen, self.norm = nn.Linear(2, 5), nn.BatchNorm1d(5)
        self.narrow, self.end, self.last = nn.Linear(5, 2, bias=bias), nn.BatchNorm1d(2), nn.Linear(2, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        x = self.start(self.first(x))
        x = x + self.end(self.narrow(torch.tanh(self.norm(self.widen(x)))))
        return self.head(torch.tanh(self.last(x)))


class Shifted(nn.Module):
    """An RMSNorm whose scale is stored as its distance from one, as Gemma's is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.distance = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize."""
        return nn.functional.rms_norm(x, x.shape[-1:]) * (1.0 + self.distance)


class Encoder(nn.Module):
    """Torch's own encoder layer, whose queries, keys and values are one weight."""

    def __init__(self, *, first: bool) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6))
        self.layer = nn.TransformerEncoderLayer(6, 2, 5, 0.0, "gelu", batch_first=True, norm_first=first)

    def forward(self, x: Tensor) -> Tensor:
        """Return features."""
        return self.layer(self.stem(x))


class Recurrent(nn.Module):
    """A recurrent layer and a LayerNorm."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer, self.norm, self.head = kind(8, 4, batch_first=True), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores for every step."""
        return self.head(self.norm(self.layer(x)[0]))


class Read(nn.Module):
    """A recurrent layer that reads what another layer gives."""

    def __init__(self, first: nn.Module, kind: type[nn.RNNBase], **options: bool) -> None:
        super().__init__()
        self.first, self.layer = first, kind(3, 4, batch_first=True, **options)
        self.head = nn.Linear(8 if options.get("bidirectional") else 4, 3)
        with torch.no_grad():
            for parameter in self.layer.parameters():
                parameter.mul_(2.0)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores for every step."""
        return self.head(self.layer(self.first(x))[0])


class NormedWeights(nn.Module):
    """A residual block of layers with weight normalization, units that never die."""

    def __init__(self) -> None:
        super().__init__()
        shapes = ((3, 4), (4, 5), (5, 4), (4, 3))
        self.layers = nn.ModuleList(nn.utils.parametrizations.weight_norm(nn.Linear(*shape)) for shape in shapes)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        one, two, three, four = self.layers
        x = F.leaky_relu(one(4 * x), 0.3)
        return four(F.leaky_relu(x + three(F.leaky_relu(two(x), 0.3)), 0.3))


class NormedKernels(nn.Module):
    """Two convolutions and a layer with weight normalization."""

    def __init__(self) -> None:
        super().__init__()
        made = (nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 3, 3), nn.Linear(3, 3))
        self.one, self.two, self.last = map(nn.utils.parametrizations.weight_norm, made)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        return self.last(F.leaky_relu(self.two(F.leaky_relu(self.one(4 * x), 0.3)), 0.3).mean((2, 3)))


FLAT, MAPS, SEQUENCES = (400, 3), (150, 2, 5, 5), (60, 4, 8)
Build = Callable[[], nn.Module]
#: name -> (network, input shape, loss, mode, dimension if it is printed somewhere).
NETWORKS: dict[str, tuple[Build, tuple[int, ...], str, str, int | None]] = {
    "plain relu": (lambda: mlp(lambda h: [], nn.ReLU), FLAT, "none", "batch", 4),
    "bn without affine": (
        lambda: mlp(lambda h: [nn.BatchNorm1d(h, affine=False)], nn.ReLU),
        FLAT,
        "none",
        "batch",
        8,
    ),
    "bn relu": (lambda: mlp(lambda h: [nn.BatchNorm1d(h)], nn.ReLU), FLAT, "none", "batch", 12),
    "bn tanh": (lambda: mlp(lambda h: [nn.BatchNorm1d(h)], nn.Tanh), FLAT, "none", "batch", 8),
    "ln relu": (lambda: mlp(lambda h: [nn.LayerNorm(h)], nn.ReLU), FLAT, "none", "batch", 9),
    "ln tanh": (lambda: mlp(lambda h: [nn.LayerNorm(h)], nn.Tanh), FLAT, "none", "batch", 5),
    "behind ln, inputs first": (lambda: Behind(transposed=True), FLAT, "none", "batch", None),
    "behind ln": (lambda: Behind(transposed=False), FLAT, "none", "batch", None),
    "plain tanh": (lambda: mlp(lambda h: [], nn.Tanh), FLAT, "none", "batch", 0),
    "ln tanh, cross-entropy": (lambda: mlp(lambda h: [nn.LayerNorm(h)], nn.Tanh), FLAT, "cross_entropy", "batch", 10),
    "rms relu": (lambda: mlp(lambda h: [nn.RMSNorm(h)], nn.ReLU), FLAT, "cross_entropy", "batch", None),
    "gn tanh": (lambda: mlp(lambda h: [nn.GroupNorm(2, h)], nn.Tanh, 8), FLAT, "cross_entropy", "batch", None),
    "wn relu": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), nn.ReLU(), nn.Linear(4, 3)),
        FLAT,
        "cross_entropy",
        "batch",
        None,
    ),
    "wn residual": (lambda: NormedWeights(), FLAT, "none", "batch", 25),
    "wn residual, cross-entropy": (lambda: NormedWeights(), FLAT, "cross_entropy", "batch", 30),
    "wn cnn": (lambda: NormedKernels(), MAPS, "none", "batch", 15),
    "wn before ln": (
        lambda: nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 3)
        ),
        FLAT,
        "none",
        "batch",
        None,
    ),
    "bn relu, running": (lambda: mlp(lambda h: [nn.BatchNorm1d(h)], nn.ReLU), FLAT, "none", "running", None),
    "cnn bn relu": (lambda: Convolutional(nn.BatchNorm2d, nn.ReLU), MAPS, "cross_entropy", "batch", None),
    "cnn gn tanh": (lambda: Convolutional(lambda c: nn.GroupNorm(2, c), nn.Tanh), MAPS, "cross_entropy", "batch", None),
    "cnn in relu": (
        lambda: Convolutional(lambda c: nn.InstanceNorm2d(c, affine=True), nn.ReLU),
        MAPS,
        "cross_entropy",
        "batch",
        None,
    ),
    "residual bn, after": (lambda: Residual(nn.BatchNorm1d, before=False), FLAT, "cross_entropy", "batch", None),
    "residual bn, before": (lambda: Residual(nn.BatchNorm1d, before=True), FLAT, "cross_entropy", "batch", None),
    "residual rms, before": (lambda: Residual(nn.RMSNorm, before=True), FLAT, "cross_entropy", "batch", None),
    "attention rms": (
        lambda: Attention(nn.RMSNorm, bias=False, gated=True),
        SEQUENCES,
        "none",
        "batch",
        None,
    ),
    "attention rms rotary": (
        lambda: Attention(nn.RMSNorm, bias=False, gated=True, turned=True, heads=3),
        SEQUENCES,
        "none",
        "batch",
        57,
    ),
    "attention ln": (lambda: Attention(), SEQUENCES, "none", "batch", 152),
    "attention rms, scales near one": (
        lambda: Attention(Shifted, bias=False, gated=True),
        SEQUENCES,
        "none",
        "batch",
        None,
    ),
    "encoder, normalized before": (lambda: Encoder(first=True), SEQUENCES, "none", "batch", None),
    "encoder, normalized after": (lambda: Encoder(first=False), SEQUENCES, "none", "batch", None),
    "gated linear unit": (
        lambda: nn.Sequential(nn.Linear(3, 8), nn.GLU(), nn.LayerNorm(4), nn.Linear(4, 3)),
        FLAT,
        "none",
        "batch",
        None,
    ),
    "recurrent": (lambda: Recurrent(nn.RNN), SEQUENCES, "none", "batch", None),
    "gru": (lambda: Recurrent(nn.GRU), SEQUENCES, "none", "batch", None),
}


def drawn(shape: tuple[int, ...]) -> Tensor:
    """Return random inputs."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", NETWORKS)
def test_dimension_is_the_number_of_zeros(name: str) -> None:
    build, shape, loss, mode, printed = NETWORKS[name]
    torch.manual_seed(2)
    model = randomized(build())
    found = symmetry(model, drawn(shape), mode=mode, loss=loss, batch=shape[0])
    assert found.dimension == nullity(found.function.exact())
    assert printed is None or found.dimension == printed
    for group in found.groups:
        if group.family is not None and group.dimension:
            assert group.certificate is not None
            assert group.certificate.hessian is not None
            assert group.certificate.hessian <= 1e-9


READ: dict[str, tuple[Build, Tensor]] = {
    "lstm behind a table": (lambda: Read(nn.Embedding(9, 3), nn.LSTM), torch.randint(9, (60, 5))),
    "both ways behind a table": (
        lambda: Read(nn.Embedding(9, 3), nn.LSTM, bidirectional=True),
        torch.randint(9, (60, 5)),
    ),
    "lstm behind a layer": (lambda: Read(nn.Linear(8, 3), nn.LSTM), drawn(SEQUENCES)),
    "lstm behind ln": (lambda: Read(nn.Sequential(nn.Linear(8, 3), nn.LayerNorm(3)), nn.LSTM), drawn(SEQUENCES)),
}


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", READ)
def test_constants_that_recurrent_layers_take_up(name: str) -> None:
    build, x = READ[name]
    torch.manual_seed(2)
    found = symmetry(randomized(build()), x, batch=60)
    # Their smallest true eigenvalues are near 1e-11 of the largest, and the zeros below 1e-28.
    assert found.dimension == nullity(found.function.exact(), 1e-20)


@pytest.mark.parametrize("bias", [False, True])
def test_linear_bottlenecks_behind_fixed_statistics(bias: bool) -> None:
    """Matrices act on a stream that BatchNorms write into and only linear layers read."""
    torch.manual_seed(2)
    found = symmetry(randomized(Bottleneck(bias=bias)), drawn(FLAT), mode="running", batch=400)
    assert [group.dimension for group in found.groups if group.kind == "linear"] == [4]
    # Its smallest true eigenvalues are near 1e-17 of the largest, and the zeros below 1e-30.
    assert found.dimension == nullity(found.function.exact(), 1e-24)


def test_heads_with_normalized_queries_and_keys() -> None:
    torch.manual_seed(2)
    model = randomized(Attention(nn.RMSNorm, bias=False, gated=True, turned=True, normed=True, heads=1))
    found = symmetry(model, drawn(SEQUENCES), batch=60)
    # Its smallest true eigenvalues are near 1e-9 of the largest, and the zeros below 1e-28.
    assert found.dimension == nullity(found.function.exact(), 1e-20) == 80


def test_every_group_has_a_certificate_and_the_model_is_untouched() -> None:
    torch.manual_seed(0)
    model = randomized(Residual(nn.BatchNorm1d, before=False)).train()
    before = fingerprint(model)
    found = normscope.symmetry(model, drawn((32, 3)))
    assert fingerprint(model) == before
    for group in found.groups:
        assert group.certificate is not None
        assert group.certificate.derivative <= 1e-9
        assert group.certificate.orbit <= 1e-9


def test_labels_choose_the_loss() -> None:
    torch.manual_seed(0)
    model = mlp(lambda h: [], nn.Tanh)
    data = (drawn((16, 3)).float(), torch.randint(3, (16,)))
    assert symmetry(model, data).loss == "cross_entropy"
    assert symmetry(model, data[0]).loss == "none"
    assert symmetry(model, data).dimension == 5  # the shifts of the last layer: four columns and the bias


def test_no_parameter_and_frozen_parameters() -> None:
    assert symmetry(nn.ReLU(), torch.randn(4, 3)).dimension == 0
    model = mlp(lambda h: [nn.BatchNorm1d(h)], nn.ReLU).requires_grad_(requires_grad=False)
    assert symmetry(model, torch.randn(16, 3)).groups == ()
    model[0].weight.requires_grad_()
    assert symmetry(model, torch.randn(16, 3)).dimension == 0  # the frozen bias is scaled with the weight
    model[0].bias.requires_grad_()
    assert symmetry(model, torch.randn(16, 3)).dimension == 8


def test_a_dead_channel_does_not_hide_the_others() -> None:
    torch.manual_seed(0)
    model = mlp(lambda h: [nn.BatchNorm1d(h)], nn.Tanh)
    with torch.no_grad():
        model[0].weight[1] = 0.0  # its variance is zero: without eps nothing is defined
    found = symmetry(model, torch.randn(32, 3))
    assert next(g for g in found.groups if g.kind == "shift").dimension == 4


def test_a_channel_that_is_exactly_constant() -> None:
    """Without eps torch gives numbers there, but wrong derivatives."""
    torch.manual_seed(0)
    model = mlp(lambda h: [nn.BatchNorm1d(h)], nn.Tanh)
    with torch.no_grad():
        model[0].weight[1], model[0].bias[1] = 0.0, 0.5
    found = symmetry(model, torch.randn(32, 3))
    assert next(g for g in found.groups if g.kind == "shift").dimension == 4
    assert all(g.certificate is not None and not g.certificate.exact for g in found.groups if g.dimension)
    for group in found.groups:
        if group.dimension and group.certificate is not None and group.certificate.hessian is not None:
            assert group.certificate.hessian < 1e-9


def test_shared_weights_need_every_use_normalized() -> None:
    class Shared(nn.Module):
        def __init__(self, last: bool) -> None:
            super().__init__()
            self.layer, self.last, self.head = nn.Linear(3, 3), last, nn.Linear(3, 2)
            self.one, self.two = nn.BatchNorm1d(3, affine=False), nn.BatchNorm1d(3, affine=False)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.tanh(self.one(self.layer(x)))
            x = self.layer(x)
            return self.head(torch.tanh(self.two(x) if self.last else x))

    torch.manual_seed(0)
    x = drawn((64, 3))
    both = symmetry(Shared(True).double(), x, batch=64)
    assert both.dimension == nullity(both.function.exact()) == 6
    one = symmetry(Shared(False).double(), x, batch=64)
    assert one.dimension == nullity(one.function.exact()) == 0


def test_permutations_of_units_and_heads() -> None:
    torch.manual_seed(0)
    units = [g for g in symmetry(mlp(lambda h: [], nn.Tanh), torch.randn(8, 3)).groups if g.kind == "permutation"]
    assert [g.details["units"] for g in units] == [4]
    found = symmetry(randomized(Attention(nn.RMSNorm, bias=False, gated=True)), drawn((4, 4, 8)))
    assert sorted(g.details["units"] for g in found.groups if g.kind == "permutation") == [2, 5, 6]


#: Activations that do nothing, or little, where the data is, with a layer of their own in front and behind.
ON_THE_DATA: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "clipped": (lambda h: h.clamp(-40, 40), 0),
    "threshold": (lambda h: F.threshold(h, -40, -40), 0),
    "shifted elu": (lambda h: F.elu(h + 40) - 40, 0),
    "relu": (torch.relu, 4),
}


@pytest.mark.parametrize("name", ON_THE_DATA)
def test_symmetries_of_a_few_inputs_are_not_those_of_the_function(name: str) -> None:
    """What inputs far from the data show to be none is dropped."""
    activation, dimension = ON_THE_DATA[name]
    model = seeded(Lambda(lambda m, x: m.b(activation(m.a(x))), a=nn.Linear(6, 4), b=nn.Linear(4, 2)))
    assert symmetry(model, points(16, 6), mode="running", loss="none").dimension == dimension


def test_units_that_are_dead_on_the_data_have_no_shift() -> None:
    """Behind an activation that is bounded they are dead on stretched data, too; at other parameters they are not."""
    model = seeded(
        nn.Sequential(
            nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Conv2d(3, 3, 3, groups=3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(),
            nn.Linear(12, 2),
        )
    )  # fmt: skip
    with torch.no_grad():
        model[3].bias[0] = -8.0
    groups = symmetry(model, points(6, 2, 6, 6), mode="running").groups
    assert groups
    assert not [group for group in groups if group.kind == "shift" and "0.bias" in group.parameters]


@pytest.mark.parametrize("name", ["gpt", "Falcon", "nfnet"])
def test_identities_hold_before_training(name: str) -> None:
    """Scales of one, shifts and gains of zero make no symmetries, so the Hessian is what each group predicts."""
    model, x = ARCHITECTURES[name].build()
    proofs = [g.certificate for g in symmetry(model, x).groups if g.certificate]
    errors = [proof.hessian for proof in proofs if proof.hessian is not None]
    assert errors
    assert max(errors) < 1e-9


def test_parameters_read_as_numbers_have_no_known_symmetry() -> None:
    """Rescaling this weight changes a factor that the graph holds fixed."""
    model = seeded(
        Lambda(
            lambda m, x: m.b(m.a(x).relu()) * float((m.a.weight.detach().numpy() ** 2).sum()),
            a=nn.Linear(6, 4),
            b=nn.Linear(4, 2),
        )
    )
    found = symmetry(model, points(16, 6), mode="running", loss="none")
    assert not [group for group in found.groups if "a.weight" in group.parameters]
    assert "nothing is known of them: a.weight" in str(found)


def test_a_branch_on_the_data_is_said() -> None:
    """The symmetries are those of one branch."""
    model = seeded(
        Lambda(
            lambda m, x: m.b(h if (h := m.a(x).relu()).max() < 60 else h.tanh()), a=nn.Linear(6, 4), b=nn.Linear(4, 2)
        )
    )
    assert "branches on its inputs" in symmetry(model, points(16, 6), mode="running", loss="none").messages[0]


def test_result_as_text_and_json() -> None:
    found = symmetry(mlp(lambda h: [nn.BatchNorm1d(h)], nn.ReLU), torch.randn(16, 3), name="<net>")
    body: dict[str, Any] = json.loads(found.to_json())
    assert (body["kind"], body["dimension"], body["mode"]) == ("symmetry", 12, "batch")
    assert "12 of 39 directions leave the outputs unchanged" in str(found)
    assert "&lt;net&gt;" in found._repr_html_()


def test_wrong_use() -> None:
    with pytest.raises(InputError, match="got int"):
        symmetry(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="mode 'batch' or 'running'"):
        symmetry(nn.Linear(2, 2), torch.randn(4, 2), mode="train")
    with pytest.raises(InputError, match="loss"):
        symmetry(nn.Linear(2, 2), torch.randn(4, 2), loss="mse")


class _Scaled(nn.Module):
    """A residual block whose branch, a convolution with zeros around the image, is scaled."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.stem, self.norm, self.conv = nn.Conv2d(2, 4, 1), nn.GroupNorm(1, 4), nn.Conv2d(4, 4, 3, padding=1)
        self.scale = nn.Parameter(torch.full((4, 1, 1), scale))
        self.last, self.head = nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Classify."""
        x = self.norm(self.stem(x))
        x = x + self.scale * self.conv(x)
        return self.head(self.last(x.permute(0, 2, 3, 1)).mean((1, 2)))


def test_a_branch_that_is_nearly_closed_hides_no_change() -> None:
    """What is no symmetry at a scale of one is none at 1e-6, where the outputs hardly show it."""
    found = {}
    for scale in (1.0, 1e-6):
        torch.manual_seed(0)
        model = _Scaled(scale)
        groups = symmetry(model, torch.randn(6, 2, 5, 5)).groups
        found[scale] = sorted((g.kind, g.dimension, g.parameters) for g in groups)
        assert all(g.certificate is not None and g.certificate.derivative < 1e-12 for g in groups)
    assert found[1.0] == found[1e-6]


def test_an_operation_without_forward_derivative_is_named() -> None:
    class Distances(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cdist(self.fc(x), torch.eye(2, dtype=x.dtype))

    with pytest.raises(CaptureError, match="_cdist_forward"):
        symmetry(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), Distances()), torch.randn(8, 3))


@pytest.mark.turns(3)
def test_convnext() -> None:
    """Columns of the patches behind a LayerNorm, rows behind a layer scale."""
    from transformers import ConvNextConfig, ConvNextModel

    sizes = {"num_channels": 2, "patch_size": 2, "num_stages": 2, "hidden_sizes": [4, 6], "depths": [1, 1]}
    torch.manual_seed(0)
    model = ConvNextModel(ConvNextConfig(**sizes, image_size=16, layer_scale_init_value=1.0))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=2.0 * parameter[0].numel() ** -0.5)
    found = symmetry(randomized(model), drawn((14, 2, 16, 16)), batch=14)
    # Its smallest true eigenvalues are near 1e-11 of the largest, and the zeros below 1e-29.
    assert found.dimension == nullity(found.function.exact(), 1e-20) == 134
