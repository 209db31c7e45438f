"""Weights that are no numbers are found and named."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normscope.core.errors import NonFiniteError, WeightsError
from normscope.graph.weights_validation import check_model, count_non_finite, listed


def test_good_models_pass_unchanged() -> None:
    """Every usual dtype, integer buffers included; nothing is written."""
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).to(dtype)
        before = {key: value.clone() for key, value in model.state_dict().items()}
        check_model(model)
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_nan_and_infinity_are_counted_by_name() -> None:
    """Parameters and buffers alike."""
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
        model[0].weight[1, :] = float("inf")
        model[1].running_var[1] = float("-inf")
    with pytest.raises(NonFiniteError, match=r"0\.weight has 1 NaN and 3 infinite of 6, 1\.running_var has 1 infinite"):
        check_model(model)


def test_buffers_that_are_no_statistics_may_hold_anything() -> None:
    """Whether one is used the graph tells, and what is used is looked at there; a running statistic is used."""
    for value in ("-inf", "inf", "nan"):
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        model.register_buffer("mask", torch.tensor([[0.0, float(value)], [0.0, 0.0]]))
        check_model(model)
        model[1].running_mean[0] = float(value)
        with pytest.raises(NonFiniteError, match=r"1\.running_mean has 1"):
            check_model(model)


def test_formats_of_one_byte_are_checked_too() -> None:
    """float8 knows NaN, and torch has no test for it there."""
    values = torch.tensor([1.0, float("nan")]).to(torch.float8_e4m3fn)
    assert count_non_finite(values) == (1, 0)
    assert count_non_finite(torch.tensor([1, 2], dtype=torch.int8)) == (0, 0)


def test_absent_weights_are_named() -> None:
    """On the meta device, and in lazy layers."""
    with pytest.raises(WeightsError, match=r"weight, bias have no values \(meta device or lazy layer\)"):
        check_model(nn.Linear(2, 2, device="meta"))
    with pytest.raises(WeightsError, match="run lazy layers once"):
        check_model(nn.LazyLinear(2))


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:The PyTorch API of nested tensors")
def test_complex_and_quantized_weights_are_refused() -> None:
    """The bounds are about real numbers."""
    with pytest.raises(WeightsError, match=r"real weights, got weight \(complex64\)"):
        check_model(nn.Linear(2, 2, bias=False, dtype=torch.complex64))
    sparse = nn.Linear(2, 2, bias=False)
    sparse.weight = nn.Parameter(torch.eye(2).to_sparse())
    with pytest.raises(WeightsError, match=r"dense.*weight \(sparse_coo\)"):
        check_model(sparse)
    nested = nn.Module()
    nested.register_buffer("rows", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))
    with pytest.raises(WeightsError, match=r"dense.*rows \(nested\)"):
        check_model(nested)
    model = nn.Module()
    model.register_buffer("packed", torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8))
    with pytest.raises(WeightsError, match="packed"):
        check_model(model)


def test_a_dozen_names_are_listed() -> None:
    """More are counted."""
    model = nn.ModuleList(nn.Linear(1, 1, device="meta") for _ in range(10))
    with pytest.raises(WeightsError, match=r"5\.bias and 8 more have no values"):
        check_model(model)
    assert listed([]) == ""
