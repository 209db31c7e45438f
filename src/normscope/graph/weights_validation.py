"""Whether a model's weights are numbers at all: finite, real and present."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from normscope.core.errors import NonFiniteError, WeightsError, listed
from normscope.graph.safe_load import unlike_numbers


def named_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every parameter and buffer with its name."""
    yield from model.named_parameters()
    yield from model.named_buffers()


#: Endings of buffers that are statistics: they must be finite, while a mask may hold minus infinity.
STATISTICS = ("running_mean", "running_var")


def all_finite(tensor: torch.Tensor) -> bool:
    """Return whether no entry is NaN or infinite.

    A finite sum has finite terms, and a sum is much faster than a test of every entry.

    >>> all_finite(torch.tensor([1.0, 2.0])), all_finite(torch.tensor([float("inf"), float("-inf")]))
    (True, False)
    >>> all_finite(torch.full((2,), 3e38))  # the sum overflows
    True
    """
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def count_non_finite(tensor: torch.Tensor) -> tuple[int, int]:
    """Return how many entries are NaN and how many are infinite; integers have none.

    >>> count_non_finite(torch.tensor([1.0, float("nan"), float("-inf")]))
    (1, 1)
    """
    if not tensor.is_floating_point():
        return 0, 0
    # One-byte formats lack these tests; float32 can represent all their values.
    plain = tensor.detach().to(torch.float32) if tensor.element_size() == 1 else tensor.detach()
    if all_finite(plain):
        return 0, 0
    return int(torch.isnan(plain).sum()), int(torch.isinf(plain).sum())


#: What to do about NaN and infinite weights.
USE_FINITE = "Use an earlier checkpoint, or initialize the model again."


def non_finite_text(nan: int, infinite: int, size: int) -> str:
    """Return how many of the entries of a tensor are not finite.

    >>> non_finite_text(1, 0, 2304), non_finite_text(1, 2, 9)
    ('1 NaN of 2304', '1 NaN and 2 infinite of 9')
    """
    counts = [f"{count} {what}" for count, what in ((nan, "NaN"), (infinite, "infinite")) if count]
    return f"{' and '.join(counts)} of {size}"


def check_model(model: nn.Module) -> None:
    """Return if every parameter and buffer is present and real, and parameters and running statistics are finite.

    Raises:
        WeightsError: if a weight has no storage (meta device, lazy layer) or is complex, quantized, sparse or nested.
        NonFiniteError: if a parameter or a running statistic contains NaN or infinity; the message says which and how
            many. Other buffers may: attention masks contain minus infinity, and only a graph shows which are used.

    >>> check_model(nn.Linear(2, 2))
    >>> broken = nn.Linear(2, 2)
    >>> _ = nn.init.constant_(broken.bias, float("nan"))
    >>> check_model(broken)
    Traceback (most recent call last):
    normscope.core.errors.NonFiniteError: Expected finite weights, but bias has 2 NaN of 2. Use an earlier checkpoint...
    """
    others = {name for name, _ in model.named_buffers() if not name.endswith(STATISTICS)}
    absent: list[str] = []
    unusable: list[str] = []
    broken: list[str] = []
    for name, tensor in named_tensors(model):
        if is_lazy(tensor) or tensor.device.type == "meta":
            absent.append(name)
        elif (tensor.is_complex() and name not in others) or unlike_numbers(tensor)[0]:
            kind = unlike_numbers(tensor)[0] or str(tensor.dtype).removeprefix("torch.")
            unusable.append(f"{name} ({kind})")
        elif name not in others:
            nan, infinite = count_non_finite(tensor)
            if nan or infinite:
                broken.append(f"{name} has {non_finite_text(nan, infinite, tensor.numel())}")
    if absent:
        raise WeightsError(
            f"Expected weights in memory, but {listed(absent)} have no values (meta device or lazy "
            "layer). Build the model on the CPU, run lazy layers once, or load the weights from a "
            "file."
        )
    if unusable:
        raise WeightsError(
            f"Expected dense real weights, got {listed(unusable)}. Write complex layers with real and "
            "imaginary parts, dequantize quantized layers and convert sparse ones to dense."
        )
    if broken:
        raise NonFiniteError(f"Expected finite weights, but {listed(broken)}. {USE_FINITE}")
