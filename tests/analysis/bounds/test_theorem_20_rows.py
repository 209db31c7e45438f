"""Theorem 20 and its corollaries: from their parts, with local constants, with held-out distances, refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from normscope.analysis.bounds import theorem_20_rows
from normscope.analysis.bounds.run import bounds
from normscope.generalization import g_multinomial, g_paper, g_tight, g_total_variation, grid, ramp_loss
from normscope.generalization.margins import margins

REPAIRED, HELD_OUT = "Theorem 20, repaired", "Theorem 20, held-out distances"


def _on_grid(trained: Any, n: int, **more: Any) -> Any:
    model, train, test = trained
    parts = grid([0, 0], [1, 1], [n, n])
    return bounds(model, train=train, test=test, partition=parts, only=[REPAIRED, HELD_OUT], **more).rows


def test_from_its_parts(trained: Any) -> None:
    """Training loss, what cells add, and the least of three terms with a third of delta each; all of them are shown."""
    model, (x, y), _ = trained
    row = _on_grid(trained, 3)[REPAIRED]
    gamma = float(row.details["loss"].removeprefix("ramp at "))
    with torch.no_grad():
        risk = float(ramp_loss(margins(model(x).double(), y), gamma).mean())
    occupied = row.details["occupied"]
    terms = {
        "g tight": g_tight(1.0, occupied, 18, 800, 0.05 / 3).value,
        "g total variation": g_total_variation(1.0, 18, 800, 0.05 / 3).value,
        "g multinomial": g_multinomial(1.0, 18, 800, 0.05 / 3).value,
    }
    assert {name: row.details[name] for name in terms} == pytest.approx(terms)
    assert row.bound.value == pytest.approx(risk + row.details["local term"] + min(terms.values()), abs=2e-3)
    printed = risk + row.details["local term"] + g_paper(1.0, occupied, 18, 800, 0.05).value
    assert row.details["error with g printed alone"] == pytest.approx(printed, abs=2e-3)
    assert row.details["diameter"] == pytest.approx(math.sqrt(2) / 3)
    assert row.bound.statement == "normscope Proposition GEN-4"


def test_the_parts_of_delta_add_up_to_it(trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each term of the counts and one for the held-out distances of each loss: all may fail, together."""
    spent: list[float] = []
    for name in ("g_tight", "g_total_variation", "g_multinomial", "held_out_local_term"):
        original = getattr(theorem_20_rows, name)

        def noted(*args: Any, original: Any = original) -> Any:
            spent.append(args[-1])
            return original(*args)

        monkeypatch.setattr(theorem_20_rows, name, noted)
    model, train, test = trained
    bounds(model, train=train, test=test, partition=grid([0, 0], [1, 1], [3, 3]), only=[HELD_OUT])
    assert len(spent) > 4
    assert sum(spent) <= 0.05 * (1 + 1e-12)


@pytest.fixture(scope="module")
def easy() -> Any:
    """Return a network on a line: two classes far apart, which a Lipschitz score separates."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x = torch.rand(6000, 1)
        y = (x[:, 0] > 0.5).long()
        x = torch.where(y[:, None] > 0, 0.55 + 0.9 * (x - 0.5), 0.9 * x)
        net = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 2))
        optimizer = torch.optim.Adam(net.parameters(), 1e-2)
        for _ in range(120):
            optimizer.zero_grad()
            F.cross_entropy(net(x[:5000]), y[:5000]).backward()
            optimizer.step()
    return net.eval(), (x[:5000], y[:5000]), (x[5000:], y[5000:])


def test_informative_without_being_made_for_it(easy: Any) -> None:
    """An ordinary network: cells away from the boundary are flat, and the certificate is far below guessing."""
    model, train, test = easy
    found = bounds(model, train=train, test=test, box=(0.0, 1.0), only=[REPAIRED, HELD_OUT])
    row, other = found.rows[REPAIRED], found.rows[HELD_OUT]
    assert not row.vacuous
    assert row.bound.value < 0.3
    assert row.details["flat cells"] > 20
    assert row.details["balls"] == len(grid([0.0], [1.0], [78]).assign(train[0]).unique())
    assert found.truth["test_error"] < row.bound.value
    assert other.status == "certificate"
    assert other.bound.value < 0.35


def test_held_out_distances_help_where_cells_are_wide(easy: Any) -> None:
    """One cell: the diameter is the whole line, the mean distance a quarter or so."""
    model, train, test = easy
    gentle = nn.Sequential(model, nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        gentle[1].weight.copy_(torch.eye(2) * 0.05)
    parts = grid([0.0], [1.0], [1])
    found = bounds(gentle, train=train, test=test, partition=parts, only=[REPAIRED, HELD_OUT], loss="probability").rows
    assert found[HELD_OUT].bound.value < found[REPAIRED].bound.value
    assert found[HELD_OUT].details["local term"] < 0.75 * found[REPAIRED].details["local term"]
    with torch.no_grad():
        risk = 1 - torch.softmax(gentle(test[0]), 1).gather(1, test[1][:, None]).mean()
    assert float(risk) < found[HELD_OUT].bound.value


def test_refused_after_tuning(trained: Any) -> None:
    """Distances from test inputs that were looked at prove nothing; diameters still do."""
    found = _on_grid(trained, 2, tuned_on_test=True)
    assert found[HELD_OUT].status == "refused"
    assert "tuning" in found[HELD_OUT].reason
    assert found[REPAIRED].status == "certificate"


def test_inputs_outside_the_box(trained: Any) -> None:
    """A box that the data leave is no box: refused, for training and for test inputs."""
    model, (x, y), test = trained
    for train, other in (((x * 3, y), test), ((x, y), (test[0] * 3, test[1]))):
        row = bounds(model, train=train, test=other, box=(0.0, 1.0), only=[REPAIRED]).rows[0]
        assert row.status == "refused"
        assert "box" in row.reason
