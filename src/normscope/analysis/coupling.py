"""Whether the samples of a batch are independent, so that a constant of one sample is one of the network."""

from __future__ import annotations

import torch
from torch import Tensor

from normscope.graph.capture import Captured
from normscope.operators.program import Program


def couples_samples(captured: Captured) -> bool:
    """Tell whether what the model gives for one sample changes with the other samples of its batch.

    All samples of the example but the first are changed; what belongs to the first must stay. An output without an
    axis for samples, such as a sum over the batch, must not change at all.

    >>> from torch import nn
    >>> from normscope.graph.capture import capture
    >>> from normscope.graph.inputs import ModelInputs
    >>> softmax = nn.Sequential(nn.Linear(2, 2), nn.Softmax(0))
    >>> couples_samples(capture(softmax, ModelInputs((torch.ones(3, 2),))))
    True
    """
    if captured.graph.batch != "dynamic":
        return False  # the batch is part of the graph as it is
    size = next((t.shape[0] for t in captured.example if t.ndim), 1)
    if size < 2:
        return False
    base = [_moved(t) for t in captured.example]
    with torch.no_grad():
        before = captured.run(base)
        after = captured.run([_others_changed(t) for t in base])
    return any(not _first_is_same(a.detach(), b.detach(), size) for a, b in zip(before, after, strict=True))


def uses_batch_statistics(program: Program) -> bool:
    """Tell whether some normalizer takes its statistics over the batch axis."""
    return any(s.spread is not None and 0 in s.spread.axes and len(s.shape) > 1 for s in program.sites)


def _moved(tensor: Tensor) -> Tensor:
    """Return a batch moved a little: where everything is zero, too much is the same."""
    if not tensor.ndim or not tensor.is_floating_point():
        return tensor
    return tensor * 0.875 + 0.25 * (float(tensor.abs().max()) or 1.0)


def _others_changed(tensor: Tensor) -> Tensor:
    """Return a batch with all samples but the first changed, within about the range of the batch."""
    if not tensor.ndim or tensor.dtype == torch.bool:
        return tensor
    changed = tensor.clone()
    if tensor.is_floating_point():
        size = float(tensor.abs().max()) or 1.0
        changed[1:] = tensor[1:].flip(-1) * 0.75 + 0.125 * size
    else:  # identifiers: reflected within the range they have
        changed[1:] = tensor.min() + tensor.max() - tensor[1:]
    return changed


def _first_is_same(before: Tensor, after: Tensor, size: int) -> bool:
    """Tell whether the part of an output that belongs to the first sample is unchanged."""
    if _close(before, after):
        return True
    parts = [(before.select(i, 0), after.select(i, 0)) for i, n in enumerate(before.shape) if n == size]
    if before.ndim and before.shape[0] % size == 0:  # samples and places in one axis
        parts.append((before.reshape(size, -1)[0], after.reshape(size, -1)[0]))
    return any(_close(a, b) for a, b in parts)


def _close(a: Tensor, b: Tensor) -> bool:
    """Tell whether two tensors are equal up to the rounding of their dtype."""
    scale = float(a.abs().nan_to_num(0.0, 0.0, 0.0).max()) if a.numel() else 0.0
    return torch.allclose(a, b, rtol=1e-4, atol=1e-5 * scale, equal_nan=True)
