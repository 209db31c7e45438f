"""Sketched walks: the constants of enclosed ones, no Jacobian above them, and probabilities that samples bear out."""

from __future__ import annotations

import pytest

from networks import jacobian_norm, points, program_of, residual_network
from normscope.lipschitz.local import sketched, twofold
from normscope.lipschitz.local.ball import on_balls
from normscope.lipschitz.local.enclosed import Enclosed
from normscope.lipschitz.local.feedback import gain
from normscope.lipschitz.local.sketched import Sketched, sketch_failure
from normscope.lipschitz.local.steps import Steps
from normscope.lipschitz.segments import SegmentNorms


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer combinations than a small network has inputs, raised so much that they hardly ever fail."""
    monkeypatch.setattr(sketched, "COUNT", 20)
    monkeypatch.setattr(sketched, "RAISED", 3.0)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("seed", range(4))
def test_it_gives_what_an_enclosed_walk_gives(seed: int) -> None:
    x = points(1, 2, 4, 4, seed=seed)
    program, steps = program_of(residual_network(seed), x), Steps(SegmentNorms())
    for radius in (0.0, 0.1):
        whole, sketch = (make(program, steps, [x], radius) for make in (Enclosed, Sketched))
        assert gain(sketch.run()).value == pytest.approx(gain(whole.run()).value, rel=1e-3)
        assert abs(len(sketch.units) - len(whole.units)) <= 1
        assert sketch.along == 20 < whole.along == 32


@pytest.mark.usefixtures("few")
def test_no_jacobian_exceeds_the_constant_and_the_probability_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twofold, "TOO_LARGE", 0.0)
    model, x = residual_network(3), points(1, 2, 4, 4, seed=3)
    found = on_balls(program_of(model, x), Steps(SegmentNorms()), [x], [0.0, 0.2], sketched=True)
    assert all(0.0 < b.delta < 1.0 for b in found)
    assert found[0].constant == pytest.approx(jacobian_norm(model, x), rel=1e-5)
    for k in range(20):
        d = points(*x.shape, seed=k)
        assert jacobian_norm(model, x + 0.2 * (1 - 1e-9) * d / d.norm()) <= found[1].constant


def test_few_inputs_are_not_sketched() -> None:
    x = points(1, 2, 4, 4)
    walk = Sketched(program_of(residual_network(0), x), Steps(SegmentNorms()), [x], 0.1)
    assert walk.along == 32
    assert walk.delta == 0.0


@pytest.mark.parametrize("raised", [1.2, 1.5])
def test_the_probability_is_not_below_what_samples_show(raised: float) -> None:
    z, count, runs = points(7), 6, 20_000
    drawn = points(runs, count, 7, seed=1) * raised / count**0.5
    missed = float(((drawn @ z).norm(dim=1) < z.norm()).double().mean())
    assert 0.01 < missed <= sketch_failure(1, count, raised) < 3 * missed + 0.5
    assert sketch_failure(5, 400, 1.4) == pytest.approx(5 * sketch_failure(1, 400, 1.4))
    assert sketch_failure(10**9, 4, 1.1) == 1.0
