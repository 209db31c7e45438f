"""Whether the samples of a batch are independent, so that a constant of one sample is one of the network."""

from __future__ import annotations

import torch

from normscope.graph.capture import Captured
from normscope.graph.samples import meeting
from normscope.operators.program import Program

#: Numbers in the weights up to which samples are compared in float64.
PRECISE = 5_000_000


def where_samples_meet(captured: Captured) -> str:
    """Return what makes one sample's outputs depend on the other samples of its batch, or on how many; else nothing.

    >>> from torch import nn
    >>> from normscope.graph.capture import capture
    >>> from normscope.graph.inputs import ModelInputs
    >>> softmax = nn.Sequential(nn.Linear(2, 2), nn.Softmax(0))
    >>> where_samples_meet(capture(softmax, ModelInputs((torch.ones(3, 2),))))
    'aten.softmax.int in 1'
    """
    if captured.graph.batch != "dynamic" or not any(t.ndim and t.shape[0] for t in captured.example):
        return ""  # the batch is part of the graph as it is
    small = sum(t.numel() for t in captured.tensors.values()) <= PRECISE
    dtype = torch.float64 if small else torch.float32
    found = meeting(captured.graph, captured.tensors, captured.example, dtype)
    if found is not None:  # some operations know their own precision only
        found = meeting(captured.graph, captured.tensors, captured.example)
    return "" if found is None else f"{found.op} in {found.owner or 'the model'}"


def uses_batch_statistics(program: Program) -> bool:
    """Tell whether some normalizer takes its statistics over the batch axis."""
    return any(s.spread is not None and 0 in s.spread.axes and len(s.shape) > 1 for s in program.sites)
