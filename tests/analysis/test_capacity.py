"""``analyze`` itself: numbers known in closed form, and the right answer or a clear error on every odd input."""

from __future__ import annotations

import copy
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.data import DataLoader, TensorDataset

from networks import Lambda, LambdaOfTwo, jacobian_norm, points, seeded, spectral_norm
from normscope import analyze
from normscope.analysis import Options
from normscope.analysis.capacity import additional_peak
from normscope.core import memory
from normscope.core.errors import (
    CaptureError,
    InputError,
    NonFiniteError,
    NormscopeError,
    NotEnoughMemoryError,
    WeightsError,
)
from normscope.core.result import Result
from normscope.core.value import Kind

DATA = points(16, 4)


def _net(*layers: nn.Module) -> nn.Module:
    return seeded(nn.Sequential(*layers))


def _upper(result: Result) -> float:
    value = result.end_to_end["global"]
    assert value is not None
    assert value.kind is Kind.CERTIFIED
    return value.value


def _ordered(result: Result) -> bool:
    """Return whether every lower bound lies below the upper bound on its own domain."""
    ends = result.end_to_end
    pairs = [("lower_everywhere", "global"), ("lower", "variance_floor"), ("jacobian", "variance_floor")]
    pairs += [("variance_floor", "global"), ("stacked_batch_lower", "stacked_batch")]
    found = [(ends.get(a), ends.get(b)) for a, b in pairs]
    return all(a.log <= b.log for a, b in found if a is not None and b is not None)


# Closed forms -------------------------------------------------------------------------------------------------------


def test_batch_norm_with_running_statistics() -> None:
    """Max |gamma| / sqrt(var + eps) = 3.9999200024, where the printed value is the l2 norm of the vector."""
    norm = nn.BatchNorm1d(5).double()
    norm.running_var.copy_(torch.tensor([0.01, 0.25, 1.0, 4.0, 9.0]))
    norm.weight.data.copy_(torch.tensor([0.3, -2.0, 1.0, 5.0, 0.1]))
    result = analyze(norm, points(8, 5))
    assert _upper(result) == pytest.approx(3.9999200024, abs=1e-9)
    lower = result.end_to_end["lower"]
    assert lower is not None
    assert lower.value == pytest.approx(3.9999200024, rel=1e-8)
    (site,) = result.normalizers
    assert site.proved.value == pytest.approx(3.9999200024, abs=1e-9)


@pytest.mark.parametrize(
    ("gamma", "expected"),
    [([3.0, 2.0, 1.0, 0.5], 856.2392), ([1.0, 1.0], 316.2278), ([1.0] + [0.0] * 9, 300.0), ([2.0], 0.0)],
)
def test_layer_norm_on_all_inputs(gamma: list[float], expected: float) -> None:
    """||Gamma P|| / sqrt(eps), attained where the input is constant."""
    norm = nn.LayerNorm(len(gamma)).double()
    norm.weight.data.copy_(torch.tensor(gamma))
    result = analyze(norm, torch.zeros(3, len(gamma)))
    assert _upper(result) == pytest.approx(expected, abs=1e-4)
    assert result.normalizers[0].proved.value == pytest.approx(expected, abs=1e-4)
    lower = result.end_to_end["lower"]
    assert (lower.value if lower is not None else 0.0) == pytest.approx(_upper(result), rel=1e-8)


def test_group_norm_takes_the_largest_group_not_the_sum() -> None:
    """GN(4, 12) at a constant input: 316.2278; Lemma 3 prints 1264.9."""
    result = analyze(nn.GroupNorm(4, 12).double(), torch.ones(2, 12))
    assert _upper(result) == pytest.approx(316.2278, abs=1e-4)
    lower, printed = result.end_to_end["lower"], result.normalizers[0].printed
    assert lower is not None
    assert printed is not None
    assert lower.value == pytest.approx(316.2278, abs=1e-4)
    assert printed.value == pytest.approx(1264.911, abs=1e-3)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.float32, 2896.309), (torch.float64, 2.0**26), (torch.bfloat16, 2896.309), (torch.float16, 2896.309)],
)
def test_rms_norm_takes_the_epsilon_of_its_dtype(dtype: torch.dtype, expected: float) -> None:
    """Without eps torch takes a machine epsilon, in the bound and in the attained value alike."""
    result = analyze(nn.RMSNorm(8).to(dtype), torch.zeros(2, 8))
    assert _upper(result) == pytest.approx(expected, rel=1e-6)
    lower = result.end_to_end["lower"]
    assert lower is not None
    assert lower.value == pytest.approx(expected, rel=1e-6)
    assert _ordered(result)


@pytest.mark.parametrize(("depth", "expected"), [(1, 306.1862), (2, 90773.05), (3, 2.691090e7), (4, 7.9781e9)])
def test_layer_norm_blows_up_near_zero(depth: int, expected: float) -> None:
    """Identity weights, LN and ReLU: at x = tau v the Jacobian is sqrt(1-1/n) (1-1/n)^(K-1) eps^(-K/2)."""
    n = 16
    layers = [m for _ in range(depth) for m in (nn.Linear(n, n, bias=False), nn.LayerNorm(n), nn.ReLU())]
    model = nn.Sequential(*layers).double()
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.eye_(layer.weight)
    v = torch.full((1, n), -1 / (n - 1), dtype=torch.float64)
    v[0, 0] = 1.0
    result = analyze(model, 1e-14 * v)
    exact = math.sqrt(1 - 1 / n) * (1 - 1 / n) ** (depth - 1) * 1e-5 ** (-depth / 2)
    jacobian = result.end_to_end["jacobian"]
    assert jacobian is not None
    assert jacobian.value == pytest.approx(exact, rel=1e-6)
    assert jacobian.value == pytest.approx(expected, rel=1e-4)
    assert exact <= _upper(result) <= 1e-5 ** (-depth / 2) * (1 + 1e-9)


def test_a_linear_network_is_known_from_both_sides() -> None:
    """Upper and lower bound agree to a millionth."""
    model = _net(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    result = analyze(model, DATA)
    truth = jacobian_norm(model, DATA[:1])
    lower = result.end_to_end["lower"]
    assert lower is not None
    assert lower.value <= truth <= _upper(result)
    assert _upper(result) == pytest.approx(lower.value, rel=1e-6)


# What the values say of themselves -----------------------------------------------------------------------------------


def test_every_value_says_what_it_is() -> None:
    """Kind, domain, mode and statement of each number of an analysis with BatchNorm and LayerNorm."""
    model = _net(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6), nn.LayerNorm(6))
    result = analyze(model, DATA)
    for name, value in result.end_to_end.items():
        if value is not None:
            assert value.statement, name
            assert value.domain, name
    kinds = {name: value.kind for name, value in result.end_to_end.items() if value is not None}
    assert {kinds[k] for k in ("global", "variance_floor", "without_normalizers")} == {Kind.CERTIFIED}
    assert {kinds[k] for k in ("lower", "jacobian", "lower_everywhere")} == {Kind.LOWER}
    assert {kinds[k] for k in ("printed", "printed_weights")} == {Kind.PRINTED}
    bound, floor = result.end_to_end["global"], result.end_to_end["variance_floor"]
    assert bound is not None
    assert floor is not None
    assert (bound.domain, bound.mode) == ("all inputs", "running")
    assert "std" in floor.domain
    for layer in result.layers:
        assert (layer.upper.kind, layer.lower.kind) == (Kind.CERTIFIED, Kind.LOWER)
        assert layer.lower.log <= layer.upper.log
    batch, layer_norm = result.normalizers
    assert (batch.kind, batch.proved.statement, batch.proved.mode) == ("batch_norm", "normscope F1", "running")
    assert (layer_norm.kind, layer_norm.proved.statement) == ("layer_norm", "normscope F3")
    assert layer_norm.on_floor is not None
    assert layer_norm.on_floor.log < layer_norm.proved.log


def test_the_mode_is_none_where_there_is_no_batch_norm() -> None:
    """What BatchNorm does is not said of a network that has none."""
    bound = analyze(_net(nn.Linear(4, 3), nn.LayerNorm(3)), DATA).end_to_end["global"]
    assert bound is not None
    assert bound.mode is None


def test_a_result_survives_its_json_form() -> None:
    """Every field comes back equal, infinite values included."""
    infinite = Lambda(lambda s, x: s.n(s.a(x) * s.a(x)).round(), a=nn.Linear(4, 3), n=nn.LayerNorm(3))
    for model in (_net(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU()), seeded(infinite)):
        result = analyze(model, DATA)
        assert Result.from_dict(result.to_dict()) == result
        import json

        again = Result.from_dict(json.loads(result.to_json()))
        assert again.end_to_end == result.end_to_end
        assert again == result


def test_the_seed_decides_everything_random() -> None:
    """Two runs with one seed are equal."""
    model = _net(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 2))
    assert analyze(model, DATA, seed=3) == analyze(model, DATA, seed=3)


def test_without_data_nothing_about_data_is_claimed() -> None:
    """No floor, no statistics, and a message that says so."""
    result = analyze(_net(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU()))
    assert result.end_to_end["variance_floor"] is None
    assert result.statistics == {}
    assert result.input["data"] is False
    assert all(site.on_floor is None and site.floor is None for site in result.normalizers)
    assert any("no data" in message for message in result.messages)
    jacobian = result.end_to_end["jacobian"]
    assert jacobian is not None
    assert jacobian.domain == "random points"


# Odd networks --------------------------------------------------------------------------------------------------------


def test_no_normalizer_at_all() -> None:
    """Composition gives Lemma 5's product, a chain less, and nothing is said of normalizers."""
    model = _net(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    result = analyze(model, DATA)
    product = spectral_norm(model[0].weight.detach()) * spectral_norm(model[2].weight.detach())
    assert result.end_to_end["global_composition"].value == pytest.approx(product, rel=1e-8)  # type: ignore[union-attr]
    assert _upper(result) < product
    assert result.normalizers == ()
    assert result.end_to_end["without_normalizers"] is None
    assert "printed_product" not in result.effect


def test_no_parameters() -> None:
    """A network of ReLU and pooling has a constant too."""
    result = analyze(nn.Sequential(nn.ReLU(), nn.AvgPool1d(2)), torch.randn(3, 2, 6))
    assert _upper(result) == pytest.approx(math.sqrt(0.5), rel=1e-9)
    assert result.coverage.parameters == 1.0
    assert result.layers == ()


def test_channels_without_variance() -> None:
    """Running variance zero: the channel is divided by sqrt(eps)."""
    model = _net(nn.Linear(4, 3), nn.BatchNorm1d(3))
    model[1].running_var[1] = 0.0
    scale = model[1].weight / (model[1].running_var + 1e-5).sqrt()
    truth = spectral_norm((scale[:, None] * model[0].weight).detach())
    result = analyze(model, DATA)
    assert _upper(result) == pytest.approx(truth, rel=1e-8)
    assert result.layers[0].folded is not None
    assert result.layers[0].folded.value == pytest.approx(truth, rel=1e-8)


@pytest.mark.parametrize("norm", [nn.LayerNorm(3, eps=0.0), nn.RMSNorm(3, eps=0.0), nn.GroupNorm(1, 3, eps=0.0)])
def test_without_a_stabilizer_there_is_no_constant_on_all_inputs(norm: nn.Module) -> None:
    """Infinite everywhere, finite on the floors of the data, and the reader is told where."""
    result = analyze(_net(nn.Linear(4, 3), norm), DATA)
    floor = result.end_to_end["variance_floor"]
    assert _upper(result) == math.inf
    assert floor is not None
    assert math.isfinite(floor.log)
    assert result.normalizers[0].proved.log == math.inf
    assert any("no finite constant" in message for message in result.messages)
    assert _ordered(result)


def test_fixed_statistics_without_variance_or_stabilizer_have_no_constant() -> None:
    """Division by zero is infinite, alone and after a layer; no crash, and it is listed."""
    for layers in ([], [nn.Linear(4, 4)]):
        model = _net(*layers, nn.BatchNorm1d(4, eps=0.0))
        model[-1].running_var[2] = 0.0
        result = analyze(model)
        assert _upper(result) == math.inf
        assert result.normalizers[0].proved.log == math.inf


def test_a_zero_scale_closes_the_branch() -> None:
    """Gamma = 0, as in freshly initialized residual blocks: what is left is the identity."""
    model = seeded(Lambda(lambda s, x: x + s.n(s.a(x)), a=nn.Linear(4, 4), n=nn.LayerNorm(4)))
    nn.init.zeros_(model.n.weight)
    assert _upper(analyze(model, DATA)) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.turns(5)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    """Weights are taken as the numbers they are; the floors hold for the network in exact arithmetic."""
    model = _net(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2)).to(dtype)
    result = analyze(model, DATA)
    wide = analyze(model.double(), DATA)
    assert _upper(result) == pytest.approx(_upper(wide), rel=1e-9)
    assert _ordered(result)


def test_floors_hold_although_rounding_gave_others() -> None:
    """At a single sample the constant is attained: the lower bound must not pass the bound on the sample's floor."""
    for seed in range(4):
        orthogonal = torch.linalg.qr(points(8, 8, seed=seed))[0]
        model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
        model[0].weight.data.copy_(0.1 * orthogonal)
        assert _ordered(analyze(model.bfloat16(), points(1, 8, seed=seed) + 2, ascent=0))


@pytest.mark.parametrize("size", [1e8, 1e12])
def test_paths_that_cancel_are_bounded_from_both_sides(size: float) -> None:
    """``size x - (size - 1) x`` is x, whatever rounding makes of it."""
    for function in (lambda s, x: x * size - x * (size - 1), lambda s, x: (x * size - x * (size - 1)).relu()):
        result = analyze(Lambda(function), DATA)
        lower = result.end_to_end["lower_everywhere"]
        assert lower is not None
        assert lower.value <= 1.0 <= _upper(result)


def test_two_inputs_as_tuple_and_by_name() -> None:
    """Both are blocks of the network input."""
    model = seeded(LambdaOfTwo(lambda s, x, y: s.a(x) + s.b(y), a=nn.Linear(4, 3), b=nn.Linear(4, 3)))
    truth = jacobian_norm(model, DATA[:1], DATA[1:2])
    for data in ((DATA, DATA + 1), {"x": DATA, "y": DATA + 1}):
        result = analyze(model, data)
        assert [b["kind"] for b in result.input["blocks"]] == ["input", "input"]
        assert truth <= _upper(result) <= truth * math.sqrt(2)
        assert _ordered(result)


def test_outputs_by_name_beside_integers() -> None:
    """Floating outputs count, each by its name; integer ones do not."""
    model = seeded(
        Lambda(
            lambda s, x: {"logits": s.a(x), "class": s.a(x).argmax(-1), "aux": [s.a(x) * 2, None]}, a=nn.Linear(4, 3)
        )
    )
    result = analyze(model, DATA)
    assert result.input["outputs"] == ["logits", "aux.0"]
    assert _upper(result) == pytest.approx(math.sqrt(5) * spectral_norm(model.a.weight.detach()), rel=1e-8)


def test_a_module_called_twice_is_two_layers_of_one_weight() -> None:
    """Shared modules and tied weights: numbered calls, norms equal."""
    result = analyze(seeded(Lambda(lambda s, x: s.a(s.a(x).relu()), a=nn.Linear(4, 4))), DATA)
    assert [x.name for x in result.layers] == ["a#1", "a#2"]
    assert result.layers[0].upper == result.layers[1].upper
    assert result.coverage.parameters_total == 20
    tied = seeded(Lambda(lambda s, x: s.b(s.a(x).relu()), a=nn.Linear(4, 4), b=nn.Linear(4, 4)))
    tied.b.weight = tied.a.weight
    product = analyze(tied, DATA).end_to_end["global_composition"]
    assert product is not None
    assert product.value == pytest.approx(spectral_norm(tied.a.weight.detach()) ** 2, rel=1e-8)


@pytest.mark.parametrize(
    ("wrap", "dtype"),
    [
        (parametrizations.weight_norm, torch.float32),
        (parametrizations.weight_norm, torch.bfloat16),
        (parametrizations.orthogonal, torch.float32),
    ],
)
def test_weights_that_are_computed_are_meant_in_exact_arithmetic(
    wrap: Callable[[nn.Module], nn.Module], dtype: torch.dtype
) -> None:
    """G v/||v|| of the stored g and v, not what float32 makes of it: both bounds are of the same weight."""
    torch.manual_seed(0)
    model = nn.Sequential(wrap(nn.Linear(4, 4)), nn.ReLU()).to(dtype)
    result = analyze(model, DATA)
    exact = spectral_norm(copy.deepcopy(model).double()[0].weight.detach())
    assert exact <= _upper(result) * (1 + 1e-12)
    assert _upper(result) == pytest.approx(exact, rel=1e-9)
    assert _ordered(result)


def test_a_zero_scale_closes_even_a_division_by_zero() -> None:
    """Gamma = 0 and eps = 0: nothing is left of the normalizer."""
    norm = nn.InstanceNorm1d(4, eps=0.0, affine=True).double()
    nn.init.zeros_(norm.weight)
    assert _upper(analyze(norm, points(3, 4, 5))) == 0.0


def test_a_model_in_training_mode_is_analyzed_in_evaluation_and_left_in_training() -> None:
    """Dropout does nothing, BatchNorm uses running statistics, and the mode is what it was."""
    model = _net(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    expected = _upper(analyze(model, DATA))
    model.train()
    assert _upper(analyze(model, DATA)) == expected
    assert all(m.training for m in model.modules())


def test_hooks_take_part() -> None:
    """A forward hook that changes a result changes the network."""
    model = _net(nn.Linear(4, 4))
    plain = _upper(analyze(model, DATA))
    model[0].register_forward_hook(lambda module, args, out: 3 * out)
    assert _upper(analyze(model, DATA)) == pytest.approx(3 * plain, rel=1e-8)


@pytest.mark.turns(2)
def test_compiled_and_parallel_wrappers_change_nothing() -> None:
    """torch.compile and DataParallel compute the same network, and nothing is compiled for it."""
    model = _net(nn.Linear(4, 4), nn.LayerNorm(4))
    expected = _upper(analyze(model, DATA))
    compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert _upper(analyze(torch.compile(model), DATA)) == expected  # type: ignore[arg-type]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == compiled
    assert _upper(analyze(nn.DataParallel(model), DATA)) == expected
    inside = Lambda(lambda s, x: s.a(x), a=torch.compile(model))  # type: ignore[arg-type]
    assert _upper(analyze(inside, DATA)) == expected


def test_a_network_that_decides_by_its_data_is_recorded() -> None:
    """Export fails on it; what the recording shows is not claimed of other inputs."""
    model = seeded(Lambda(lambda s, x: s.a(x) if x.sum() > 0 else 2 * s.a(x), a=nn.Linear(4, 4)))
    result = analyze(model, DATA.abs())
    assert result.model["front_end"] == "dispatch"
    assert _upper(result) == math.inf
    assert any("left torch" in message for message in result.messages)


def test_an_output_that_does_not_depend_on_the_input() -> None:
    """Its constant is zero, and the reader is told."""
    result = analyze(Lambda(lambda s, x: s.p.expand(x.shape[0], 3), p=nn.Parameter(torch.ones(3))), DATA)
    assert _upper(result) == 0.0
    assert any("every constant is zero" in message for message in result.messages)


def test_a_scalar_output_of_one_sample() -> None:
    """Each sample's sum is its own."""
    model = seeded(Lambda(lambda s, x: s.a(x).sum(-1), a=nn.Linear(4, 4)))
    truth = float(model.a.weight.detach().sum(0).norm())
    assert _upper(analyze(model, DATA)) == pytest.approx(truth, rel=1e-8)


@pytest.mark.parametrize(
    ("function", "constant"),
    [
        (lambda s, x: x.mean(), 1 / 8.0),
        (lambda s, x: x.sum(0), 4.0),
        (lambda s, x: x - x.mean(0), 1.0),
        (lambda s, x: x.softmax(0), 0.5),
    ],
)
def test_samples_that_are_coupled_are_one_input(function: Callable[..., Tensor], constant: float) -> None:
    """A network that mixes its batch is a function of the whole batch, and the reader is told."""
    result = analyze(Lambda(function), DATA)
    assert _upper(result) == pytest.approx(constant, rel=1e-9)
    assert result.input["blocks"][0]["shape"] == [16, 4]
    assert any("samples of a batch are coupled" in message for message in result.messages)
    assert _ordered(result)


def test_an_input_of_one_axis() -> None:
    """A vector is one coupled input where the network mixes it, and lacks its batch axis where a layer needs one."""
    assert _upper(analyze(Lambda(lambda s, x: 3 * x.softmax(0)), DATA[0])) == pytest.approx(1.5, rel=1e-9)
    assert _upper(analyze(Lambda(lambda s, x: 3 * x), DATA[0])) == pytest.approx(3.0, rel=1e-9)
    with pytest.raises(InputError, match="batch axis"):
        analyze(nn.Linear(4, 4).double(), DATA[0])


def test_very_large_and_very_small_weights() -> None:
    """1e20 and 1e-30 in float32, where the forward pass itself leaves the range."""
    for size in (1e20, 1e-30):
        for between in (nn.ReLU(), nn.Identity(), nn.LayerNorm(4)):
            model = _net(nn.Linear(4, 4, bias=False), between, nn.Linear(4, 4, bias=False))
            plain = _upper(analyze(model))
            for layer in (model[0], model[2]):
                layer.weight.data.mul_(size)
            result = analyze(model.float())
            assert _upper(result) == pytest.approx(plain * size**2, rel=1e-5)
            assert _ordered(result)


@pytest.mark.turns(2)
def test_more_layers_than_python_may_recurse() -> None:
    """Linear, LayerNorm, ReLU 400 times: no recursion, and the bound is the product of the layers."""
    torch.manual_seed(0)
    model = nn.Sequential(*[m for _ in range(400) for m in (nn.Linear(2, 2), nn.LayerNorm(2), nn.ReLU())])
    assert len(model) > sys.getrecursionlimit()
    result = analyze(model, points(2, 2).float(), points=1, ascent=0, without_normalizers=False)
    centre = torch.eye(2).double() - 0.5
    logs = [math.log(spectral_norm(centre @ m.weight.detach().double())) for m in model if isinstance(m, nn.Linear)]
    centred = 200 * math.log(1e5) + sum(logs)
    bound = result.end_to_end["global"]
    assert bound is not None
    assert bound.log <= centred + 1e-6
    assert result.coverage.understood == result.coverage.ops == 1200


# Odd data ------------------------------------------------------------------------------------------------------------


def _stream() -> Iterator[Tensor]:
    yield from DATA.split(3)


@pytest.mark.turns(6)
@pytest.mark.parametrize(
    "data",
    [
        DATA,
        (DATA, torch.zeros(16)),
        DataLoader(TensorDataset(DATA, torch.zeros(16)), batch_size=5),
        DataLoader(TensorDataset(DATA), batch_size=7, shuffle=True),
        list(DATA.split(4)).__iter__(),
        _stream(),
        DATA.numpy(),
    ],
    ids=["tensor", "with labels", "loader", "shuffled", "iterator", "generator", "array"],
)
def test_every_form_of_data_says_the_same(data: Any) -> None:
    """All samples are seen once, and the floors are those of all of them."""
    model = _net(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU())
    result = analyze(model, data)
    assert result.statistics["samples"] == 16
    floor = model[0](DATA).var(1, unbiased=False).min().sqrt().item()
    assert result.normalizers[0].floor == pytest.approx(floor, rel=1e-9)
    assert _ordered(result)


def test_a_batch_of_one() -> None:
    """One sample is enough for floors and statistics."""
    result = analyze(_net(nn.Linear(4, 4), nn.LayerNorm(4)), DATA[:1])
    assert result.statistics["samples"] == 1
    assert _ordered(result)


def test_a_limit_on_the_samples_holds_for_everything() -> None:
    """Statistics, floors and Jacobians are of the first samples alone."""
    model = _net(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU())
    assert analyze(model, DATA, limit=3) == analyze(model, DATA[:3])


MISTAKES: dict[str, tuple[Callable[[], nn.Module], Any, type[NormscopeError], str]] = {
    "empty batch": (lambda: nn.Linear(4, 2), torch.zeros(0, 4), InputError, "empty|none"),
    "no batch": (lambda: nn.Linear(4, 2), iter(()), InputError, "none"),
    "wrong width": (lambda: nn.Linear(4, 2), torch.zeros(3, 5), InputError, "The model failed on an input of shape"),
    "data with NaN": (lambda: nn.Linear(4, 2), torch.full((3, 4), math.nan), NonFiniteError, "NaN"),
    "weights with NaN": (
        lambda: nn.Linear(4, 2).requires_grad_(False).apply(_spoil), DATA, NonFiniteError, "weight"),
    "output is NaN": (lambda: Lambda(lambda s, x: (-x.abs() - 1).log()), DATA, NonFiniteError, "NaN"),
    "NaN before a normalizer": (
        lambda: Lambda(lambda s, x: s.n((-x.abs() - 1).sqrt()), n=nn.LayerNorm(4)), DATA, NonFiniteError, "NaN"),
    "no floating output": (lambda: Lambda(lambda s, x: x.argmax(-1)), DATA, CaptureError, "floating"),
    "weights not in memory": (lambda: nn.Linear(4, 2, device="meta"), DATA, WeightsError, "memory"),
}  # fmt: skip


def _spoil(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.fill_(math.nan)


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told_clearly(name: str) -> None:
    """One class and one sentence for each."""
    build, data, kind, message = MISTAKES[name]
    with pytest.raises(kind, match=message):
        analyze(build(), data)


def test_wrong_arguments() -> None:
    """Not a module, not a mode, frozen statistics without data."""
    with pytest.raises(InputError, match="Module"):
        analyze("model")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="'running'"):
        analyze(nn.Linear(4, 2), DATA, mode="train")
    with pytest.raises(InputError, match="data"):
        analyze(nn.Linear(4, 2), mode="frozen-batch")
    for limit in (0, -3):
        with pytest.raises(InputError, match="at least 1"):
            analyze(nn.Linear(4, 2), DATA, limit=limit)


def test_options_as_one_object_or_one_by_one() -> None:
    """They mean the same."""
    model = _net(nn.Linear(4, 4), nn.LayerNorm(4))
    assert analyze(model, DATA, options=Options(seed=5, ascent=0)) == analyze(model, DATA, seed=5, ascent=0)


def test_batch_mode_takes_the_stacked_batch_as_the_input() -> None:
    """BatchNorm with batch statistics: max |gamma| / sqrt(eps) on all batches, attained at a constant channel."""
    model = nn.BatchNorm1d(4).double()
    model.weight.data.copy_(torch.tensor([1.0, -3.0, 0.5, 2.0]))
    result = analyze(model, torch.ones(6, 4), mode="batch")
    lower = result.end_to_end["lower"]
    assert _upper(result) == pytest.approx(3 / math.sqrt(1e-5), rel=1e-9)
    assert lower is not None
    assert lower.value == pytest.approx(3 / math.sqrt(1e-5), rel=1e-8)
    assert result.end_to_end["global"].mode == "batch"  # type: ignore[union-attr]


def test_progress_is_told() -> None:
    """Every step says a line."""
    lines: list[str] = []
    analyze(_net(nn.Linear(4, 4), nn.LayerNorm(4)), DATA, progress=lines.append)
    assert any(line.startswith("capturing") for line in lines[:2])
    assert any(line.startswith("norms of layers") for line in lines)
    assert any("Jacobian" in line for line in lines)


MEASURED = """
import torch
from torch import nn
from normscope import analyze
torch.set_num_threads(1)
model, shape = {model}
said = []
analyze(model.eval(), torch.randn(2, *shape), progress=said.append)
print([text for text in said if text.startswith("peak memory")][-1])
status = dict(line.split(":", 1) for line in open("/proc/self/status"))  # unlike ru_maxrss, not that of the parent
print(int(status["VmHWM"].split()[0]) * 1024)
"""


@pytest.mark.turns(5)
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read as Linux tells it")
@pytest.mark.parametrize(
    "model",
    [
        "nn.Sequential(nn.Linear(8, 8), nn.ReLU()), (8,)",
        "nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU()), (2048,)",
    ],
)
def test_the_peak_is_announced_within_30_per_cent(model: str) -> None:
    """Against what the system measured, in a process of its own."""
    code = MEASURED.format(model=model)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said, peak = done.stdout.splitlines()
    number, unit = re.search(r"([\d.]+) (GB|MB)", said).groups()  # type: ignore[union-attr]
    announced = float(number) * {"GB": 1e9, "MB": 1e6}[unit]
    assert 0.7 < announced / float(peak) < 1.3


def test_an_analysis_that_does_not_fit_is_refused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the model is run even once."""
    model = nn.Linear(300, 300)
    model.register_forward_pre_hook(lambda *given: pytest.fail("the model was run"))
    monkeypatch.setattr(memory, "available", lambda: 1e6)
    with pytest.raises(NotEnoughMemoryError, match="This analysis needs about"):
        analyze(model, torch.ones(2, 300))


def test_the_largest_gram_matrix_decides_for_a_large_layer() -> None:
    """A layer 27648 -> 20000 needs more than 12 GB besides itself: four matrices of side 20000."""
    layer = torch.empty(20_000, 27_648, device="meta")
    assert 12.8e9 < additional_peak([layer]) < 14e9


def test_memory_of_a_convolution_counts() -> None:
    """691 MB were measured for the norm of this one on maps of 7 x 7; matrices of experts are no convolutions."""
    kernel, experts = torch.empty(512, 512, 3, 3, device="meta"), torch.empty(9, 512, 512, device="meta")
    assert 0.7e9 < additional_peak([kernel]) < 1.0e9
    assert additional_peak([experts]) < 0.3e9
