"""Activations written out in a model: the constant of the whole function, and never that of another one."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from networks import Lambda, points, program_of, upper_of
from normscope.operators.program import Program
from normscope.operators.scalar.entrywise import Entrywise, Forms
from operators.refute import program, refuted

Function = Callable[[Tensor], Tensor]
ROOT = math.sqrt(2 / math.pi)

#: Functions as models write them, and their constants on all inputs.
WRITTEN: dict[str, tuple[Function, float]] = {
    "silu": (lambda x: x * torch.sigmoid(x), 1.0998393194),
    "silu, other order": (lambda x: torch.sigmoid(x) * x, 1.0998393194),
    "silu by its definition": (lambda x: x / (1 + torch.exp(-x)), 1.0998393194),
    "quick gelu": (lambda x: x * torch.sigmoid(1.702 * x), 1.0998393194),
    "new gelu": (lambda x: 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.044715 * torch.pow(x, 3.0)))), 1.1289930225),
    "new gelu by a cube": (lambda x: 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.044715 * x * x * x))), 1.1289930225),
    "old gelu": (lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))), 1.1289041452),
    "mish": (lambda x: x * torch.tanh(F.softplus(x)), 1.0884980),
    "softsign": (lambda x: x / (1 + x.abs()), 1.0),
    "softplus": (lambda x: torch.log(1 + torch.exp(x)), 1.0),
    "relu by a mask": (lambda x: x * (x > 0), 1.0),
    "relu by a float mask": (lambda x: x * (x >= 0).to(x.dtype), 1.0),
    "relu by filling": (lambda x: x.masked_fill(x < 0, 0.0), 1.0),
    "two slopes": (lambda x: torch.where(x > 0, 2 * x, x), 2.0),
    "two slopes that meet at one": (lambda x: torch.where(x > 1, 3 * x - 2, x), 3.0),
    # exp(x) - 1 loses digits near zero, which pairs that are very near would see
    "elu": (lambda x: torch.where(x > 0, x, torch.expm1(x)), 1.0),
    "hard swish": (lambda x: x * F.relu6(x + 3) / 6, 1.5),
    "root": (lambda x: torch.sqrt(x * x + 1.0), 1.0),
    "maximum of two lines": (lambda x: torch.maximum(x, -2 * x), 2.0),
    "tanh times sigmoid": (lambda x: x.sigmoid() * x.tanh(), (1 + math.sqrt(2)) / 4),
}  # fmt: skip


def whole(found: Program) -> list[Entrywise]:
    """Return the rules of functions of one variable in a program."""
    return [a.atom for a in found.atoms if isinstance(a.atom, Entrywise)]


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", WRITTEN)
def test_written_out(name: str) -> None:
    """One atom with the known constant; Jacobians, pairs and ranges do not refute it."""
    function, constant = WRITTEN[name]
    checked = refuted(function, 3)
    assert checked.opaque == []
    assert constant * (1 - 1e-8) <= math.exp(checked.upper["everywhere"]) <= constant * (1 + 1e-5)
    assert checked.upper["range"] <= checked.upper["everywhere"] + 1e-9
    assert whole(program(function, 3))


POWERS: dict[float, float] = {
    0.5: 1.0,  # x / sqrt(1 + x^2)
    -0.5: 2 / math.sqrt(27),  # x / (1 + x^2)^(3/2), at x^2 = 1/2
    -1.0: math.sqrt(27) / 8,  # 2 x / (1 + x^2)^2, at x^2 = 1/3
}


@pytest.mark.parametrize("exponent", POWERS)
def test_powers_of_a_form_have_the_constants_of_their_derivatives(exponent: float) -> None:
    """``(1 + x^2)^p`` has the slope ``2 p x (1 + x^2)^(p - 1)``."""
    constant = upper_of(program(lambda x: (1 + x * x) ** exponent, 3))
    assert POWERS[exponent] * (1 - 1e-9) <= constant <= POWERS[exponent] * (1 + 1e-5)


NOT_WHOLE: dict[str, Function] = {
    "a jump": lambda x: torch.where(x > 0, x + 1, x),
    "a jump elsewhere": lambda x: torch.where(x > 1, 2 * x, x),
    "a mask alone": lambda x: x + (x > 0),
    "a sum of masks, which is a mask": lambda x: x + 1.0 * ((x > 0) + (x > 0)),
    "a step": lambda x: x * torch.floor(x),
    "another tensor": lambda x: x * torch.sigmoid(x.flip(1)),
    "a mean": lambda x: x * torch.sigmoid(x.mean(1, keepdim=True)),
    "another layout": lambda x: x * torch.sigmoid(x).roll(1, 1),
    "an outer product": lambda x: x[:, :, None] * torch.sigmoid(x)[:, None, :],
}


@pytest.mark.parametrize("name", NOT_WHOLE)
def test_what_is_not_a_continuous_function_of_one_entry(name: str) -> None:
    """Jumps, and products with another entry or tensor: no constant on all inputs."""
    checked = refuted(NOT_WHOLE[name], 3)
    assert checked.upper["everywhere"] == math.inf
    assert whole(program(NOT_WHOLE[name], 3)) == []


def test_factors_of_sums_are_not_lost() -> None:
    """``alpha`` scales what is added, also by zero; a sum of masks is a mask."""
    swish = lambda x: x.add(x.sigmoid(), alpha=0) * x.sigmoid()  # noqa: E731
    assert math.exp(refuted(swish, 3).upper["everywhere"]) == pytest.approx(1.0998393194, rel=1e-6)
    masked = lambda x: x * (3.0 - 1.0 * ((x > 0) + (x > 0)))  # noqa: E731
    assert refuted(masked, 3).upper["everywhere"] >= math.log(3.0)


def test_powers_of_relu_have_a_constant_on_a_range_only() -> None:
    """``x relu(x)`` is as steep as its range is wide."""
    checked = refuted(lambda x: x * F.relu(x), 3)
    assert checked.upper["everywhere"] == math.inf
    assert checked.upper["range"] < math.inf


def test_a_constant_for_each_channel_is_not_one_function() -> None:
    """Swish with a scale for each channel keeps the product rule; with one scale it is one function."""
    several = nn.Parameter(torch.tensor([0.5, 1.0, 2.0]))
    one = nn.Parameter(torch.tensor([1.5]))
    swish = lambda s, x: x * torch.sigmoid(s.beta * x)  # noqa: E731
    assert upper_of(program_of(Lambda(swish, beta=several), points(2, 3))) == math.inf
    assert upper_of(program_of(Lambda(swish, beta=one), points(2, 3))) == pytest.approx(1.0998393194, rel=1e-6)


def test_between_layers() -> None:
    """The function acts on what a layer gives; the bound is the product of both layers' norms and its slope."""
    first, last = nn.Linear(3, 5).double(), nn.Linear(5, 2).double()
    model = nn.Sequential(first, Lambda(lambda s, x: x * torch.sigmoid(1.702 * x)), last)
    norms = [torch.linalg.matrix_norm(layer.weight.detach(), 2).item() for layer in (first, last)]
    found = program_of(model, points(2, 3).double())
    assert upper_of(found) == pytest.approx(norms[0] * norms[1] * 1.0998393194, rel=1e-6)
    assert [type(a.atom).__name__ for a in found.atoms] == ["Input", "Entrywise"]


@pytest.mark.parametrize(
    ("name", "constant"),
    [
        ("gelu_new", 1.1289930225),
        ("quick_gelu", 1.0998393194),
        ("gelu_fast", 1.1289930225),
        ("gelu_python", 1.1289041452),
    ],
)
def test_activations_of_a_library(name: str, constant: float) -> None:
    """As transformers write them: no infinity comes from them."""
    activations = pytest.importorskip("transformers.activations")
    found = upper_of(program_of(nn.Sequential(nn.Identity(), activations.get_activation(name)), points(2, 3)))
    assert found == pytest.approx(constant, rel=1e-5)


def test_long_chains_begin_anew() -> None:
    """A function of many operations is bounded in parts, and stays quick."""

    def chain(x: Tensor) -> Tensor:
        for _ in range(12):
            x = x * torch.sigmoid(x)
        return x

    found = program(chain, 3)
    assert len(whole(found)) >= 2
    assert upper_of(found) <= 1.09984**12


def test_forms_leave_other_results_alone() -> None:
    """What is not one expression passes through."""
    assert Forms().refined(None, [None]) == [None]  # type: ignore[arg-type]
