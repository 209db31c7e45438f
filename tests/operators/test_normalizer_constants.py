"""The constants of each normalizer at its place, against Jacobians of the torch layer alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from networks import Lambda, captured_of, jacobian_norm, points, program_of, seeded, spectral_norm
from normscope.core.value import Kind
from normscope.operators.normalizer import acts_on_weights, site_constants
from normscope.operators.program import build_program
from normscope.operators.site import Site, describe
from normscope.operators.survey import survey

EPS = 1e-2
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layer norm": (lambda: nn.LayerNorm(5, eps=EPS), (5,)),
    "layer norm of tokens": (lambda: nn.LayerNorm(5, eps=EPS), (3, 5)),
    "layer norm without scale": (lambda: nn.LayerNorm(5, eps=EPS, elementwise_affine=False), (5,)),
    "rms norm": (lambda: nn.RMSNorm(5, eps=EPS), (5,)),
    "group norm": (lambda: nn.GroupNorm(2, 6, eps=EPS), (6,)),
    "group norm on maps": (lambda: nn.GroupNorm(2, 4, eps=EPS), (4, 2, 2)),
    "group norm on pairs": (lambda: nn.GroupNorm(2, 4, eps=EPS), (4,)),
    "instance norm": (lambda: nn.InstanceNorm2d(3, eps=EPS, affine=True), (3, 2, 2)),
    "batch norm": (lambda: nn.BatchNorm1d(5, eps=EPS), (5,)),
}


def _site(model: nn.Module, x: Tensor) -> Site:
    (site,) = program_of(model, x).sites
    return site


def _near_constant(shape: tuple[int, ...], seed: int, size: float) -> Tensor:
    return points(1, *shape, seed=seed) * size


@pytest.mark.parametrize("name", LAYERS)
def test_the_proved_constant_is_the_supremum_of_the_jacobian(name: str) -> None:
    """No point exceeds it, and a point of vanishing spread attains it."""
    build, shape = LAYERS[name]
    model = seeded(build())
    constants = site_constants(_site(model, points(2, *shape)), None, "running")
    worst = max(jacobian_norm(model, _near_constant(shape, i, size)) for i in range(3) for size in (1e-9, 0.1, 1.0))
    assert constants.proved.kind is Kind.CERTIFIED
    assert worst <= constants.proved.value * (1 + 1e-12)
    assert constants.proved.value == pytest.approx(worst, rel=1e-6)
    assert constants.on_floor is None


@pytest.mark.parametrize("name", [k for k in LAYERS if "batch" not in k])
def test_on_floors_it_bounds_every_point_above_them(name: str) -> None:
    """At the floors of some data the constant holds for that data, and is smaller than on all inputs."""
    build, shape = LAYERS[name]
    model, x = seeded(build()), points(20, *shape)
    captured = captured_of(model, x)
    program = build_program(captured.graph, captured.tensors, captured.at_batch(1))
    (seen,) = survey(captured, program, [[x]], activations={}).before_normalizers.values()
    constants = site_constants(program.sites[0], seen.floor, "running")
    worst = max(jacobian_norm(model, row[None]) for row in x)
    assert constants.on_floor is not None
    assert worst <= constants.on_floor.value * (1 + 1e-9)
    assert constants.on_floor.log < constants.proved.log
    assert f"{float(seen.floor.min()):.6g}" in constants.on_floor.domain


def test_fixed_statistics() -> None:
    """F1 beside Lemma 1 (without scale) and the slides (with it): both are l2 norms of vectors, F1 a maximum."""
    model = nn.BatchNorm1d(3, eps=0.0).double()
    model.running_var.copy_(torch.tensor([9.0, 16.0, 1.0]))
    model.weight.data.copy_(torch.tensor([3.0, 2.0, 0.1], dtype=torch.float64))
    constants = site_constants(_site(model, points(2, 3)), None, "running")
    assert constants.proved.value == pytest.approx(1.0, rel=1e-12)
    assert constants.printed is not None
    assert constants.slides is not None
    assert constants.printed.value == pytest.approx(math.sqrt(1 / 9 + 1 / 16 + 1), rel=1e-12)
    assert constants.slides.value == pytest.approx(math.sqrt(1 + 0.25 + 0.01), rel=1e-12)
    assert constants.printed_is_bound is True
    model.weight.data.mul_(10)  # Lemma 1 leaves the scale out: with a large one it is no bound
    assert site_constants(_site(model, points(2, 3)), None, "running").printed_is_bound is False


def test_fixed_statistics_that_divide_by_zero() -> None:
    """No variance and no stabilizer: infinite, and nothing is printed."""
    model = nn.BatchNorm1d(3, eps=0.0).double()
    model.running_var[1] = 0.0
    constants = site_constants(_site(model, points(2, 3)), None, "running")
    assert constants.proved.log == math.inf
    assert constants.printed is None


def test_printed_forms() -> None:
    """Lemma 2 for LayerNorm, Lemma 3 for groups; none for RMSNorm; a scale above one breaks Lemma 2."""
    layer = nn.LayerNorm(4).double()
    floor = torch.tensor([[0.5]], dtype=torch.float64)
    at_floor = site_constants(_site(layer, points(2, 4)), floor, "running")
    assert at_floor.printed is not None
    assert at_floor.printed.value == pytest.approx(1 / math.sqrt(0.25 + 1e-5), rel=1e-9)
    assert at_floor.printed_is_bound is True
    layer.weight.data.mul_(2)
    assert site_constants(_site(layer, points(2, 4)), floor, "running").printed_is_bound is False
    group = site_constants(_site(nn.GroupNorm(4, 12).double(), points(2, 12)), None, "running")
    assert group.printed is not None
    assert group.printed.value == pytest.approx(4 / math.sqrt(1e-5), rel=1e-9)
    assert group.printed_is_bound is True
    assert site_constants(_site(nn.RMSNorm(4).double(), points(2, 4)), None, "running").printed is None


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_normalizers_of_weights_have_constant_one(wrap: Callable[[nn.Module], nn.Module]) -> None:
    """They act on the weight: the layer's own norm tells what they did."""
    program = program_of(seeded(wrap(nn.Linear(4, 3))), points(2, 4))
    (site,) = program.sites
    assert acts_on_weights(site)
    constants = site_constants(site, None, "running")
    assert constants.proved.log == 0.0
    assert constants.printed is None


def test_scale_of_one_entry_and_of_the_whole_group() -> None:
    """One number multiplies; one per entry is centred first: ||Gamma P||, not max |gamma|."""
    gamma = torch.tensor([3.0, 2.0, 1.0, 0.5]).double()
    layer = nn.LayerNorm(4).double()
    layer.weight.data.copy_(gamma)
    found = site_constants(_site(layer, points(2, 4)), None, "running").proved.value
    centre = torch.eye(4).double() - 0.25
    assert found == pytest.approx(spectral_norm(torch.diag(gamma) @ centre) / math.sqrt(1e-5), rel=1e-9)
    assert found < 3 / math.sqrt(1e-5)
    scalar = Lambda(
        lambda s, x: s.g * (x / (x.square().mean(-1, keepdim=True) + 0.01).sqrt()), g=nn.Parameter(torch.tensor([-7.0]))
    ).double()
    assert site_constants(_site(scalar, points(2, 4)), None, "running").proved.value == pytest.approx(70.0, rel=1e-9)


def test_facts_for_the_report() -> None:
    """Stabilizer, group size, extremes of fixed standard deviations, largest scale."""
    model = nn.BatchNorm1d(3).double()
    model.running_var.copy_(torch.tensor([4.0, 9.0, 1.0]))
    model.weight.data.copy_(torch.tensor([1.0, -5.0, 2.0]))
    facts = describe(_site(model, points(2, 3)))
    assert (facts["std_min"], facts["std_max"], facts["channels"], facts["gamma_max"]) == (1.0, 3.0, 3, 5.0)
    group = describe(_site(nn.GroupNorm(2, 4).double(), points(2, 4, 3)))
    assert (group["group_size"], group["eps"], group["written_out"]) == (6, 1e-5, False)
