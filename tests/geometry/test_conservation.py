"""Conservation laws: exact for steps at eps = 0, explained by eps otherwise, for flows up to the integrator's error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope.core.errors import InputError
from normscope.geometry.conservation import ConservedCharge, charges, conservation, conserved
from normscope.geometry.discover import Symmetries, symmetry
from normscope.geometry.flow import gradient_flow
from normscope.geometry.norm_growth import equilibrium_angle
from normscope.geometry.symmetry import Kind
from symmetric_networks import mlp, randomized


def found(eps: float = 1e-5) -> Symmetries:
    """Return the symmetries of a small network with BatchNorm."""
    torch.manual_seed(0)
    model = randomized(mlp(lambda h: [nn.BatchNorm1d(h, eps=eps)], nn.Tanh))
    return symmetry(model, torch.randn(32, 3).double(), batch=32, loss="cross_entropy")


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_steps_follow_the_law_to_rounding(decay: float) -> None:
    laws = conservation(found(), rate=0.5, decay=decay, steps=5, exact=True)
    assert len(laws) == 4
    for law in laws:
        assert abs(law.difference) <= 1e-12 * law.measured
        assert decay or law.measured > law.start


def test_eps_explains_the_difference() -> None:
    for law in conservation(found(eps=0.1), rate=0.5, steps=5):
        assert abs(law.difference) > 1e-6
        assert abs(law.rounding) <= 1e-12 * law.measured


@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_flow_conserves_lengths(decay: float) -> None:
    for law in conservation(found(), law="flow", time=2.0, decay=decay, exact=True):
        assert abs(law.difference) <= 1e-7 * law.measured
    for law in conservation(found(eps=0.1), law="flow", time=2.0, decay=decay):
        assert abs(law.eps) > 1e-7
        assert abs(law.discretization) <= 1e-7 * law.measured


def test_nothing_to_conserve_and_wrong_use() -> None:
    torch.manual_seed(0)
    assert conservation(symmetry(mlp(lambda h: [], nn.Tanh), torch.randn(8, 3))) == []
    with pytest.raises(InputError, match="law 'steps' or 'flow'"):
        conservation(found(), law="adam")


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_angle_at_equilibrium(momentum: float) -> None:
    """A network with BatchNorm trained on noise with decay turns by sqrt(2 eta lambda/(1 + mu)) a step, within 3 %."""
    torch.manual_seed(0)
    rate, decay, generator = 0.1, 0.05, torch.Generator().manual_seed(0)
    w = torch.randn(8, 16, dtype=torch.float64, requires_grad=True)
    turned, speed = [], torch.zeros_like(w)
    for step in range(1500):
        x = torch.randn(32, 16, generator=generator, dtype=torch.float64)
        y = torch.randn(32, 8, generator=generator, dtype=torch.float64)
        z = x @ w.mT
        z = (z - z.mean(0)) / z.std(0, correction=0)
        (gradient,) = torch.autograd.grad((z - y).square().sum() / 32, w)
        with torch.no_grad():
            speed = momentum * speed + gradient + decay * w  # as torch.optim.SGD
            moved = w - rate * speed
            if step >= 500:
                turned.append(torch.cosine_similarity(w, moved, dim=-1).arccos().square().mean())
            w = moved.requires_grad_()
    measured = float(torch.stack(turned).mean().sqrt())
    assert measured == pytest.approx(equilibrium_angle(rate, decay, momentum), rel=0.03)


#: Normalization without a stabilizer.
NORMALIZED: dict[Kind, Callable[[Tensor], Tensor]] = {
    "batch": lambda z: (z - z.mean(0)) / z.std(0, correction=0),
    "layer": lambda z: F.layer_norm(z, z.shape[1:], eps=0.0),
    "rms": lambda z: z / z.square().mean(1, keepdim=True).sqrt(),
}


@pytest.mark.parametrize("kind", NORMALIZED)
def test_flow_keeps_what_is_conserved(kind: Kind) -> None:
    generator = torch.Generator().manual_seed(14)
    x, target, w, b = (torch.randn(*shape, generator=generator).double() for shape in ((12, 3), (12, 4), (4, 3), (4,)))
    start = {"w": w, "b": b}

    def loss(p: object) -> Tensor:
        return (NORMALIZED[kind](x @ p["w"].mT + p["b"]) - target).square().mean()  # type: ignore[index]

    end = gradient_flow(loss, start, 2.0)
    assert float((end["w"] - start["w"]).norm()) > 0.05
    before, after = (conserved(kind, p["w"], p["b"]) for p in (start, end))
    for name, value in before.items():
        assert torch.allclose(value, after[name], rtol=1e-6, atol=1e-7), name
    assert conserved("none", start["w"], start["b"]) == {}
    with pytest.raises(InputError, match="one of"):
        conserved("cosine", torch.ones(1, 1), torch.ones(1))  # type: ignore[arg-type]


def symmetries_of(norm: type[nn.Module], activation: type[nn.Module], seed: int = 0) -> Symmetries:
    """Return the symmetries of a small network."""
    torch.manual_seed(seed)
    model = randomized(mlp(lambda h: [norm(h)], activation))
    return symmetry(model, torch.randn(32, 3).double(), batch=32, loss="cross_entropy")


def _of(rows: list[ConservedCharge], *parameters: str) -> list[ConservedCharge]:
    return [row for row in rows if set(parameters) == set(row.parameters)]


@pytest.mark.parametrize("law", ["steps", "flow"])
def test_column_sums_before_layer_norm_stay(law: str) -> None:
    """1'W and 1'b, which are constant directions: conserved by every step, not only by flows."""
    symmetries = symmetries_of(nn.LayerNorm, nn.Tanh)
    rows = charges(symmetries, law=law, rate=0.3, steps=5, exact=True)
    weight, bias = symmetries.function.point["0.weight"], symmetries.function.point["0.bias"]
    sums = [row for row in rows if row.form == "linear" and row.parameters in (("0.weight",), ("0.bias",))]
    wanted = sorted([*weight.sum(0).tolist(), float(bias.sum())])
    # A direction may be scaled: the ones of a column over their norm.
    ratio = {round(abs(a / b), 9) for a, b in zip(sorted(row.start for row in sums), wanted, strict=True)}
    assert len(sums) == 4
    assert len(ratio) == 1
    assert all(abs(row.difference) < 1e-12 for row in sums)


@pytest.mark.turns(2)
@pytest.mark.parametrize("law", ["steps", "flow"])
def test_rescalings_through_relu(law: str) -> None:
    """gamma^2 + beta^2 - ||column||^2 of every unit, by hand; a step moves it by eta^2 of the same of the gradient."""
    symmetries = symmetries_of(nn.BatchNorm1d, nn.ReLU)
    rows = charges(symmetries, law=law, rate=0.3, steps=5, exact=True)
    point = symmetries.function.point
    across = _of(rows, "1.weight", "1.bias", "3.weight")
    by_hand = point["1.weight"] ** 2 + point["1.bias"] ** 2 - point["3.weight"].square().sum(0)
    assert sorted(row.start for row in across) == pytest.approx(sorted(by_hand.tolist()), rel=1e-9)
    for row in rows:
        assert abs(row.difference) < (1e-12 if law == "steps" else 1e-8), row
        assert (row.measured != row.start) or row.form == "linear" or law == "flow"


def test_eps_breaks_what_it_should_and_rotations_have_none() -> None:
    """With a large eps the length of a row is no longer conserved; a network without symmetry has no charge."""
    torch.manual_seed(0)
    model = randomized(mlp(lambda h: [nn.BatchNorm1d(h, eps=0.5)], nn.Tanh))
    symmetries = symmetry(model, torch.randn(32, 3).double(), batch=32, loss="cross_entropy")
    broken = [row for row in charges(symmetries, rate=0.3, steps=5) if row.kind == "scale"]
    assert max(abs(row.difference) for row in broken) > 1e-6
    assert charges(symmetry(mlp(lambda h: [], nn.Tanh), torch.randn(8, 3))) == []
    with pytest.raises(InputError, match="law 'steps' or 'flow'"):
        charges(symmetries, law="adam")
