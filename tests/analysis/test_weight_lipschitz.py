"""``weight_lipschitz``: every bound above what autograd and searches find, on networks of every kind."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normscope
from architectures import ARCHITECTURES
from fingerprints import fingerprint
from networks import Lambda, seeded
from normscope.analysis.weight_lipschitz import weight_lipschitz
from normscope.core.errors import InputError
from normscope.core.value import Kind
from normscope.lipschitz.weights.result import WeightResult, WeightRow

NAMES = (
    "relu10", "mlp", "cnn", "wn_cnn", "resnet20", "autoencoder", "regnet", "nfnet", "mixer", "transformer_encoder",
    "gpt", "llama_like", "lstm", "gru", "lstm_cell", "gru_cell",
)  # fmt: skip
#: Rounding of a quotient in float64 against a bound that is attained.
ROUNDING = 1 + 1e-9


def _perturbed(model: nn.Module, seed: int = 0) -> nn.Module:
    """Return a model in float64 whose gains, biases and running statistics are no longer trivial."""
    generator = torch.Generator().manual_seed(seed)
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.1 * noise)
    return model


def _cast(x: Any) -> Any:
    return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x


def _of(model: nn.Module, name: str, x: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Return the output as a function of one parameter (tied ones move with it), and the parameter."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    own = parameters[name]

    def function(weight: Tensor) -> Tensor:
        replaced = {k: weight if v is own else v.detach() for k, v in parameters.items()}
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return torch.func.functional_call(model, replaced, (x,), tie_weights=False).flatten()

    return function, own.detach()


def _climbed(function: Callable[[Tensor], Tensor], weight: Tensor, size: float, seed: int, steps: int) -> float:
    """Return the largest quotient met by gradient ascent over changes of one weight, from a random one of a size."""
    start = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    change = (size * start / start.norm()).requires_grad_(True)
    here, best = function(weight).detach(), 0.0
    for _ in range(steps):
        quotient = (function(weight + change) - here).norm() / change.norm()
        best = max(best, float(quotient.detach()))
        if float(quotient.detach()) == 0.0:
            break
        (slope,) = torch.autograd.grad(quotient, change)
        with torch.no_grad():
            change += 0.3 * change.norm() * slope / (slope.norm() + 1e-300)
    return best


def _jacobian_lower(function: Callable[[Tensor], Tensor], weight: Tensor) -> float:
    """Return ``||J^T u||`` at a good direction u of the output: power iteration by finite sums of gradients."""
    point = weight.clone().requires_grad_(True)
    out = function(point)
    u = torch.randn(out.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    best = 0.0
    for _ in range(3):
        u = u / u.norm()
        seed = torch.zeros_like(out, requires_grad=True)
        (back,) = torch.autograd.grad(out, point, seed, create_graph=True, allow_unused=True)
        if back is None:
            return 0.0
        (pulled,) = torch.autograd.grad(out, point, u, retain_graph=True)
        best = max(best, float(pulled.norm()))
        if not back.requires_grad or best == 0.0:
            return best
        (u,) = torch.autograd.grad(back, seed, pulled, retain_graph=True)
    return best


def _hold(row: WeightRow) -> None:
    """Hold what is proved of one weight against what is attained."""
    assert row.attained is not None
    assert row.best is not None
    for value in row.constants.values():
        assert value.kind is Kind.CERTIFIED
        assert row.attained.log <= value.log, (row.name, value)
    if row.attained_output is not None:
        assert all(row.attained_output.log <= value.log for value in row.outputs.values()), row.name
    if row.stacked:
        assert row.stacked["attained"].log <= row.stacked["certified"].log, row.name


def _search(row: WeightRow, model: nn.Module, x: Tensor) -> None:
    """Hold one weight against autograd at every sample, and against searches over changes of any size."""
    if row.effective:
        return  # the parameter is another one than the weight that acts
    assert row.best is not None
    for i in range(x.shape[0]):
        function, weight = _of(model, row.name, x[i : i + 1])
        assert _jacobian_lower(function, weight) <= row.best.value * ROUNDING, row.name
        bound = row.constants.get("global")
        if bound is not None and i == 0:
            scale = float(weight.norm()) or 1.0
            for k, size in enumerate((1e-2 * scale, scale, 100 * scale)):
                assert _climbed(function, weight, size, k, 4) <= bound.value * ROUNDING, row.name


@pytest.mark.turns(5)
@pytest.mark.parametrize("name", NAMES)
def test_no_bound_is_below_what_is_found(name: str) -> None:
    """Weights of every kind of network: convolutions, groups, attention, recurrence, tied and normalized weights."""
    model, data = ARCHITECTURES[name].build()
    model = _perturbed(model)
    x = _cast(data)[:2]
    before = fingerprint(model)
    result = weight_lipschitz(
        model, x, points=1, tolerance=1e-2, stacked=name in ("mlp", "cnn", "relu10", "gpt", "lstm")
    )
    assert fingerprint(model) == before
    if not any(row.effective for row in result.weights):  # every parameter has its row, tied ones one together
        tied = dict(model.named_parameters(remove_duplicate=False))
        assert {id(tied[row.name]) for row in result.weights} == {id(p) for p in model.parameters()}
    for row in result.weights:
        _hold(row)
    for row in result.weights[:: max(1, len(result.weights) // 5)]:
        _search(row, model, x)
    joint = result.jointly
    if "attained" in joint:
        assert joint["attained"].log <= joint["certified"].log
    if "stacked_attained" in joint:
        assert joint["stacked_attained"].log <= joint["stacked_certified"].log
    assert not any(use for row in result.weights for use in row.notes if "no rule" in use)


def test_exact_norms_of_a_linear_network() -> None:
    """A chain of linear maps: the certified constant is attained, and Theorem 12 as printed is a bound."""
    model = seeded(nn.Sequential(nn.Linear(4, 5, bias=False), nn.Linear(5, 3, bias=False)))
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    result = weight_lipschitz(model, x, points=3)
    norm = float(torch.linalg.matrix_norm(model[1].weight.detach(), ord=2))
    first, second = result.weights
    assert first.best is not None
    assert first.attained is not None
    assert abs(first.best.value / (norm * float(x.norm(dim=1).max())) - 1) < 1e-6
    assert first.attained.value > first.best.value * (1 - 1e-6)
    assert first.printed_is_bound
    assert second.printed_is_bound
    assert first.unnormalized is not None
    assert abs(first.unnormalized.value / first.best.value - 1) < 1e-6
    stack = first.stacked["certified"].value
    assert abs(stack / (norm * float(torch.linalg.matrix_norm(x, ord=2))) - 1) < 1e-6
    assert first.stacked["attained"].value > stack * (1 - 1e-6)


def test_the_printed_form_leaves_out_the_scale() -> None:
    """A gain of ten after LayerNorm: what Theorem 12 prints is attained five times over, and said to be no bound."""
    model = seeded(nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6)))
    with torch.no_grad():
        model[1].weight.fill_(10.0)
    x = torch.randn(1, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    row = weight_lipschitz(model, x).weights[0]
    assert row.printed is not None
    assert row.attained is not None
    assert row.attained.value > 5 * row.printed.value
    assert row.printed_is_bound is False


def test_without_data_only_outputs_are_bounded() -> None:
    """No data: constants with respect to layer outputs, and nothing else, with a word about it."""
    result = weight_lipschitz(seeded(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))))
    assert not result.jointly
    assert result.samples == {"data": 0, "jacobians": 0}
    for row in result.weights:
        assert row.outputs["global"].log < math.inf
        assert not row.constants
        assert not row.stacked
        assert row.attained is None
        assert row.input_norm is None
        assert row.printed is None
    assert any("without data" in message for message in result.messages)


def test_batch_statistics_of_a_stacked_batch() -> None:
    """BatchNorm in training: a bias before it has no effect, a weight is scale-free, and the batch is bounded."""
    model = seeded(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)))
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    result = weight_lipschitz(model, x)
    rows = {row.name: row for row in result.weights}
    assert rows["0.bias"].stacked["certified"].log == -math.inf
    assert rows["0.weight"].scale_free == "1"
    assert any("scale-invariant in training" in note for note in rows["0.weight"].notes)
    training = copy.deepcopy(model).train()
    function, weight = _of(training, "0.weight", x)
    truth = torch.linalg.matrix_norm(torch.autograd.functional.jacobian(function, weight).flatten(1), ord=2)
    value = rows["0.weight"].stacked
    assert value["attained"].value <= float(truth) * ROUNDING
    assert float(truth) <= value["certified"].value * ROUNDING
    assert float(truth) <= value["attained"].value * (1 + 1e-6)


def test_mode_batch_takes_the_batch_as_the_input() -> None:
    """The stacked batch is the input already; nothing is stacked once more."""
    model = seeded(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    result = weight_lipschitz(model, x, mode="batch")
    assert result.samples["data"] == 1
    for row in result.weights:
        assert row.attained is not None
        assert row.best is not None
        assert row.attained.log <= row.best.log
        assert not row.stacked


def test_the_result_survives_a_round_trip() -> None:
    """JSON and back: the same result, of its own kind; another kind is refused."""
    result = weight_lipschitz(seeded(Lambda(lambda m, x: m.f(x).sin(), f=nn.Linear(3, 2))), torch.ones(2, 3).double())
    assert WeightResult.from_dict(result.to_dict()) == result
    assert result.to_dict()["kind"] == "weight-lipschitz"
    with pytest.raises(ValueError, match="weight-lipschitz"):
        WeightResult.from_dict({"schema_version": 1, "kind": "capacity"})


def test_a_constant_made_of_a_weight_counts_with_what_it_meets() -> None:
    """The derivative of ``x exp(b) + b`` is ``x exp(b) + 1``, largest at a sample that no Jacobian was taken at."""
    model = Lambda(lambda m, x: x * m.b.exp() + m.b, b=nn.Parameter(torch.zeros(3)))
    x = torch.full((6, 3), 0.1, dtype=torch.float64)
    x[5] = 50.0
    result = weight_lipschitz(model.double().eval(), x)
    row = next(row for row in result.weights if row.name == "b")
    assert row.best is not None
    assert row.best.value == pytest.approx(51.0, rel=1e-9)
    assert row.best.value >= 51.0
    assert not any("contradiction" in message for message in result.messages)


#: Networks that read a parameter as a tensor and in another way, too, and which parameter.
ALSO_READ: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "as a number": ("a", lambda m, x: m.f(x) * (1 + m.a.item()) + m.a),
    "as a limit": ("a", lambda m, x: torch.clamp(m.f(x), max=m.a.item()) + m.a),
    "filled": ("a", lambda m, x: m.f(x) * torch.full((3,), m.a.item()) + m.a),
    "through NumPy": ("f.weight", lambda m, x: m.f(x) + torch.from_numpy(m.f.weight.detach().numpy()).sum(1)),
    "in a branch": ("f.bias", lambda m, x: m.f(x).relu() if m.f.bias.sum() > 0 else m.f(x) * 5),
    "as a condition": ("f.bias", lambda m, x: torch.where(m.f.bias > 0, m.f(x), 2 * m.f(x))),
    "as an index": ("f.bias", lambda m, x: m.f(x) + m.f(x)[:, m.f.bias.argmax()][:, None]),
}


@pytest.mark.parametrize("name", ALSO_READ)
def test_weights_that_are_also_read_as_numbers_have_no_bound(name: str) -> None:
    """A change of them acts in ways that no constant shows; together with them, no weights have a bound."""
    parameter, forward = ALSO_READ[name]
    model = Lambda(forward, f=nn.Linear(3, 3))
    model.register_parameter("a", nn.Parameter(torch.tensor(0.2)))
    result = weight_lipschitz(seeded(model), torch.ones(2, 3).double())
    row = next(row for row in result.weights if row.name == parameter)
    assert row.best is not None
    assert row.best.log == math.inf
    assert row.attained is None
    assert result.jointly["certified"].log == math.inf
    assert any(f"nothing is known of them: {parameter}" in message for message in result.messages)


def test_parameters_that_are_not_in_the_table_are_named() -> None:
    """One is read as a number, others are not used; tied ones are in it."""

    def forward(m: Lambda, x: Tensor) -> Tensor:
        return m.b(m.a(x)) * m.scale.item()  # type: ignore[operator,union-attr]

    model = Lambda(forward, a=nn.Linear(3, 3), b=nn.Linear(3, 3), unused=nn.Linear(3, 3))
    model.b.weight = model.a.weight
    model.register_parameter("scale", nn.Parameter(torch.tensor(2.0)))
    result = weight_lipschitz(seeded(model), torch.ones(2, 3).double())
    assert {row.name for row in result.weights} & {"unused.weight", "unused.bias"} == set()
    assert "not used by the output: unused.weight, unused.bias" in result.messages
    assert any("nothing is known of them: scale" in message for message in result.messages)
    plain = weight_lipschitz(seeded(nn.Linear(3, 3)), torch.ones(2, 3).double())
    assert plain.messages == ()


def test_one_of_several_results_of_an_operation_is_a_weight() -> None:
    """Sorted weights have the norms of the data, without a bound in the unsorted ones."""
    model = Lambda(lambda m, x: x @ m.w.sort(1)[0].T)
    model.register_parameter("w", nn.Parameter(torch.randn(4, 6)))
    x = torch.randn(3, 6, dtype=torch.float64)
    (row,) = weight_lipschitz(seeded(model), x).weights
    assert row.name == "w (effective)"
    assert row.attained is not None
    assert row.attained.value == pytest.approx(float(x.norm(dim=1).max()), rel=1e-6)


def test_wrong_use_is_said() -> None:
    """The same mistakes as for analyze, the same words; and the twin is found by name."""
    assert normscope.weight_lipschitz is weight_lipschitz
    with pytest.raises(InputError, match="Expected mode"):
        weight_lipschitz(nn.Linear(2, 2), torch.ones(1, 2), mode="wrong")
    with pytest.raises(InputError, match="Module"):
        weight_lipschitz("no module", torch.ones(1, 2))  # type: ignore[arg-type]
