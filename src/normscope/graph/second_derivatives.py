"""Operations that can be differentiated twice: attention, recurrent layers, checkpointed blocks, weight norm."""

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import checkpoint

from normscope.graph.batch_norm_derivatives import applies, batch_normalized
from normscope.graph.convolution_derivatives import quick


@contextlib.contextmanager
def twice_differentiable(model: nn.Module) -> Iterator[None]:
    """Compute with kernels that have a second derivative, for the block.

    Attention uses the plain formula: the fused kernels have no double backward. Recurrent layers do without oneDNN and
    cuDNN, and transformer encoder layers without their fused inference path. Checkpointed blocks keep activations: one
    kind of checkpointing refuses ``torch.autograd.grad``, and the other would compute them again outside
    ``functional_call``, with other parameters. Weight norm is written out: torch's own treats the norms as constants in
    its second derivative, which is wrong. Also written out are hardsigmoid, which has no second derivative, the squared
    error, whose recording by ``torch.func.linearize`` ends the process (torch 2.13), and convolution, for speed.

    >>> with twice_differentiable(nn.Linear(1, 1)):
    ...     torch.backends.mkldnn.enabled
    True
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    with contextlib.ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(mock.patch.object(checkpoint, "CheckpointFunction", _Unchecked))
        stack.enter_context(mock.patch.object(checkpoint, "_checkpoint_without_reentrant_generator", _kept))
        for home, name, plain in _WRITTEN_OUT:
            stack.enter_context(mock.patch.object(home, name, plain))
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        if any(isinstance(module, nn.RNNBase) for module in model.modules()):
            stack.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
            torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.flags warns about TF32 on every processor
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


def weight_normed(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """Return ``g v/||v||``, the norm over all axes but one; over all of them if ``dim`` is -1.

    >>> weight_normed(torch.tensor([[3.0, 4.0]]), torch.tensor([[10.0]])).tolist()
    [[6.0, 8.0]]
    """
    axes = [a for a in range(v.ndim) if a != dim % v.ndim] if dim != -1 else list(range(v.ndim))
    return v * (g / torch.linalg.vector_norm(v, dim=axes, keepdim=True))


def hard_sigmoid(x: Tensor) -> Tensor:
    """Return ``clamp(x + 3, 0, 6) / 6``.

    >>> hard_sigmoid(torch.tensor([-9.0, 0.0, 9.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    return (x + 3).clamp(0, 6) / 6


def squared_error(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    """Return ``(x - target)^2``, its mean (1) or its sum (2), as ``torch._C._nn.mse_loss`` numbers them.

    >>> float(squared_error(torch.tensor([1.0, 3.0]), torch.zeros(2)))
    5.0
    """
    squares = (x - target).square()
    return squares.mean() if reduction == 1 else squares.sum() if reduction == 2 else squares


#: Functions of torch that are written out instead, by the module that holds them.
_WRITTEN_OUT: tuple[tuple[Any, str, Callable[..., Tensor]], ...] = (
    (torch, "_weight_norm", weight_normed),
    (importlib.import_module("torch.nn.utils.weight_norm"), "_weight_norm", weight_normed),
    (torch._C._nn, "hardsigmoid", hard_sigmoid),
    (torch._C._nn, "mse_loss", squared_error),
    *((home, f"conv{n}d", quick(getattr(torch, f"conv{n}d"), n)) for n in (1, 2, 3) for home in (torch, F)),
)


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn: bool = False,
) -> Tensor:
    """Return what BatchNorm returns; no running statistics are updated."""
    constants = (None, None) if training else (mean, variance)
    if applies(x, weight, bias, *constants):
        return batch_normalized(x, weight, bias, *constants, eps)
    return torch.batch_norm(x, weight, bias, *constants, training, momentum, eps, cudnn)


#: Operations of a captured graph with a quicker second derivative, by name.
TWICE: dict[str, Callable[..., Tensor]] = {
    "aten.batch_norm.default": _batch_norm,
    **{f"aten.conv{n}d.default": quick(getattr(torch, f"conv{n}d"), n) for n in (1, 2, 3)},
}


class _Unchecked:
    """Stands for reentrant checkpointing, and keeps activations instead of computing them again."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        """Run the block."""
        return function(*args)


def _kept(*args: Any, **kwargs: Any) -> Iterator[None]:
    """Stands for checkpointing without reentry: nothing happens before the block or after it."""
    yield
