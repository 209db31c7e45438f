"""The registry of normalizers: each is a file that says everything about it."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch
from torch import nn

from networks import points, program_of, seeded
from normscope.operators.normalizer import Symmetry, kinds_by_op, module_kind, normalizers
from normscope.operators.registry import find_rule


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
