"""One pass over data: floors, moments and ranges against brute force on the activations themselves."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from networks import Lambda, captured_of, points, program_of, seeded
from normscope import analyze
from normscope.core.errors import NonFiniteError
from normscope.graph.capture import Captured
from normscope.operators.program import Program, build_program
from normscope.operators.survey import (
    Moments,
    Survey,
    activation_inputs,
    group_floor,
    range_seen,
    sized_tensors,
    survey,
)
from normscope.testing.upper_bound import check_upper_bound


def _walked(model: nn.Module, x: Tensor) -> tuple[Captured, Program]:
    captured = captured_of(model, x)
    return captured, build_program(captured.graph, captured.tensors, captured.at_batch(1))


def _survey(model: nn.Module, x: Tensor, sizes: list[int]) -> Survey:
    captured, program = _walked(model, x)
    return survey(captured, program, ([p] for p in x.split(sizes)), activations=activation_inputs(captured, program))


def _groups(x: Tensor, groups: int) -> Tensor:
    """Return the biased standard deviation of each channel group of each sample."""
    return x.reshape(x.shape[0], groups, -1).var(-1, unbiased=False).sqrt()


#: Normalizer and its floor by brute force from what it reads: one number, or one per channel group.
FLOORS: dict[str, tuple[Callable[[], nn.Module], Callable[[Tensor], Tensor]]] = {
    "layer norm": (lambda: nn.LayerNorm([4, 3, 3]), lambda x: _groups(x, 1).amin()),
    "group norm": (lambda: nn.GroupNorm(2, 4), lambda x: _groups(x, 2).amin(0)),
    "instance norm": (lambda: nn.InstanceNorm2d(4), lambda x: _groups(x, 4).amin(0)),
    "rms norm": (lambda: nn.RMSNorm([4, 3, 3]), lambda x: x.flatten(1).square().mean(1).sqrt().amin()),
    "layer norm of rows": (lambda: nn.LayerNorm(3), lambda x: x.var(-1, unbiased=False).sqrt().amin()),
}


@pytest.mark.parametrize("name", FLOORS)
def test_floors_are_the_least_spread_of_each_group(name: str) -> None:
    """Over all samples and tokens; channel groups keep their own."""
    build, brute = FLOORS[name]
    model = seeded(nn.Sequential(nn.Conv2d(2, 4, 3), build()))
    x = points(11, 2, 5, 5)
    found = _survey(model, x, [4, 4, 3])
    (seen,) = found.before_normalizers.values()
    assert seen.floor is not None
    expected = brute(model[0](x)).detach()
    assert torch.allclose(seen.floor.flatten(), expected.flatten(), rtol=1e-10)
    (floor,) = found.floors().values()
    assert bool((floor <= seen.floor).all())
    assert torch.allclose(floor, seen.floor, rtol=1e-11)


@pytest.mark.parametrize("sizes", [[11], [1] * 11, [5, 5, 1], [10, 1]])
def test_the_batches_do_not_matter(sizes: list[int]) -> None:
    """However the data is cut, the survey is the same."""
    model = seeded(nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 3), nn.BatchNorm1d(3)))
    x = points(11, 4)
    whole, cut = _survey(model, x, [11]), _survey(model, x, sizes)
    assert whole.samples == cut.samples == 11
    assert whole.inputs == cut.inputs
    for kind in ("before_normalizers", "before_activations"):
        one, other = getattr(whole, kind), getattr(cut, kind)
        assert one.keys() == other.keys()
        for key, seen in one.items():
            assert torch.allclose(seen.moments.variance, other[key].moments.variance, rtol=1e-10)
            assert torch.allclose(seen.moments.mean, other[key].moments.mean, rtol=1e-10, atol=1e-12)
            assert seen.largest_norm == pytest.approx(other[key].largest_norm, rel=1e-12)
            assert (seen.floor is None) == (other[key].floor is None)
            if seen.floor is not None:
                assert torch.allclose(seen.floor, other[key].floor, rtol=1e-10)


def test_moments_and_norms_before_normalizers_and_activations() -> None:
    """Per channel, and the largest norm of one sample, against the activations themselves."""
    model = seeded(nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU()))
    x = points(7, 2, 5, 5)
    found = _survey(model, x, [3, 4])
    (norm,), (relu,) = found.before_normalizers.values(), found.before_activations.values()
    for seen, values in ((norm, model[0](x)), (relu, model[:2](x))):
        values = values.detach()
        assert torch.allclose(seen.moments.mean, values.mean((0, 2, 3)), rtol=1e-10)
        assert torch.allclose(seen.moments.variance, values.var((0, 2, 3), unbiased=False), rtol=1e-10)
        assert seen.largest_norm == pytest.approx(float(values.flatten(1).norm(dim=1).max()), rel=1e-12)
    assert norm.floor is None  # fixed statistics have no floor
    assert found.floors() == {}


def test_the_range_of_the_input() -> None:
    """Least and largest entry, largest row, largest norm of one sample."""
    x = points(9, 3, 4)
    (inside,) = _survey(seeded(nn.Linear(4, 2)), x, [4, 5]).inputs
    assert (inside.low, inside.high) == (float(x.min()), float(x.max()))
    assert inside.row == pytest.approx(float(x.norm(dim=-1).max()), rel=1e-12)
    assert inside.norm == pytest.approx(float(x.flatten(1).norm(dim=1).max()), rel=1e-12)


def test_the_range_of_a_stacked_batch() -> None:
    """A program that takes four samples at a time speaks of their joint norm."""
    model, x = seeded(Lambda(lambda s, x: s.a(x) - s.a(x).mean(0), a=nn.Linear(3, 2))), points(8, 3)
    captured = captured_of(model, x)
    program = build_program(captured.graph, captured.tensors, [x[:4]])
    (inside,) = survey(captured, program, [[x]], activations={}).inputs
    assert inside.norm == pytest.approx(max(float(x[:4].norm()), float(x[4:].norm())), rel=1e-12)
    (uneven,) = survey(captured, program, [[x[:6]]], activations={}).inputs
    assert uneven.norm == pytest.approx(float(x[:6].norm()), rel=1e-12)


def test_tokens_are_seen_after_their_embedding() -> None:
    """The block of a token model is the output of its embedding."""
    model = seeded(nn.Sequential(nn.Embedding(7, 4), nn.LayerNorm(4)))
    tokens = torch.tensor([[0, 3, 6], [1, 1, 2]])
    found = _survey(model, tokens, [2])
    embedded = model[0](tokens).detach()
    assert found.inputs[0].high == float(embedded.max())
    (seen,) = found.before_normalizers.values()
    assert seen.floor is not None
    assert float(seen.floor) == pytest.approx(float(embedded.var(-1, unbiased=False).sqrt().min()), rel=1e-10)


def test_another_precision() -> None:
    """In float64 a bfloat16 network has the spreads it would have in exact arithmetic."""
    model = seeded(nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6))).bfloat16()
    x = points(5, 4).bfloat16()
    captured, program = _walked(model, x)
    found = survey(captured, program, [[x]], activations={}, dtype=torch.float64)
    (seen,) = found.before_normalizers.values()
    before = x.double() @ model[0].weight.detach().double().T + model[0].bias.detach().double()
    exact = before.var(-1, unbiased=False).sqrt().min()
    assert seen.floor is not None
    assert float(seen.floor) == pytest.approx(float(exact), rel=1e-12)
    rounded = survey(captured, program, [[x]], activations={})
    rounded.include(found)
    (merged,) = rounded.before_normalizers.values()
    assert merged.floor is not None
    assert float(merged.floor) <= float(seen.floor)


def test_values_that_are_no_numbers_are_refused() -> None:
    """NaN before a normalizer or in the output, on any sample."""
    x = points(4, 3).abs()
    before = Lambda(lambda s, x: s.n(x.log()), n=nn.LayerNorm(3)).double()
    captured, program = _walked(before, x)
    with pytest.raises(NonFiniteError, match="before"):
        survey(captured, program, [[x], [-x]], activations={})
    after = Lambda(lambda s, x: x.log(), p=nn.Parameter(torch.ones(1))).double()
    captured, program = _walked(after, x)
    with pytest.raises(NonFiniteError, match="NaN"):
        survey(captured, program, [[x], [-x]], activations={})


def test_progress_counts_samples() -> None:
    """Called after each batch."""
    captured, program = _walked(seeded(nn.Linear(3, 2)), points(4, 3))
    counts: list[int] = []
    survey(captured, program, [[points(3, 3)], [points(2, 3)]], activations={}, progress=counts.append)
    assert counts == [3, 5]


def test_group_floor_of_one_sample_at_a_time() -> None:
    """Groups of a batch twice the reference: one floor per channel group, over all samples."""
    _, program = _walked(seeded(nn.GroupNorm(2, 4)), points(2, 4, 3))
    (site,) = program.sites
    assert site.spread is not None
    x = points(2, 4, 3, seed=5)
    floor = group_floor(x, site.spread, 2.0)
    assert torch.allclose(floor.flatten(), _groups(x, 2).amin(0), rtol=1e-12)


def test_drift_from_the_running_statistics() -> None:
    """How far the data's mean and variance are from those a BatchNorm froze."""
    model = nn.BatchNorm1d(3).double()
    x = points(50, 3)
    x = (x - x.mean(0)) / x.var(0, unbiased=False).sqrt() * torch.tensor([1.0, 2.0, 1.0]) + torch.tensor(
        [0.0, 0.0, 3.0]
    )
    details = analyze(model, x).normalizers[0].details
    spread = math.sqrt(1 + 1e-5)
    assert details["drift_mean"] == pytest.approx(3.0 / spread, rel=1e-9)
    assert details["drift_log_variance"] == pytest.approx(math.log((4 + 1e-5) / (1 + 1e-5)), rel=1e-9)
    assert details["seen_variance_max"] == pytest.approx(4.0, rel=1e-9)
    assert details["seen_high"] == float(x.max())


class Gated(nn.Module):
    """A residual block with a squeeze-and-excite gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 1)
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        """Return the input plus a gated branch."""
        y = nn.functional.silu(self.inner(x))
        return x + self.outer(y * self.gate(y))


def _decades(depth: int) -> tuple[float, float, float]:
    """Return the bounds of a gated network on the data's range, with and without its factors, and what is attained."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Gated(2) for _ in range(depth))).double().eval()
    checked = check_upper_bound(model, [torch.randn(3, 2, 4, 4, dtype=torch.float64)], ascent=3)
    assert checked.violations == []
    assert checked.upper["everywhere"] == math.inf
    logs = (checked.upper["floors and range"], checked.upper["factors"], checked.attained["factors"])
    return logs[0] / math.log(10), logs[1] / math.log(10), logs[2] / math.log(10)


def test_gates_multiply_by_what_they_see_not_by_what_they_might() -> None:
    """Every block adds about the same to the logarithm; ranges from the input make it grow faster and faster."""
    two, four = _decades(2), _decades(4)
    assert two[1] < two[0]
    assert four[1] < 2.3 * two[1]
    assert four[0] > 2.7 * two[0]
    assert four[2] <= four[1]


def test_the_tensors_whose_size_is_asked_for() -> None:
    """Factors and arguments of functions that are steep somewhere; nothing of a plain network."""
    plain = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)).double()
    assert sized_tensors(program_of(plain, points(2, 3))) == set()
    gate = Lambda(lambda s, x: torch.sigmoid(s.a(x)) * x, a=nn.Linear(3, 3)).double()
    assert sized_tensors(program_of(gate, points(2, 3))) == {"sigmoid"}


def test_ranges_inside_hold_the_data_in_their_interior() -> None:
    """Norms are of one sample where samples lie apart, of everything where they do not."""
    x = torch.tensor([[3.0, 4.0], [0.0, -1.0]], dtype=torch.float64)
    apart, together = range_seen(x, 2, 1), range_seen(x.flatten()[None], 2, 1)
    assert apart.low < -1.0
    assert apart.high > 4.0
    assert apart.norm == pytest.approx(5.0, rel=2e-3)
    assert apart.norm > 5.0
    assert together.norm > math.sqrt(26.0)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(lambda s: sum(s) > 0),
    channels=st.integers(1, 4),
    shift=st.sampled_from((0.0, 1e3, -1e6)),
    seed=st.integers(0, 1000),
)
def test_streaming_equals_one_shot(sizes: list[int], channels: int, shift: float, seed: int) -> None:
    """Batches of any sizes, empty ones included, with means far from zero: the same as all rows at once."""
    rows = points(sum(sizes), channels, seed=seed) + shift
    streamed = Moments()
    for piece in rows.split(sizes):
        streamed.update(piece)
    assert streamed.count == sum(sizes)
    assert torch.allclose(streamed.mean, rows.mean(0), rtol=1e-12, atol=1e-12)
    assert torch.allclose(streamed.variance, rows.var(0, unbiased=False), rtol=1e-8, atol=1e-15 * shift**2)
    assert torch.equal(streamed.low, rows.amin(0))
    assert torch.equal(streamed.high, rows.amax(0))


def test_the_naive_formula_would_fail_where_this_does_not() -> None:
    """A spread of one around 1e8: E[x^2] - E[x]^2 loses everything in float64, the merge does not."""
    rows = points(1000, 1) + 1e8
    exact = float((rows - 1e8).var(unbiased=False))
    streamed = Moments()
    for piece in rows.split(7):
        streamed.update(piece)
    assert float(streamed.variance) == pytest.approx(exact, rel=1e-6)
    naive = float(rows.square().mean() - rows.mean() ** 2)
    assert abs(naive / exact - 1) > 1e-2


def test_memory_does_not_grow() -> None:
    """Whatever was seen, only numbers per channel are held."""
    moments = Moments()
    for seed in range(20):
        moments.update(points(50, 3, seed=seed))
    held = [t for t in vars(moments).values() if isinstance(t, torch.Tensor)]
    assert [t.numel() for t in held] == [3, 3, 3, 3]
    assert moments.count == 1000


def test_nothing_seen() -> None:
    """No rows, no moments."""
    moments = Moments()
    moments.update(torch.zeros(0, 3))
    assert moments.count == 0
    assert moments.variance.numel() == 0


def test_low_precision_is_summed_in_float64() -> None:
    """A long float16 column overflows its own sum, but not this one."""
    rows = torch.full((5000, 1), 100.0, dtype=torch.float16)
    moments = Moments()
    moments.update(rows)
    assert float(moments.mean) == 100.0
    assert float(moments.variance) == 0.0


def test_a_number_is_one_channel() -> None:
    """Seen once a batch."""
    moments = Moments()
    moments.update(torch.tensor(3.0), 0)
    assert (moments.count, moments.mean.tolist()) == (1, [3.0])


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1])
def test_channels_along_any_axis(axis: int) -> None:
    """Observations are all other axes together."""
    x = points(2, 3, 4, 5)
    rows = x.movedim(axis, -1).reshape(-1, x.shape[axis])
    moments = Moments()
    moments.update(x, axis)
    assert moments.count == len(rows)
    assert torch.allclose(moments.mean, rows.mean(0), rtol=1e-12)
    assert torch.allclose(moments.variance, rows.var(0, unbiased=False), rtol=1e-12)
    assert torch.equal(moments.low, rows.amin(0))
    assert torch.equal(moments.high, rows.amax(0))
