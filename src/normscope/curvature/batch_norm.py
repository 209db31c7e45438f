"""BatchNorm while curvature is measured: batch, running or frozen-batch statistics, in every call."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from normscope.core.errors import InputError
from normscope.graph.batch_norm_derivatives import applies, batch_normalized
from normscope.graph.grouped_products import call_in_float64

#: The three modes: they are three different functions of the weights, with three different Hessians.
MODES = ("batch", "running", "frozen-batch")


class BatchNormMode(TorchFunctionMode):
    """A context in which every BatchNorm normalizes according to one mode, whatever mode its module is in.

    ``batch`` normalizes by the statistics of the batch and differentiates through them, as training does; ``running``
    by the running statistics, as evaluation does; ``frozen-batch`` by the statistics of the batch taken as constants.
    No running statistics are ever updated.

    Args:
        mode: one of :data:`MODES`.

    Raises:
        InputError: if the mode is unknown.

    >>> norm = torch.nn.BatchNorm1d(1).eval()
    >>> with BatchNormMode("batch"):
    ...     print(norm(torch.tensor([[1.0], [3.0]])).flatten().round().tolist())
    [-1.0, 1.0]
    """

    def __init__(self, mode: str) -> None:
        super().__init__()
        if mode not in MODES:
            raise InputError(f"Unknown mode {mode!r}. Known modes: {', '.join(MODES)}.")
        self.mode = mode

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace the statistics of a call of batch_norm, and call everything else."""
        if func is F.batch_norm:
            return self._normalized(*args, **(kwargs or {}))
        if func is torch.batch_norm:
            x, weight, bias, mean, variance, training, momentum, eps = args[:8]
            return self._normalized(x, mean, variance, weight, bias, training, momentum, eps)
        return call_in_float64(func, args, kwargs or {})

    def _normalized(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        """Normalize according to the mode; without running statistics there are only those of the batch.

        Raises:
            InputError: if a batch has one value per channel, which has no variance.
        """
        constants: tuple[Tensor | None, Tensor | None] = (None, None)
        if self.mode == "running" and running_mean is not None:
            constants = running_mean, running_var
        elif self.mode == "frozen-batch":
            constants = batch_statistics(input)
        if input.numel() == input.shape[1] and (self.mode == "frozen-batch" or constants[0] is None):
            raise InputError(
                "A batch has one value per channel, so BatchNorm cannot use the statistics of the batch. "
                "Drop the last batch (drop_last=True), use another batch size, or mode 'running'."
            )
        if applies(input, weight, bias, *constants):
            return batch_normalized(input, weight, bias, *constants, eps)
        return F.batch_norm(input, *constants, weight, bias, constants[0] is None, momentum, eps)


def batch_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the biased variance of every channel, as constants.

    Args:
        x: the input of BatchNorm, channels along axis 1.

    >>> [t.tolist() for t in batch_statistics(torch.tensor([[1.0], [3.0]]))]
    [[2.0], [1.0]]
    """
    constant = x.detach()
    axes = [axis for axis in range(x.ndim) if axis != 1]
    return constant.mean(axes), constant.var(axes, correction=0)
