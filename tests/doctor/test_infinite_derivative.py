"""Where derivatives are not finite."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from checking import noise
from networks import Lambda
from normscope.doctor.infinite_derivative import Singularities
from normscope.doctor.subject import examine
from normscope.graph.interpreter import run

FORWARDS: dict[str, Callable[[Lambda, Tensor], Tensor]] = {
    "root of a sum of squares": lambda s, x: s.fc(x).square().sum(-1).sqrt(),
    "the same masked": lambda s, x: torch.where(s.fc(x).abs() > 0, s.fc(x).square().sqrt(), 0.0),
    "an inverse root that is masked": lambda s, x: torch.where(s.fc(x).abs() > 0, s.fc(x).abs().rsqrt(), 0.0),
    "eps inside": lambda s, x: (s.fc(x).square().sum(-1) + 1e-6).sqrt(),
    "torch's norm": lambda s, x: s.fc(x).norm(dim=-1),
    "a power": lambda s, x: s.fc(x).abs().pow(0.5),
    "a square": lambda s, x: s.fc(x).pow(2),
    "arc cosine": lambda s, x: torch.cos(s.fc(x)).acos(),
    "quotient": lambda s, x: s.fc(x) / (1 + s.fc(x).abs()),
    "detached": lambda s, x: s.fc(x) / (1 + s.fc(x).detach().square().sum(-1, keepdim=True).sqrt()),
    "eigenvalues that are equal": lambda s, x: torch.linalg.eigh(s.fc(x).t() @ s.fc(x) * 0 + torch.eye(3))[0] + s.fc(x),
    "their vectors": lambda s, x: torch.linalg.eigh(s.fc(x).t() @ s.fc(x) * 0 + torch.eye(3))[1] + s.fc(x)[:3],
    "of the input alone": lambda s, x: s.fc(x / (1 + x.square().sum(-1, keepdim=True).sqrt())),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_autograd_says_the_same(name: str) -> None:
    """Parameters have a gradient that is not finite exactly where one is told; at least one row is zero."""
    model = Lambda(FORWARDS[name], fc=nn.Linear(4, 3, bias=False))
    x = noise(6, 4)
    x[1] = 0.0
    captured = examine(model, x).captured
    found = Singularities(captured.graph)
    with torch.no_grad():
        run(captured.graph, captured.tensors, [x], found.visit)
    (gradient,) = torch.autograd.grad(model(x).sum(), model.fc.weight)
    told = {p for s in found.found.values() for p in s.parameters}
    assert ("fc.weight" in told) is bool((~torch.isfinite(gradient)).any())


def test_what_is_computed_of_weights_needs_no_data() -> None:
    """Filters of equal weights, divided by the root of their variance."""

    def forward(s: Lambda, x: Tensor) -> Tensor:
        w = s.fc.weight
        return nn.functional.linear(x, w / (w.var(1, keepdim=True, correction=0).sqrt() + 1e-5))

    model = Lambda(forward, fc=nn.Linear(4, 3, bias=False))
    for constant in (False, True):
        with torch.no_grad():
            model.fc.weight[1] = 0.5 if constant else noise(4)
        captured = examine(model, noise(2, 4)).captured
        found = Singularities(captured.graph)
        found.visit_weights(captured.tensors)
        assert [s.entries for s in found.found.values()] == ([1] if constant else [])
