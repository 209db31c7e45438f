"""Margins: by sorting, the ramp between the error and the margin loss, and its constants on cells against pairs."""

from __future__ import annotations

import math

import pytest
import torch

from normscope.core.errors import InputError
from normscope.generalization.margins import cell_constants, flat_cells, margin_loss, margins, ramp_loss


def test_margin_by_sorting() -> None:
    """The right score minus the best of the others."""
    source = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(50, 4, generator=source), torch.randint(4, (50,), generator=source)
    for row, label, found in zip(scores.tolist(), labels.tolist(), margins(scores, labels).tolist(), strict=True):
        others = [v for i, v in enumerate(row) if i != label]
        assert found == pytest.approx(row[label] - max(others))


@pytest.mark.parametrize("gamma", [0.1, 1.0, 3.0])
def test_ramp_lies_between(gamma: float) -> None:
    """Error <= mean ramp <= margin loss, and its slope in the scores is at most sqrt(2)/gamma."""
    source = torch.Generator().manual_seed(1)
    scores = torch.randn(400, 5, generator=source, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(5, (400,), generator=source)
    margin = margins(scores, labels)
    ramp = ramp_loss(margin, gamma)
    mean = float(ramp.detach().mean())
    assert float((margin <= 0).double().mean()) <= mean <= margin_loss(margin, gamma)
    (slopes,) = torch.autograd.grad(ramp.sum(), scores)
    assert float(slopes.norm(dim=1).max()) == pytest.approx(math.sqrt(2) / gamma)


@pytest.mark.parametrize("gamma", [0.05, 0.5])
def test_no_pair_exceeds_it(gamma: float) -> None:
    """A margin ``K sin(x)`` on cells of width 0.2: differences of the ramp over all pairs of a fine mesh."""
    constant, radius = 2.0, 0.1
    centres = torch.arange(40, dtype=torch.float64) * 0.2 + 0.1
    found = cell_constants(constant * centres.sin(), constant, radius, gamma)
    for centre, local in zip(centres, found, strict=True):
        x = torch.linspace(float(centre) - radius, float(centre) + radius, 201, dtype=torch.float64)
        f = ramp_loss(constant * x.sin(), gamma)
        assert float(f.max() - f.min()) <= float(local) * 2 * radius + 1e-12
    assert (found == 0).any()
    assert (found > 0).any()
    assert float(found.max()) <= min(constant / gamma, 5.0) + 1e-12


def test_a_constant_and_a_radius_for_each_cell() -> None:
    """The same as one cell at a time; a smaller constant or ball can only make more cells flat."""
    margins = torch.tensor([1.3, 1.3, 1.3, -0.4])
    constants, radii = (torch.tensor(v, dtype=torch.float64) for v in ([1.0, 5.0, 1.0, 3.0], [0.2, 0.2, 0.9, 0.1]))
    found = cell_constants(margins, constants, radii, 1.0)
    alone = [
        float(cell_constants(m[None], float(k), float(r), 1.0))
        for m, k, r in zip(margins, constants, radii, strict=True)
    ]
    assert found.tolist() == alone
    assert flat_cells(margins, constants, radii, 1.0).tolist() == [True, False, False, True]


def test_refused() -> None:
    """No ramp, no cell."""
    for constant, radius, gamma in ((1.0, 0.0, 1.0), (1.0, 1.0, 0.0), (-1.0, 1.0, 1.0)):
        with pytest.raises(InputError):
            cell_constants(torch.zeros(2), constant, radius, gamma)


def test_margins_on_the_edge_are_not_flat_whatever_their_size() -> None:
    """The allowance for rounding grows with the margin: it is relative."""
    for size in (1.0, 1e6):
        margins = torch.tensor([2.0 + 1e-10, 2.0 + 1e-8], dtype=torch.float64) * size
        assert flat_cells(margins, size, 1.0, size).tolist() == [False, True]
