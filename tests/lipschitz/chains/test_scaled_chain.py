"""First multipliers, and forms in units of their own."""

from __future__ import annotations

import math

import pytest
import torch

from normscope.lipschitz.chains.chain_form import chain
from normscope.lipschitz.chains.elimination import eliminate
from normscope.lipschitz.chains.scaled_chain import scaled_chain


def _weights(seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(b, a, generator=generator, dtype=torch.float64) for a, b in ((4, 6), (6, 5), (5, 2))]


def _log(weights: list[torch.Tensor]) -> float:
    first = scaled_chain(chain(weights))
    return math.log(first.square) / 2 + first.log_units[0]


def test_the_first_multipliers_bound_the_form_in_its_units() -> None:
    """And the units are those of the network."""
    first = scaled_chain(chain(_weights()))
    rest = eliminate(first.form, first.multipliers)
    assert rest is not None
    assert float(torch.linalg.eigvalsh(rest.sources).max()) == pytest.approx(first.square, rel=1e-9)
    assert 0.2 < first.square < 5.0


def test_scaling_neurons_changes_nothing() -> None:
    """The product over a neuron stays; so does the first bound, with factors of 1e6."""
    weights = _weights()
    factors = 10.0 ** torch.linspace(-6, 6, 6).double()
    scaled = [factors[:, None] * weights[0], weights[1] / factors, weights[2]]
    assert _log(scaled) == pytest.approx(_log(weights), abs=1e-9)


def test_entries_are_scaled_by_powers_of_two_only() -> None:
    """So nothing is rounded."""
    weights = _weights()
    first = scaled_chain(chain(weights))
    ratio = first.form.units[1].inputs[1].value[0] / weights[1]
    assert bool((torch.frexp(ratio)[0] == 0.5).all())


def test_a_form_beyond_the_float_range_is_refused() -> None:
    """Instead of infinities."""
    assert scaled_chain(chain([torch.full((2, 2), 1e300, dtype=torch.float64)] * 3)) is None
