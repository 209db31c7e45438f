"""The registry of normalizers: each is a file that says everything about it."""

from __future__ import annotations

import importlib
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from networks import points, program_of, seeded
from normscope.core.value import Kind
from normscope.operators.normalizer import (
    Symmetry,
    kinds_by_op,
    module_kind,
    normalizers,
    scaled_constant,
    spread_constants,
)
from normscope.operators.registry import find_rule
from normscope.operators.site import Site
from normscope.operators.spread_division import Spread


def test_a_normalizer_has_the_name_of_its_file() -> None:
    """So that one finds it; and it is found by lying there."""
    for kind, normalizer in normalizers().items():
        module = importlib.import_module(f"normscope.operators.normalizers.{kind}")
        assert module.NORMALIZER is normalizer
        assert normalizer.kind == kind
        assert normalizer.formula


def test_every_operation_of_a_normalizer_is_one_of_torch_and_has_a_rule() -> None:
    """A name that is none would hide a normalizer."""
    assert kinds_by_op()
    for op in kinds_by_op():
        assert hasattr(torch.ops.aten, op)
        assert find_rule(f"aten.{op}.default") is not None


MODULES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "group_norm": (nn.GroupNorm(2, 4, eps=1e-2), (4, 3, 3)),
    "layer_norm": (nn.LayerNorm((3, 4), eps=1e-2), (2, 3, 4)),
    "rms_norm": (nn.RMSNorm(4), (3, 4)),
    "instance_norm": (nn.InstanceNorm2d(3, eps=1e-2, affine=True), (3, 4, 4)),
    "batch_norm": (nn.BatchNorm2d(3, eps=1e-2, track_running_stats=False), (3, 4, 4)),
}


@pytest.mark.parametrize("kind", MODULES)
def test_a_module_divides_as_its_operation_does(kind: str) -> None:
    """What is said of the module class is what the graph of the module says."""
    module, shape = MODULES[kind]
    (site,) = program_of(seeded(module), points(2, *shape), batch=2).sites
    normalizer = normalizers()[kind]
    assert site.kind == kind
    assert module_kind(module) == kind
    assert normalizer.module_spread is not None
    assert normalizer.module_spread(module, (2, *shape)) == site.spread


def test_what_a_normalizer_undoes_has_a_dimension() -> None:
    """A factor, a row and a shift per unit."""
    assert Symmetry("neuron", shift=True).dimension(4, 3) == 8
    assert Symmetry("group", row=True, shift=True).dimension(4, 3, groups=2) == 10
    assert Symmetry("layer").dimension(4, 3) == 1


def test_every_normalizer_has_its_line_in_the_documentation() -> None:
    """And no line speaks of one that does not exist."""
    page = Path(__file__).parents[2] / "docs" / "normalizers.md"
    lines = [line.split("`")[1] for line in page.read_text().splitlines() if line.startswith("| `")]
    assert lines == list(normalizers())


EPS = 0.25


def _site(spread: Spread, gamma: torch.Tensor | None) -> Site:
    return Site("n", "x", "m", "any", spread, gamma, eps=spread.eps, shape=spread.view)


def _truth(spread: Spread, gamma: torch.Tensor, floor: float) -> float:
    """Return the norm of ``diag(gamma) P / sqrt(s^2 + eps)`` as a dense matrix over one group."""
    n = spread.size
    projection = torch.eye(n).double() - (torch.full((n, n), 1.0 / n).double() if spread.centered else 0.0)
    return float(torch.linalg.matrix_norm(torch.diag(gamma) @ projection, 2)) / math.sqrt(floor**2 + EPS)


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("floor", [0.0, 1.5])
def test_one_group_with_a_scale_per_entry(centered: bool, floor: float) -> None:
    """The scale acts on what is left after centring."""
    spread = Spread((2, 5), (1,), EPS, centered)
    gamma = torch.tensor([3.0, -1.0, 0.5, 2.0, 1.0]).double()
    found = scaled_constant(_site(spread, gamma), spread, torch.tensor(floor).double())
    assert found == pytest.approx(_truth(spread, gamma, floor), rel=1e-12)


@pytest.mark.parametrize("centered", [True, False])
def test_groups_of_channels_with_a_scale_each(centered: bool) -> None:
    """Every group with its own scales and floor; the largest counts."""
    spread = Spread((1, 2, 4), (2,), EPS, centered, channel_axis=1)
    gamma = torch.tensor([3.0, 1.0, -4.0, 0.5]).double()  # two channels of two positions in each group
    floors = torch.tensor([[[0.0], [2.0]]]).double()
    found = scaled_constant(_site(spread, gamma), spread, floors)
    each = [_truth(spread, g.repeat_interleave(2), s) for g, s in ((gamma[:2], 0.0), (gamma[2:], 2.0))]
    assert found == pytest.approx(max(each), rel=1e-12)


def test_a_printed_number_is_compared_on_the_same_domain() -> None:
    """On all inputs, or above the floor where there is one."""
    spread = Spread((2, 5), (1,), EPS, True)
    constants = spread_constants("s", (lambda floor, eps: 1.0, "p"))
    everywhere = constants(_site(spread, None), None, "running")
    assert everywhere.on_floor is None
    assert everywhere.printed is not None
    assert (everywhere.printed.kind, everywhere.printed_is_bound) == (Kind.PRINTED, False)
    above = constants(_site(spread, None), torch.tensor([[3.0]]).double(), "running")
    assert above.on_floor is not None
    assert above.on_floor.value == pytest.approx(1 / math.sqrt(9 + EPS), rel=1e-12)
    assert above.printed_is_bound is True


def test_what_does_not_divide_by_a_spread_has_no_bound() -> None:
    """Rather than a wrong one."""
    found = spread_constants("s")(Site("n", "x", "m", "any"), None, "running")
    assert found.proved.log == math.inf
