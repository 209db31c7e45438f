"""Ranges of linear operations, against what random inputs reach."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from networks import Lambda, points, program_of
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.ranges import row_by_own
from normscope.lipschitz.segments import SegmentNorms
from normscope.operators.nonlinear import INF, Range

ANGLES = torch.linspace(0, 3, 5).double()[:, None].repeat(1, 3)
TURNS = {"c": torch.cat([ANGLES.cos()] * 2, -1), "s": torch.cat([ANGLES.sin()] * 2, -1), "w": points(5, 6)}


def _turned(s: Lambda, x: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * s.c + torch.cat([-right, left], -1) * s.s


MAPS: dict[str, Callable[[Lambda, Tensor], Tensor]] = {
    "turned": _turned,
    "scaled": lambda s, x: x * s.w,
    "a sum": lambda s, x: x * s.w + x.flip(-1) * s.c,
    "in pieces": lambda s, x: (x * s.w).reshape(-1, 5, 3, 2),
    "side by side": lambda s, x: torch.cat([x, x * s.w], -1),
}


@pytest.mark.parametrize("name", MAPS)
def test_rows_by_their_own_matrices(name: str) -> None:
    """No row is longer than said, and for a rotation that is what went in."""
    model = Lambda(MAPS[name], **TURNS)
    program = program_of(model, points(2, 5, 6))
    found = row_by_own(program.atoms[0], program.outputs[0][1], 2.0)
    x = points(4000, 5, 6)
    longest = float(model(2.0 * x / x.norm(dim=-1, keepdim=True)).norm(dim=-1).max())
    assert longest <= found.row
    assert found.row < 6 * longest
    if name == "turned":
        assert found.row == pytest.approx(2.0, rel=1e-9)


def test_nothing_is_said_of_unbounded_or_mixed_rows() -> None:
    """Infinity in, infinity out."""
    program = program_of(Lambda(MAPS["turned"], **TURNS), points(2, 5, 6))
    assert row_by_own(program.atoms[0], program.outputs[0][1], INF) == Range()
    for function in (lambda s, x: x.cumsum(1), lambda s, x: x.mT):  # a column is made of all rows
        mixed = program_of(Lambda(function, **TURNS), points(2, 5, 6))
        assert row_by_own(mixed.atoms[0], mixed.outputs[0][1], 1.0) == Range()


def test_rotary_positions_keep_the_length_of_rows() -> None:
    """Behind a normalizer of rows and a linear map of norm one, in a composition."""
    model = Lambda(lambda s, x: torch.tanh(_turned(s, torch.nn.functional.rms_norm(x, (6,)))), **TURNS)
    program = program_of(model, points(2, 5, 6))
    (inner,) = program.outputs[0][1].atom.inputs  # type: ignore[union-attr]
    composition = Composition(program, Domain(), SegmentNorms())
    assert composition.range(inner).row == pytest.approx(6**0.5, rel=1e-6)
