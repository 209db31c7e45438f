"""Which normalizer ends at a node: named by what it divides by, checked on numbers."""

from __future__ import annotations

import pytest

from normscope.graph.recognise import Match
from normscope.operators.normalization import Spread
from normscope.operators.recognition import kind_of_division


@pytest.mark.parametrize(
    ("axes", "rank", "kind"),
    [
        ((-1 % 2,), 2, "layer_norm"),
        ((0,), 2, "batch_norm"),
        ((0,), 1, "layer_norm"),
        ((0, 2), 3, "batch_norm"),
        ((0, 2, 3), 4, "batch_norm"),
        ((2, 3), 4, "instance_norm"),
        ((2,), 3, "layer_norm"),
        ((1, 2, 3), 4, "layer_norm"),
    ],
)
def test_axes_name_a_centred_normalizer(axes: tuple[int, ...], rank: int, kind: str) -> None:
    """Over the batch, over the places of one channel, or over anything else."""
    centred, square = (Spread((2,) * rank, axes, 1e-5, c) for c in (True, False))
    assert kind_of_division(Match("n", "x", axes, 1e-5, True), centred) == kind
    assert kind_of_division(Match("n", "x", axes, 1e-5, False, root_of="sum"), square) == "l2_norm"
