"""Forms: parts of a network as matrices."""

from __future__ import annotations

import pytest
import torch

from normscope.core.errors import InputError
from normscope.lipschitz.chains.chain_form import ActivationUnit, ChainForm, MatrixWithError, chain


def test_a_unit_reads_only_what_comes_before_it() -> None:
    """Anything else is refused."""
    unit = ActivationUnit({1: MatrixWithError(torch.eye(2).double().unsqueeze(0))})
    with pytest.raises(InputError, match="earlier"):
        ChainForm((2,), (unit,), {1: MatrixWithError(torch.eye(2).double().unsqueeze(0))})


def test_weights_and_sources_are_as_many() -> None:
    """Every source has its constant."""
    with pytest.raises(InputError, match="weight"):
        ChainForm((2, 2), (), {0: MatrixWithError(torch.eye(2).double().unsqueeze(0))})


def test_a_chain_has_one_unit_between_two_matrices() -> None:
    """Slopes may differ from unit to unit."""
    net = chain([torch.ones(3, 2), torch.ones(4, 3), torch.ones(1, 4)], [(0.0, 1.0), (-0.5, 2.0)])
    assert net.sizes == (2, 3, 4)
    assert [(u.low, u.high) for u in net.units] == [(0.0, 1.0), (-0.5, 2.0)]
    assert net.converted(torch.float32).dtype == torch.float32
