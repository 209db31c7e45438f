"""Samples with and without the others of their batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from checking import noise
from networks import Lambda
from normscope.doctor.sample_dependence import Companions
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


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", FORWARDS)
def test_the_operation_in_which_samples_meet(name: str) -> None:
    """The model itself says whether the first output changes when the other samples go."""
    forward, operation = FORWARDS[name]
    model, x = Lambda(forward, fc=nn.Linear(4, 3)), noise(6, 4) * torch.tensor([[1.0], [2], [3], [4], [5], [60]])
    captured = examine(model, x).captured
    batch = x if captured.graph.batch == "dynamic" else x[: int(captured.graph.batch)]
    companions = Companions(captured.graph, [batch])
    assert companions.size == len(batch)
    with torch.no_grad():
        run(captured.graph, captured.tensors, [batch], companions.visit)
        run(captured.graph, captured.tensors, companions.alone, companions.visit_alone)
        whole, some = model(x), model(x[2:5])
    whole, some = (t[0] if isinstance(t, tuple) else t for t in (whole, some))
    found = companions.culprit()
    assert ("" if found is None else name_of(found)) == operation
    assert torch.allclose(whole[2:5], some, atol=1e-5) is (operation == "")


def test_a_single_sample_has_no_company() -> None:
    """And nothing is compared."""
    captured = examine(nn.Linear(4, 3), noise(1, 4)).captured
    companions = Companions(captured.graph, [noise(1, 4)])
    assert (companions.size, companions.alone) == (0, [])
