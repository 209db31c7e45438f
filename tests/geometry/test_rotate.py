"""Rotations of residual streams: the same function, no hot channel, smaller rounding errors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normscope.geometry.candidates.matrices import ChannelFrame
from normscope.geometry.channels.labelling import label_channels
from normscope.geometry.function import ModelFunction, function_of
from normscope.geometry.rotate import channels, rotate, spread_matrix
from normscope.graph.capture import capture
from normscope.graph.inputs import ModelInputs
from symmetric_networks import Attention, randomized


def planted(model: Attention) -> Attention:
    """Make one channel of the residual stream hot."""
    with torch.no_grad():
        model.embed.weight[3] *= 200.0
    return model


def captured(model: nn.Module) -> ModelFunction:
    """Return a model as a function of its parameters."""
    x = torch.randn(6, 4, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return function_of(capture(model, ModelInputs((x,))), mode="running")


def rounding(values: list[Tensor]) -> float:
    """Return the relative error of rounding to eight bits, one scale per tensor."""
    errors = []
    for value in values:
        step = value.abs().max() / 127
        # relative to each channel: a hot one hides what happens to the others
        errors.append((((value / step).round() * step - value).square().mean() / value.square().median()).sqrt())
    return float(torch.stack(errors).mean())


def check(model: Attention, least: float) -> None:
    """Rotate a network with a hot channel and compare."""
    function = captured(planted(model))
    (found,), reasons = rotate(function)
    assert reasons == []
    before = function.flat(function.point)
    after = function.flat({**function.point, **found.state})
    assert float((after - before).abs().max()) <= 1e-5 * float(before.abs().max())
    assert found.before >= least * found.after
    net = label_channels(function)
    labels = net.labels
    frame = ChannelFrame(tuple(labels.same.find(i) for i in labels.products[0].outputs.tolist()))
    errors = [rounding(channels(net, frame, {**function.point, **s})) for s in ({}, found.state)]
    assert errors[1] < errors[0] / 3


def test_stream_of_rms_norms() -> None:
    torch.manual_seed(0)
    check(randomized(Attention(nn.RMSNorm, width=32, bias=False, gated=True, turned=True)), 10.0)


def test_stream_of_layer_norms() -> None:
    torch.manual_seed(0)
    check(randomized(Attention(width=32)), 10.0)


def test_refusals_say_why() -> None:
    torch.manual_seed(0)
    done, reasons = rotate(function_of(capture(nn.Linear(3, 3), ModelInputs((torch.randn(4, 3),)))))
    assert done == []
    assert "no residual stream" in reasons[0]


def test_spread_matrices_are_orthogonal() -> None:
    for width, centred in ((8, False), (6, False), (6, True)):
        matrix = spread_matrix(width, centred=centred)
        assert torch.allclose(matrix @ matrix.mT, torch.eye(width, dtype=torch.float64), atol=1e-12)
        if centred:
            assert torch.allclose(matrix.sum(1), torch.ones(width, dtype=torch.float64))
