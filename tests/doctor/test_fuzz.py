"""Random networks: the doctor has something to say or nothing, never an exception, and leaves them as they were."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fingerprints import fingerprint
from fuzzing.random_networks import random_network
from normscope.doctor import check
from normscope.doctor.rules.cancelled_bias import cancelling_sites
from normscope.doctor.subject import examine


def _gradients(model: torch.nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, Tensor | None]:
    """Return the gradients of a random functional of the outputs in train mode."""
    named = {n: p for n, p in model.double().train().named_parameters() if p.requires_grad}
    out = model(*(x.double() if x.is_floating_point() else x for x in inputs))
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    loss = (weights * (out + out.square())).sum()
    if not named or not loss.requires_grad:
        return {}
    return dict(zip(named, torch.autograd.grad(loss, list(named.values()), allow_unused=True), strict=True))


@pytest.mark.turns(6)
@pytest.mark.parametrize("seed", range(6))
def test_random_networks(seed: int) -> None:
    """Every rule runs; biases that are told to be cancelled have no gradient."""
    model, inputs = random_network(seed)
    data = inputs if len(inputs) > 1 else inputs[0]
    before = fingerprint(model.eval())
    result = check(model, data)
    assert not [reason for reason in result.skipped.values() if "failed" in reason]
    assert fingerprint(model) == before
    told = cancelling_sites(examine(model, data))
    grads = _gradients(model, inputs)
    largest = max((float(g.abs().max()) for g in grads.values() if g is not None), default=0.0)
    for name in told:
        gradient = grads.get(name)
        assert gradient is None or float(gradient.abs().max()) <= 1e-8 * largest
