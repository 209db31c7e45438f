"""Every way found so far to make a certificate false, as a network of its own that is checked tensor by tensor."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import normscope
from normscope.graph.capture import capture
from normscope.graph.inputs import ModelInputs
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.segments import SegmentNorms
from normscope.operators.program import build_program
from normscope.testing.draw import Draw, Function, randomized
from normscope.testing.upper_bound import check_upper_bound

Form = Callable[[Any, Tensor], Tensor]
draw = Draw(11)
W4, V4 = draw.tensor(4, 4), draw.tensor(4, 4)
LIMITS = torch.tensor([-9.0, -1.0, 0.5, 9.0], dtype=torch.float64)
HIDDEN = torch.tensor([[True, True, False, True], [False] * 4, [True, False, False, False], [False, True, True, True]])

#: What was wrong, and a network on samples of shape (4, 4) that shows it.
NETWORKS: dict[str, Form] = {
    "slopes of both signs: the image is that of the least and the largest slope": lambda m, x: (
        F.prelu(x, torch.tensor([-1.5, 0.9, 0.1, -0.2], dtype=torch.float64)) * torch.sigmoid(x)
    ),
    "a lower limit per entry: values may be as large as the largest limit": lambda m, x: torch.maximum(x, m.limits) * x,
    "an upper limit per entry: values may be as small as the least limit": lambda m, x: torch.minimum(m.limits, x) * x,
    "limits that broadcast: the result is larger than the input": lambda m, x: (
        torch.clamp(x[:, :1], min=m.limits.reshape(4, 1), max=m.limits.reshape(4, 1) + 1.0) * x
    ),
    "one index of the last axis: a row of the result is a column of the input": lambda m, x: torch.softmax(
        x[..., 0] * x[..., 1], -1
    ),
    "a piece of the last axis: the same": lambda m, x: x.unbind(-1)[0].unsqueeze(1) @ x.unbind(-1)[1].unsqueeze(-1),
    "columns are not rows although there are as many": lambda m, x: (m.w @ torch.tanh(x)) @ torch.tanh(x),
    "transposed tokens: a row runs over all tokens": lambda m, x: (
        torch.tanh(x) @ (F.linear(torch.tanh(x), m.w)).transpose(-1, -2)
    ),
    "padding and cropping at once: zeros appear although there are no more entries": lambda m, x: (
        1.0 / (0.5 + F.pad(torch.sigmoid(x) + 1.0, (1, -1)))
    ),
    "unfolding with padding and stride: zeros appear although there are fewer entries": lambda m, x: (
        1.0 / (0.5 + F.unfold(torch.sigmoid(x).unsqueeze(1) + 1.0, 2, padding=1, stride=3))
    ),
    "one part twice in a concatenation: each has its own place": lambda m, x: (
        torch.cat([x, x, torch.tanh(x)], -1) @ torch.cat([0.01 * m.w, 9.0 * m.w, m.v], 0)
    ),
    "a root vanishes at zero, but its slope far from zero says nothing there": lambda m, x: (
        torch.sqrt(50.0 + torch.tanh(x)) @ torch.sqrt(40.0 + torch.tanh(x))
    ),
    "a constant product beside the input is part of the range": lambda m, x: (
        torch.addmm(x[0], m.w, m.v, beta=0.5, alpha=3.0).unsqueeze(0).square() if len(x) == 1 else _each(m, x)
    ),
    "attention of scale zero does not take the default scale": lambda m, x: F.scaled_dot_product_attention(
        x, 30.0 * x, x, scale=0.0
    ),
    "a query that sees no key gives zero": lambda m, x: (
        1.0 / (0.1 + F.scaled_dot_product_attention(x, x, torch.sigmoid(x) + 1.0, attn_mask=m.hidden))
    ),
    "keys and values shared by several heads count once for each": lambda m, x: F.scaled_dot_product_attention(
        torch.stack([x, 2 * x, 3 * x], 1), torch.tanh(x).unsqueeze(1), torch.tanh(x).unsqueeze(1)
    ),
    "stacking vectors makes a matrix": lambda m, x: torch.vstack([x[:, 0, 0], x[:, 1, 1]]).T.square(),
    "a mean over other axes than the variance is no layer norm": lambda m, x: (
        (x - x.mean((1, 2), keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)
    ),
    "a matrix on the last but one axis in a chain": lambda m, x: F.pad(m.w[:, :1] @ x[:, :1], (1, 0)),
    "nothing at all is left along an axis": lambda m, x: torch.cat([x, x[:, :1].diff(dim=1) * 2.0], 1),
    "differences with something put before": lambda m, x: x.diff(dim=-1, prepend=torch.ones_like(x[..., :1])),
    "the derivative of hardsigmoid uses a rounded sixth": lambda m, x: F.hardsigmoid(x),
    "a cut off spread is another function": lambda m, x: (
        x / torch.sqrt(x.pow(2).mean(-1, keepdim=True).clamp(1e-3, 1.5))
    ),
    "a sum that cancels, then a division": lambda m, x: 1.0 / (torch.sigmoid(x) + 1e-9 - torch.sigmoid(x) + 0.1),
    "scores masked by minus infinity": lambda m, x: (
        (torch.tanh(x) @ torch.tanh(x).mT).masked_fill(~m.hidden.diagonal(0).expand(4, 4), -math.inf).softmax(-1) @ x
    ),
    "two outputs of one sort": lambda m, x: x.sort(-1).values * torch.sigmoid(x.amax(-1, keepdim=True)),
}


def _each(m: Any, x: Tensor) -> Tensor:
    """Return the sum of a matrix product for every sample on its own."""
    return torch.stack([torch.addmm(row, m.w, m.v, beta=0.5, alpha=3.0) for row in x]).square()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("front_end", ["export", "dispatch"])
def test_no_tensor_of_it_leaves_its_bounds(name: str, front_end: str) -> None:
    """Ranges and constants of every tensor hold, and what the output attains stays below its certificates."""
    model = Function(name, NETWORKS[name], w=W4, v=V4, limits=LIMITS, hidden=HIDDEN).eval()
    x = Draw(5).tensor(4, 4, 4, scale=1.7)
    checked = check_upper_bound(model, [x], front_end=front_end)
    assert checked.violations == []


def _steps_first(m: Any, x: Tensor) -> Tensor:
    """Return causal attention over the first axis."""
    q = F.layer_norm(x.unsqueeze(0), (4,), eps=0.1)
    return F.scaled_dot_product_attention(q, q, q, is_causal=True).squeeze(0)


#: Networks on a batch of shape (5, 4) whose samples depend on each other, or on how many there are.
COUPLED: dict[str, Form] = {
    "the first sample taken from all": lambda m, x: x - x[:1],
    "sums from the first on": lambda m, x: x.cumsum(0),
    "the sample before added": lambda m, x: x + torch.cat([torch.zeros_like(x[:1]), x[:-1]]),
    "times the number of samples": lambda m, x: x * x.shape[0],
    "the batch through a network of steps": lambda m, x: torch.rnn_relu(
        x, torch.zeros_like(x[:1]), [m.w, m.v], False, 1, 0.0, False, False, False
    )[0],
    "causal attention with the steps first": _steps_first,
    "a coupling that begins far from the data": lambda m, x: x + 10 * torch.relu(x.mean(0, keepdim=True) - 5.0),
}


@pytest.mark.parametrize("name", COUPLED)
def test_samples_that_depend_on_each_other_are_one_input(name: str) -> None:
    """The certificate is of the whole batch, says so, and holds at the data and far from it."""
    model = Function(name, COUPLED[name], w=W4, v=V4).eval()
    x = Draw(6).tensor(5, 4)
    result = normscope.analyze(model, x, points=1, ascent=0)
    upper = result.end_to_end["global"]
    assert upper is not None
    assert upper.domain == "inputs in stacked batches of 5"
    for point in (x, x + 8.0, 0.1 * x):
        jacobian = torch.autograd.functional.jacobian(model, point).reshape(-1, x.numel())
        assert float(torch.linalg.matrix_norm(jacobian, 2)) <= upper.value * (1 + 1e-12)


def test_places_found_by_the_input_are_not_constants() -> None:
    """Gathering one tensor where another is largest jumps: no finite bound."""
    model = Function("gather", lambda m, x: (3.0 * x).gather(1, (x @ m.w).max(1, keepdim=True).indices), w=W4)
    result = normscope.analyze(model, Draw(1).tensor(3, 4), points=1, ascent=0)
    assert result.end_to_end["global"].log == math.inf  # type: ignore[union-attr]
    assert result.end_to_end["variance_floor"].log == math.inf  # type: ignore[union-attr]


def test_a_fixed_normalizer_behind_another_keeps_its_own_statistics() -> None:
    """BatchNorm after LayerNorm and a linear map is reported with its running variance, not with LayerNorm's groups."""
    model = randomized(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3), nn.BatchNorm1d(3)), Draw(2)).eval()
    captured = capture(model, ModelInputs((Draw(3).tensor(2, 4),)))
    layer, batch = build_program(captured.graph, captured.tensors, captured.at_batch(1)).sites
    assert layer.spread is not None
    assert batch.spread is None
    assert batch.running is not None
    assert torch.equal(batch.running[1], model[2].running_var)  # type: ignore[arg-type]


def test_failure_probabilities_of_several_outputs_add_up() -> None:
    """Two outputs, each with a probabilistic norm, fail more often than one."""
    W = Draw(4).tensor(1600, 1600)

    class Two(nn.Module):
        """Two outputs through large circulant-like maps no closed form covers."""

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            """Return both."""
            y = x.unflatten(1, (40, 40))
            a = (y.cumsum(1).roll((3, 5), (1, 2)).cumsum(2)).flatten(1)
            b = (y.cumsum(2).flip(1).roll((2, 1), (1, 2)).cumsum(1)).flatten(1)
            return a, b

    captured = capture(Two(), ModelInputs((W[:2],)))
    program = build_program(captured.graph, captured.tensors, captured.at_batch(1))
    whole = Composition(program, Domain(), SegmentNorms())
    _, _, delta = whole.total()
    single = [whole.lipschitz(expr).delta for _, expr in program.outputs]
    assert all(d > 0 for d in single)
    assert delta == pytest.approx(sum(single))
