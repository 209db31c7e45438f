"""A second run of a few samples."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from checking import initialized, noise
from networks import Lambda
from normscope.doctor.second_run import ALONE, CouplingTest, captured_in, precision_run, run_again
from normscope.doctor.subject import examine
from normscope.graph.interpreter import run
from normscope.graph.recognise import name_of

FORWARDS: dict[str, tuple[Callable[[Lambda, Tensor], Tensor], str]] = {
    "alone": (lambda s, x: s.fc(x).softmax(-1), ""),
    "softmax over samples": (lambda s, x: s.fc(x).softmax(0), "softmax"),
    "deviation over the batch, appended": (
        lambda s, x: torch.cat([s.fc(x), s.fc(x).std(0).mean().expand(len(x), 1)], 1),
        "std",
    ),
    "largest of the batch": (lambda s, x: s.fc(x) / s.fc(x).abs().amax(), "amax"),
    "sums of those before": (lambda s, x: s.fc(x).abs().cumsum(0), "cumsum"),
    "sums of those behind": (lambda s, x: s.fc(x).abs().flip(0).cumsum(0).flip(0), "flip"),
    "entries that change places": (lambda s, x: s.fc(x).reshape(3, -1).t().tanh(), "reshape"),
    "a view and back": (lambda s, x: s.fc(x).reshape(-1, 3, 1).squeeze(2), ""),
    "scores of pairs, which are meant": (lambda s, x: (s.fc(x) @ s.fc(x).t()) @ s.fc(x), "matmul"),
    "statistics that are returned beside": (lambda s, x: (s.fc(x), s.fc(x).mean()), ""),
}


def test_the_second_run_is_of_few_samples_and_finds_nothing_in_a_plain_network() -> None:
    """Alone and beside float64."""
    model = initialized(nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 2)))
    subject = examine(model, noise(64, 6))
    assert subject.coupling is not None
    assert len(subject.coupling.alone[0]) == ALONE
    result = run_again(subject.captured, subject.coupling, None)
    assert result.coupling is not None
    assert result.coupling.culprit() is None
    assert result.wide is not None
    assert result.wide.first() is None


def test_the_model_in_another_precision_is_a_copy() -> None:
    """Its graph is in half precision, the model is not."""
    model = initialized(nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5)))
    before = copy.deepcopy(model.state_dict())
    captured = examine(model, noise(8, 6)).captured
    half = captured_in(model, captured, torch.float16)
    assert half is not None
    assert {n.dtype for n in half.graph if n.dtype} == {"float16"}
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    beside = precision_run(half, [noise(8, 6)])
    assert beside is not None
    assert beside.first() is None


class _Uncopied(nn.Linear):
    """A layer that cannot be copied."""

    def __deepcopy__(self, memo: dict[int, object]) -> Tensor:
        raise RuntimeError("no copy")


def test_a_model_that_cannot_be_copied_is_left_alone() -> None:
    """No graph in half precision."""
    model = _Uncopied(3, 2)
    assert captured_in(model, examine(model, noise(4, 3)).captured, torch.float16) is None


def test_a_wide_run_of_a_large_network_only_where_something_can_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own layers, and a quotient."""
    monkeypatch.setattr("normscope.doctor.second_run.LARGE", 1)
    for forward, told in ((lambda s, x: s.fc(x), False), (lambda s, x: s.fc(x) / (1 + s.fc(x).abs()), True)):
        subject = examine(Lambda(forward, fc=nn.Linear(6, 2)), noise(8, 6))
        assert (subject.second_run.wide is not None) is told
        assert subject.second_run.coupling is not None


@pytest.mark.parametrize("name", FORWARDS)
def test_the_operation_in_which_samples_meet(name: str) -> None:
    """The model itself says whether the first output changes when the other samples go."""
    forward, operation = FORWARDS[name]
    model, x = Lambda(forward, fc=nn.Linear(4, 3)), noise(6, 4) * torch.tensor([[1.0], [2], [3], [4], [5], [60]])
    captured = examine(model, x).captured
    batch = x if captured.graph.batch == "dynamic" else x[: int(captured.graph.batch)]
    coupling = CouplingTest(captured.graph, [batch])
    assert coupling.size == len(batch)
    with torch.no_grad():
        run(captured.graph, captured.tensors, [batch], coupling.visit)
        run(captured.graph, captured.tensors, coupling.alone, coupling.visit_alone)
        whole, some = model(x), model(x[2:5])
    whole, some = (t[0] if isinstance(t, tuple) else t for t in (whole, some))
    found = coupling.culprit()
    assert ("" if found is None else name_of(found)) == operation
    assert torch.allclose(whole[2:5], some, atol=1e-5) is (operation == "")


def test_a_single_sample_has_no_company() -> None:
    """And nothing is compared."""
    captured = examine(nn.Linear(4, 3), noise(1, 4)).captured
    coupling = CouplingTest(captured.graph, [noise(1, 4)])
    assert (coupling.size, coupling.alone) == (0, [])


def test_a_reversed_batch_is_no_plain_network() -> None:
    """The samples that are run alone are not in the very middle, which would stay where it is."""
    model = Lambda(lambda s, x: s.fc(x) + x.flip(0), fc=nn.Linear(4, 4))
    captured = examine(model, noise(4, 4)).captured
    for size in (2, 5, 6, 7, 8, 16, 17, 64):
        batch = noise(size, 4)
        coupling = CouplingTest(captured.graph, [batch])
        run(captured.graph, captured.tensors, [batch], coupling.visit)
        run(captured.graph, captured.tensors, coupling.alone, coupling.visit_alone)
        culprit = coupling.culprit()
        assert culprit is not None, size
        assert name_of(culprit) == "flip"
