"""Whether the samples of a batch are independent, so that a constant of one sample is one of the network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from normscope.graph.capture import Captured
from normscope.graph.interpreter import run
from normscope.operators.program import Program

#: Numbers in the weights up to which samples are compared in float64, and at every scale.
PRECISE = 5_000_000
#: By what the changed sample is scaled: a coupling may begin only where values are large, of one sign.
SCALES = (100.0, -100.0, 10.0, -10.0)


def couples_samples(captured: Captured) -> bool:
    """Tell whether what the model gives for one sample depends on the other samples of its batch, or on how many.

    Three samples (the first, a middle one, the last) are run together and each alone: what belongs to a sample must
    be the same. So it must with the middle one moved a little and made large of either sign, where the first tells
    what later samples do to earlier ones and the last what earlier do to later. An output without an axis for
    samples, such as a sum over the batch, must not change at all.

    >>> from torch import nn
    >>> from normscope.graph.capture import capture
    >>> from normscope.graph.inputs import ModelInputs
    >>> softmax = nn.Sequential(nn.Linear(2, 2), nn.Softmax(0))
    >>> couples_samples(capture(softmax, ModelInputs((torch.ones(3, 2),))))
    True
    """
    if captured.graph.batch != "dynamic":
        return False  # the batch is part of the graph as it is
    size = next((t.shape[0] for t in captured.example if t.ndim), 0)
    if size == 0:
        return False
    try:
        return _depends(captured, size, _precision(captured))
    except (RuntimeError, NotImplementedError):  # an operation that knows its own precision only
        return _depends(captured, size, None)


def uses_batch_statistics(program: Program) -> bool:
    """Tell whether some normalizer takes its statistics over the batch axis."""
    return any(s.spread is not None and 0 in s.spread.axes and len(s.shape) > 1 for s in program.sites)


def _precision(captured: Captured) -> torch.dtype:
    """Return a precision in which a sample alone and in a batch agree, although they are summed in another order."""
    return torch.float64 if sum(t.numel() for t in captured.tensors.values()) <= PRECISE else torch.float32


def _depends(captured: Captured, size: int, dtype: torch.dtype | None) -> bool:
    """Compare samples alone with the same ones in a batch of three, in one precision."""
    tensors = {k: _cast(t, dtype) for k, t in captured.tensors.items()}
    chosen = torch.tensor([0, size // 2, size - 1])
    base = [_cast(t[chosen.to(t.device)] if t.ndim else t, dtype) for t in captured.example]

    def outputs(inputs: list[Tensor]) -> list[Tensor]:
        copies = [t.clone() for t in inputs]  # a graph may overwrite its input
        with torch.no_grad():
            return [o.detach() for o in run(captured.graph, tensors, copies, None, dtype) if isinstance(o, Tensor)]

    alone = [outputs([t[i : i + 1] if t.ndim else t for t in base]) for i in range(3)]
    if not _same(outputs(base), alone, dtype):
        return True
    for changed in _changed(base, SCALES if dtype == torch.float64 else SCALES[:2]):
        try:
            middle = outputs([t[1:2] if t.ndim else t for t in changed])
            together = outputs(changed)
        except (RuntimeError, IndexError, ValueError):
            continue  # no input of this network, such as an index it does not have
        if not _same(together, [alone[0], middle, alone[2]], dtype):
            return True
    return False


def _changed(base: list[Tensor], scales: Sequence[float]) -> Iterator[list[Tensor]]:
    """Yield the three samples with the middle one changed, in one way after the other."""
    generator = torch.Generator().manual_seed(0)
    yield [_middle(t, _moved(t[1], generator)) if t.ndim else t for t in base]
    numbers = any(t.is_floating_point() for t in base)
    for scale in scales if numbers else scales[:2]:
        yield [_middle(t, _scaled(t, scale)) if t.ndim else t for t in base]


def _middle(tensor: Tensor, row: Tensor) -> Tensor:
    """Return a batch of three with another sample in the middle."""
    return torch.stack([tensor[0], row.to(tensor.dtype), tensor[2]])


def _moved(row: Tensor, generator: torch.Generator) -> Tensor:
    """Return a sample moved within about its range: numbers by noise, identifiers and masks to other places."""
    if row.is_floating_point():
        noise = torch.randn(row.shape, generator=generator, dtype=torch.float64).to(row)
        return row * 0.875 + 0.25 * _size(row) * noise
    return row.flip(-1) if row.ndim else row


def _scaled(tensor: Tensor, scale: float) -> Tensor:
    """Return a middle sample of large numbers of one sign; identifiers reflected in their range, masks negated."""
    row = tensor[1]
    if row.is_floating_point():
        return scale * (row.abs() + 0.5 * _size(tensor))
    if row.dtype == torch.bool:
        return ~row if scale > 0 else row.flip(-1) if row.ndim else row
    low, high = tensor.min(), tensor.max()
    return low + high - row if low < high else torch.zeros_like(row)


def _size(tensor: Tensor) -> float:
    """Return the largest magnitude, or one where everything is zero."""
    finite = tensor[torch.isfinite(tensor)]
    return (float(finite.abs().max()) if finite.numel() else 0.0) or 1.0


def _same(together: list[Tensor], alone: list[list[Tensor]], dtype: torch.dtype | None) -> bool:
    """Tell whether every output of the batch is made of those of its samples, along some axis."""
    return all(
        any(all(_close(part, one, dtype) for part, one in zip(parts, ones, strict=True)) for parts in _parts(out, ones))
        for out, *ones in zip(together, *alone, strict=True)
    )


def _parts(out: Tensor, ones: list[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the ways to read an output as one part per sample: the axis of samples may hold places too."""
    shape, count = ones[0].shape, len(ones)
    if any(one.shape != shape for one in ones) or out.ndim != len(shape):
        return
    if out.shape == shape:  # nothing of it belongs to a sample
        yield [out] * count
    for axis, length in enumerate(out.shape):
        expected = (*shape[:axis], count * shape[axis], *shape[axis + 1 :])
        if length == 0 or out.shape != expected:
            continue
        yield list(out.unflatten(axis, (count, shape[axis])).unbind(axis))
        if shape[axis] > 1:
            yield list(out.unflatten(axis, (shape[axis], count)).unbind(axis + 1))


def _close(a: Tensor, b: Tensor, dtype: torch.dtype | None) -> bool:
    """Tell whether two tensors are equal up to what another order of summation changes."""
    scale = float(b.abs().nan_to_num(0.0, 0.0, 0.0).max()) if b.numel() else 0.0
    relative = 1e-7 if dtype == torch.float64 else 1e-4
    return torch.allclose(a, b, rtol=10 * relative, atol=relative * scale, equal_nan=True)


def _cast(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Return a floating tensor in a precision, anything else as it is."""
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
