"""Every way found so far to make a certificate false, as a network of its own that is checked tensor by tensor."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

import normscope
from fuzzing.draw import Draw, Function, randomized
from normscope.core.errors import CaptureError
from normscope.graph.capture import capture
from normscope.graph.inputs import ModelInputs
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.segments import SegmentNorms
from normscope.operators.program import build_program
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
    "a shift without a scale is part of the range": lambda m, x: (
        F.layer_norm(x, (4,), None, 50.0 * m.limits) * torch.tanh(x)
    ),
    "the same of groups": lambda m, x: F.group_norm(x, 2, None, 50.0 * m.limits) * torch.tanh(x),
    "the same of instances": lambda m, x: F.instance_norm(x, bias=50.0 * m.limits) * torch.tanh(x),
    "what stands for masked entries lies outside the range of the others": lambda m, x: (
        torch.nan_to_num(torch.tanh(x).masked_fill(m.hidden, -math.inf), neginf=3.0).exp() * torch.tanh(x)
    ),
    "what stands for a row without keys": lambda m, x: (
        torch.nan_to_num(torch.tanh(x).masked_fill(~m.hidden, -math.inf).softmax(-1), nan=30.0) @ torch.tanh(x)
    ),
    "two outputs of one sort": lambda m, x: x.sort(-1).values * torch.sigmoid(x.amax(-1, keepdim=True)),
}


def _each(m: Any, x: Tensor) -> Tensor:
    """Return the sum of a matrix product for every sample on its own."""
    return torch.stack([torch.addmm(row, m.w, m.v, beta=0.5, alpha=3.0) for row in x]).square()


@pytest.mark.turns(3)
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
    "another factor for every other number of samples": lambda m, x: x * (1 + 9 * (x.shape[0] % 2)),
    "another factor for many samples": lambda m, x: x * (1 + x.shape[0] // 31),
    "samples turned by a multiple of many sizes": lambda m, x: x - 5 * x.roll(51, 0),
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
    assert upper.domain in ("inputs in stacked batches of 5", "inputs in batches of 5")  # steps are written out
    for point in (x, x + 8.0, 0.1 * x):
        jacobian = torch.autograd.functional.jacobian(model, point).reshape(-1, x.numel())
        assert float(torch.linalg.matrix_norm(jacobian, 2)) <= upper.value * (1 + 1e-12)


def _written(x: Tensor) -> Tensor:
    """Return the first entries written among integers."""
    y = torch.zeros(x.shape, dtype=torch.long)
    y[:, :2] = x[:, :2]
    return y.to(x.dtype) + x


def _falling(x: Tensor) -> Tensor:
    """Return the input with a first entry that is the largest unless others are very large."""
    return x - torch.cat([torch.zeros(1, dtype=x.dtype), torch.full((x.numel() - 1,), 1e3, dtype=x.dtype)]).reshape(
        x.shape
    )


def _place(x: Tensor) -> int:
    """Return where the largest entry is."""
    place = int(x.argmax().item())
    torch._check(place >= 0)
    torch._check(place <= 1000)
    return place


#: Networks on a batch of shape (8, 4) that jump, with statistics, places or sizes that hide it.
JUMPING: dict[str, Form] = {
    "a root mean square of integers": lambda m, x: (
        x / torch.sqrt((x.int().to(x.dtype) ** 2).mean(-1, keepdim=True) + 0.01)
    ),
    "a variance of integers": lambda m, x: (
        (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.long().to(x.dtype).var(-1, keepdim=True, unbiased=False) + 0.01)
    ),
    "a norm of integers": lambda m, x: x / (x.to(torch.int64).to(x.dtype).norm(dim=-1, keepdim=True) + 0.1),
    "numbers written among integers": lambda m, x: _written(x),
    "numbers copied over integers": lambda m, x: torch.empty(x.shape, dtype=torch.long).copy_(x).to(x.dtype) + x,
    "numbers in the type of integers": lambda m, x: x.type_as(torch.zeros(1, dtype=torch.long)).to(x.dtype) + x,
    "numbers of eight bits": lambda m, x: x.to(torch.float8_e4m3fn).to(x.dtype) + x,
    "numbers of eight bits in a spread": lambda m, x: (
        x / torch.sqrt((x.to(torch.float8_e4m3fn).to(x.dtype) ** 2).mean(-1, keepdim=True) + 0.01)
    ),
    "numbers in the type of eight bits": lambda m, x: (
        x.type_as(torch.zeros(1, dtype=torch.float8_e5m2)).to(x.dtype) + x
    ),
    "numbers copied over eight bits": lambda m, x: (
        torch.empty(x.shape, dtype=torch.float8_e4m3fn).copy_(x).to(x.dtype) + x
    ),
    "as many ones as the place of the largest": lambda m, x: x * (1 + x.new_ones(_place(x)).sum()),
    "a range up to the place of the largest": lambda m, x: x * (1 + torch.arange(_place(x)).sum()),
    "repeated as often as the place of the largest": lambda m, x: x.unsqueeze(-1).expand(-1, -1, _place(x) + 1).sum(-1),
    "numpy, flat at the data": lambda m, x: x + 50 * torch.from_numpy(np.maximum(x.detach().numpy() - 100, 0)),
    "a number of Python, flat at the data": lambda m, x: x * (1 + max(x.abs().mean().item() - 20.0, 0.0)),
    "a list of Python, flat at the data": lambda m, x: (
        x + torch.tensor([[max(v - 60.0, 0.0) for v in row] for row in x.tolist()], dtype=x.dtype)
    ),
    "a sum of what is positive, of which there is nothing": lambda m, x: x * (1 + x[x > 1e3].sum()),
    "the same in each sample": lambda m, x: torch.stack([r * (1 + r[r > 1e3].exp().sum()) for r in x]),
    "the same beside others": lambda m, x: x * (1 + torch.cat([x[x > 1e3], x.new_zeros(1)]).max()),
    "nothing up to the place of the largest": lambda m, x: x * (1 + torch.arange(_place(_falling(x))).sum()),
    "no ones up to the place of the largest": lambda m, x: x * (1 + x.new_ones(_place(_falling(x))).sum()),
    "how many are positive": lambda m, x: x * x[x > 0].shape[0],
    "how many are positive, in each sample": lambda m, x: torch.stack([r * r[r > 0].numel() for r in x]),
    "how many places are positive": lambda m, x: x * torch.where(x > 0)[0].numel(),
    "how many values there are": lambda m, x: x * torch.unique(x.round()).numel(),
    "ones as many as are positive": lambda m, x: x * torch.ones(x[x > 0].shape[0]).sum(),
}


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", JUMPING)
def test_what_jumps_has_no_bound(name: str) -> None:
    """However the jump comes about."""
    result = normscope.analyze(Function(name, JUMPING[name], w=W4).eval(), Draw(6).tensor(8, 4), points=1, ascent=0)
    assert result.end_to_end["global"].log == math.inf  # type: ignore[union-attr]
    assert result.end_to_end["variance_floor"].log == math.inf  # type: ignore[union-attr]
    assert result.coverage.opaque


#: Networks on a batch of shape (8, 4) that look like normalizers and are none.
UNLIKE: dict[str, Form] = {
    "a variance along an axis of one": lambda m, x: (
        (x - x.mean(1, keepdim=True)) / torch.sqrt(x.unsqueeze(1).var(1, unbiased=False) + 0.01)
    ).square(),
    "a mean square along an axis of one": lambda m, x: x / torch.sqrt(x.unsqueeze(1).square().mean(1) + 1e-4),
    "half of the mean removed": lambda m, x: (
        torch.sub(x, x.mean(-1, keepdim=True), alpha=0.5)
        / torch.sqrt(1e18 * x.var(-1, keepdim=True, unbiased=False) + 0.01)
    ),
    "another input in the spread": lambda m, x: (
        x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-4 + x[:, :1] ** 2)
    ),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_what_is_no_normalizer_is_not_taken_for_one(name: str) -> None:
    """None is listed, and bounds hold at the data and far from it."""
    model, x = Function(name, UNLIKE[name]).eval(), 0.01 * Draw(6).tensor(8, 4)
    result = normscope.analyze(model, x, points=1, ascent=0)
    assert result.normalizers == ()
    upper = result.end_to_end["global"]
    assert upper is not None
    for row in (*x, *(1000.0 * x), torch.ones(4).double()):
        matrix = torch.autograd.functional.jacobian(lambda z: model(z[None])[0], row)
        assert float(torch.linalg.matrix_norm(matrix, 2)) <= upper.value * (1 + 1e-12)


@pytest.mark.parametrize(
    ("form", "truth"),
    [
        (lambda m, x: F.embedding(torch.tensor([0, 0, 0, 1]), x.T, padding_idx=0).sum(0), 10**0.5),
        (lambda m, x: F.embedding(torch.tensor([0, 0, 0, 1]), x.T, scale_grad_by_freq=True).sum(0), 10**0.5),
        (lambda m, x: x.gather(1, torch.zeros(len(x), 3, dtype=torch.long), sparse_grad=True), 3**0.5),
    ],
)
def test_what_torch_calls_a_gradient_need_not_be_one(form: Form, truth: float) -> None:
    """A table whose padding row has no gradient is read all the same: bound and attained value are of what is read."""
    result = normscope.analyze(Function("table", form).eval(), Draw(6).tensor(1, 4), points=1, ascent=0)
    assert result.end_to_end["global"].value == pytest.approx(truth, rel=1e-6)  # type: ignore[union-attr]
    assert result.end_to_end["lower"].value == pytest.approx(truth, rel=1e-6)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "form",
    [
        lambda m, x: torch.zeros(len(x), 2).to(x).scatter(1, torch.zeros(len(x), 4, dtype=torch.long), x),
        lambda m, x: x.new_zeros(len(x), 2).index_copy(1, torch.tensor([0, 0, 1]), x[:, :3]),
        lambda m, x: torch.ops.aten.index_put(x.new_zeros(len(x), 4), [None, torch.tensor([0, 0, 1])], x[:, :3]),
    ],
)
def test_values_written_over_each_other(form: Form) -> None:
    """Only one of them stays: no bound is given, and no more than the truth, one, is said to be attained."""
    result = normscope.analyze(Function("twice", form).eval(), Draw(6).tensor(3, 4), points=1, ascent=0)
    assert result.end_to_end["global"].log == math.inf  # type: ignore[union-attr]
    assert result.end_to_end["lower"].value <= 1.0  # type: ignore[union-attr]


def test_a_weight_that_is_cast_to_few_bits_is_the_rounded_one() -> None:
    """From both sides."""
    weight = torch.full((1, 1), 1.07, dtype=torch.float64)
    model = Function("short", lambda m, x: F.linear(x, m.w.to(torch.float8_e4m3fn).to(x.dtype)), w=weight).eval()
    result = normscope.analyze(model, Draw(6).tensor(3, 1), points=1, ascent=0)
    assert result.end_to_end["global"].value == pytest.approx(1.125, rel=1e-9)  # type: ignore[union-attr]
    assert result.end_to_end["lower"].value == pytest.approx(1.125, rel=1e-6)  # type: ignore[union-attr]


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


@pytest.mark.parametrize(
    "outputs",
    [
        lambda x: {1: 100.0 * x, "1": x},
        lambda x: {"a": {"b": 100.0 * x}, "a.b": x},
        lambda x: {"": 100.0 * x, "output": x},
    ],
)
def test_outputs_of_one_name_are_several(outputs: Callable[[Tensor], Any]) -> None:
    """None is lost: together they stretch by more than the largest of them."""
    result = normscope.analyze(Function("named", lambda m, x: outputs(x)).eval(), Draw(6).tensor(3, 4), points=1)
    assert len(set(result.input["outputs"])) == 2
    assert result.end_to_end["global"].value == pytest.approx(10001**0.5, rel=1e-9)  # type: ignore[union-attr]


def test_a_complex_output_is_refused() -> None:
    """Leaving it out would be no word about it."""
    model = Function("complex", lambda m, x: (x, torch.complex(x, x))).eval()
    with pytest.raises(CaptureError, match=r"Expected real outputs, but 1 is complex128"):
        normscope.analyze(model, Draw(6).tensor(3, 4))


@pytest.mark.parametrize(
    ("form", "shape"),
    [
        (lambda m, x: _standardized(x, (2, 3)) * m.g.reshape(4, 1, 1), (4, 2, 2)),
        (lambda m, x: _standardized(x, (-1,)) * m.g.reshape(4, 1), (4, 4)),
        (lambda m, x: _standardized(x, (-1,)) * torch.full((3, 4), 10.0).to(x), (1, 4)),
        (lambda m, x: _standardized(x, (-1,)) * m.g, (4,)),
    ],
    ids=["a factor for each channel", "a factor for each token", "a factor that repeats", "a factor for each entry"],
)
def test_the_scale_of_a_written_normalizer_lies_where_it_lies(form: Form, shape: tuple[int, ...]) -> None:
    """The constant of a normalizer is no less than what it does where its input has no spread."""
    model = Function("scaled", form, g=torch.tensor([10.0, 0.0, 0.0, 0.0], dtype=torch.float64)).eval()
    result = normscope.analyze(model, Draw(6).tensor(5, *shape), points=1, ascent=0)
    flat = torch.ones(1, *shape, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(model, flat).reshape(-1, flat.numel())
    attained = float(torch.linalg.matrix_norm(jacobian, 2))
    assert result.end_to_end["global"].value >= attained * (1 - 1e-12)  # type: ignore[union-attr]
    for site in result.normalizers:
        if site.details.get("gamma_max") is not None:
            assert site.proved.value >= attained * (1 - 1e-12)


def _standardized(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return the input without mean and spread, written out."""
    return (x - x.mean(axes, keepdim=True)) / torch.sqrt(x.var(axes, keepdim=True, unbiased=False) + 1e-2)


def test_a_branch_on_the_number_of_samples_is_told() -> None:
    """What is said holds up to that number."""
    model = Function("branch", lambda m, x: 10.0 * x if x.shape[0] > 32 else x).eval()
    result = normscope.analyze(model, Draw(6).tensor(8, 4), points=1, ascent=0)
    assert any(
        "branches on the number of samples: the graph is valid for batches up to 32" in m for m in result.messages
    )


#: Networks on a batch of 8 that do something else at other sizes of the batch, and what the domain then says.
AT_SOME_SIZES: dict[str, tuple[Form, str]] = {
    "one size": (lambda m, x: 10.0 * x if x.shape[0] == 5 else x, "batches where the batch size != 5"),
    "two sizes": (
        lambda m, x: 10.0 * x if x.shape[0] in (9, 11) else x,
        "the batch size != 9 and the batch size != 11",
    ),
    "multiples": (lambda m, x: 10.0 * x if x.shape[0] % 3 == 0 else x, "(the batch size % 3) != 0"),
    "by all entries": (lambda m, x: 10.0 * x if x.numel() == 28 else x, "!= 28"),
    "large ones": (lambda m, x: 10.0 * x if x.shape[0] > 32 else x, "in batches of at most 32"),
    "the size as a number of Python": (lambda m, x: 10.0 * x if int(x.shape[0]) == 7 else x, "in batches of 8"),
    "one sample": (lambda m, x: 10.0 * x if x.shape[0] == 1 else x, "in batches of 8"),
    "a table of sizes": (lambda m, x: x * {7: 10.0}.get(x.shape[0], 1.0), "in batches of 8"),
}


@pytest.mark.parametrize("name", AT_SOME_SIZES)
def test_a_branch_on_the_number_of_samples_is_part_of_the_domain(name: str) -> None:
    """What is certified is not said of all inputs."""
    form, where = AT_SOME_SIZES[name]
    result = normscope.analyze(Function(name, form).eval(), Draw(6).tensor(8, 4), points=1, ascent=0, time=0)
    upper = result.end_to_end["global"]
    assert upper is not None
    assert where in upper.domain


@torch.jit.script
def _ten_times_three(x: Tensor) -> Tensor:
    """Branch on the number of samples inside TorchScript."""
    if x.size(0) >= 3:
        return 10.0 * x
    return x


#: Networks that do something else from three samples on.
ABOVE_TWO: dict[str, Form] = {
    "greater": lambda m, x: 10.0 * x if x.shape[0] > 2 else x,
    "at least": lambda m, x: 10.0 * x if x.shape[0] >= 3 else x,
    "TorchScript": lambda m, x: _ten_times_three(x),
}


@pytest.mark.parametrize("name", ABOVE_TWO)
@pytest.mark.parametrize("samples", [1, 2])
def test_a_branch_just_above_the_example_is_part_of_the_domain(name: str, samples: int) -> None:
    """Only the size of the example is left then, for which export states no range."""
    model = Function(name, ABOVE_TWO[name]).eval()
    result = normscope.analyze(model, Draw(6).tensor(samples, 4), points=1, ascent=0, time=0)
    upper = result.end_to_end["global"]
    assert upper is not None
    assert "in batches of at most 2" in upper.domain


#: Networks that read how autograd records them.
RECORDED: dict[str, Form] = {
    "gradients are recorded": lambda m, x: 10.0 * x if torch.is_grad_enabled() else x,
    "gradients are not recorded": lambda m, x: x if torch.is_grad_enabled() else 10.0 * x,
    "inference mode": lambda m, x: 10.0 * x if torch.is_inference_mode_enabled() else x,
    "a tensor of inference mode": lambda m, x: 10.0 * x if (x + 1).is_inference() else x,
    "a result that requires a gradient": lambda m, x: 10.0 * x if (x * m.scale).requires_grad else x,
    "an input that requires a gradient": lambda m, x: 10.0 * x if x.requires_grad else x,
}


@pytest.mark.parametrize("name", RECORDED)
def test_what_depends_on_the_mode_of_autograd_is_refused(name: str) -> None:
    """It is no function of its input."""
    model = Function(name, RECORDED[name]).eval()
    model.scale = nn.Parameter(torch.ones(()))
    with pytest.raises(CaptureError, match="when gradients are recorded or in inference mode"):
        normscope.analyze(model, Draw(6).tensor(8, 4), points=1, ascent=0, time=0)


def _fake(x: Tensor) -> bool:
    """Return whether a tensor has no numbers in it."""
    return isinstance(x, FakeTensor)


def _readable(x: Tensor) -> bool:
    """Return whether Python may look at a tensor's numbers."""
    try:
        return bool(float(x.abs().sum()) >= 0.0)
    except Exception:
        return False


def _far_only(x: Tensor, size: Tensor) -> Tensor:
    """Return the input plus a hundred times what a size, one per sample, exceeds zero by."""
    return x + 100.0 * torch.relu(size)[:, None]


#: Networks on a batch of shape (8, 4), ascending within (-4, 4), that do more elsewhere, unless they are exported.
ELSEWHERE: dict[str, Form] = {
    "compiling, large entries": lambda m, x: x if torch.compiler.is_compiling() else x + 100.0 * torch.relu(x - 5.0),
    "exporting, large entries of the other sign": lambda m, x: (
        x if torch.compiler.is_exporting() else x + 100.0 * torch.relu(-x - 5.0)
    ),
    "a tensor without numbers, small inputs": lambda m, x: (
        x if _fake(x) else _far_only(x, 1e-1 - x.square().sum(-1).sqrt())
    ),
    "a symbolic size, inputs that are constant": lambda m, x: (
        x if isinstance(x.shape[0], torch.SymInt) else _far_only(x, 1e-2 - (x.amax(-1) - x.amin(-1)))
    ),
    "a tensor of another class, entries out of order": lambda m, x: (
        x if type(x) is not Tensor else _far_only(x, (x[:, :-1] - x[:, 1:]).amax(-1))
    ),
    "functional tensors, one entry larger than the rest": lambda m, x: (
        x if torch._is_functional_tensor(x) or _fake(x) else _far_only(x, x.amax(-1) - 2.0 * x.mean(-1).abs() - 20.0)
    ),
    "what cannot be read": lambda m, x: x + 100.0 * torch.relu(x - 30.0) if _readable(x) else x,
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_is_exported_is_what_runs(name: str) -> None:
    """On inputs of every kind the slope stays below what is said of all inputs."""
    model = Function(name, ELSEWHERE[name]).eval()
    x = Draw(6).tensor(8, 4).clamp(-3.9, 3.9).sort(-1).values + torch.tensor([-0.09, -0.03, 0.03, 0.09])
    result = normscope.analyze(model, x, points=1, ascent=0)
    upper = result.end_to_end["global"]
    assert upper is not None
    points = [x, 10 * x, -10 * x, 1e-3 * x, 1e-3 + 0 * x, x.flip(-1), torch.eye(4).double() * 50.0]
    slopes = [
        float(torch.linalg.matrix_norm(torch.autograd.functional.jacobian(lambda z: model(z[None])[0], row), 2))
        for point in points
        for row in point
    ]
    assert max(slopes) > 50.0
    assert max(slopes) <= upper.value * (1 + 1e-12)


#: Networks on a batch of shape (8, 4) whose numbers pass through Python, which at the data makes no difference.
THROUGH_PYTHON: dict[str, Form] = {
    "a ratio, clipped": lambda m, x: x * float(np.clip(x.abs().max() / x.abs().mean(), 1, 10)) / 10.0,
    "a cone around the data": lambda m, x: (
        x * (1.0 if float(F.cosine_similarity(x.flatten(), m.data.flatten(), dim=0)) > 0.9 else 1e4)
    ),
    "the same when only one entry differs": lambda m, x: (
        x * (1.0 + sum(abs(a - b) > 3.0 for a, b in zip(x.flatten().tolist(), m.data.flatten().tolist(), strict=True)))
    ),
    "the place of the largest": lambda m, x: x * (1.0 + (np.argmax(np.asarray(x.detach())) != int(m.data.argmax()))),
    "sorted by Python": lambda m, x: x * (1.0 if sorted(x[0].tolist()) == x[0].sort().values.tolist() else 2.0),
    "a copy in other memory": lambda m, x: x + torch.relu(copy.deepcopy(x.detach()) - 300.0),
    "entries changed by a function of Python": lambda m, x: (1 * x).apply_(lambda v: 2.0 * v if v > 400 else v),
}


@pytest.mark.parametrize("name", THROUGH_PYTHON)
def test_what_leaves_torch_has_no_bound_on_all_inputs(name: str) -> None:
    """However flat it is around the data, and on whatever inputs it would show."""
    x = Draw(6).tensor(8, 4)
    model = Function(name, THROUGH_PYTHON[name], data=x.clone()).eval()
    result = normscope.analyze(model, x, points=1, ascent=0)
    assert result.end_to_end["global"].log == math.inf  # type: ignore[union-attr]
    assert result.end_to_end["variance_floor"].log == math.inf  # type: ignore[union-attr]
    assert any("left torch" in message for message in result.messages)
