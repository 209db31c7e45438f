"""Few bits: the levels, the length of the code, and that enough of them leave the network as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from normscope.analysis.bounds.compressed import quantized
from normscope.analysis.bounds.paths import folded_tensors
from normscope.analysis.bounds.scores import class_scores

from .conftest import captured_of


@pytest.mark.parametrize("width", [2, 4])
def test_levels_and_bits(trained: Any, width: int) -> None:
    """At most ``2^w - 1`` values in each tensor; as many bits as numbers times width, and 32 for each scale."""
    captured = captured_of(trained[0], 4, 2)
    tensors, bits = quantized(captured, width)
    folded, statistics = folded_tensors(captured)
    coded = [n for n, t in folded.items() if t.is_floating_point() and n not in statistics]
    assert all(tensors[n].unique().numel() <= 2**width - 1 for n in coded)
    assert bits == sum(folded[n].numel() * width + 32 for n in coded)


def test_many_bits_change_little(trained: Any) -> None:
    """At 12 bits decisions stay; at 2 bits the scores are others."""
    model, (x, _), _ = trained
    captured = captured_of(model, 4, 2)
    own = class_scores(captured, captured.tensors, x)
    fine, coarse = (class_scores(captured, quantized(captured, w)[0], x) for w in (12, 2))
    assert float((fine.argmax(1) == own.argmax(1)).double().mean()) > 0.98
    assert float((fine - own).abs().max()) < 0.1 * float((coarse - own).abs().max())
    assert torch.equal(own, class_scores(captured, captured.tensors, x))
