"""Kernels that can be differentiated twice: attention, recurrent layers and checkpointed blocks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import checkpoint


@contextlib.contextmanager
def twice_differentiable(model: nn.Module) -> Iterator[None]:
    """Compute with kernels that have a second derivative, for the block.

    Attention uses the plain formula: the fused kernels have no double backward. Recurrent layers do without oneDNN and
    cuDNN, and transformer encoder layers without their fused inference path. Checkpointed blocks keep activations: one
    kind of checkpointing refuses ``torch.autograd.grad``, and the other would compute them again outside
    ``functional_call``, with other parameters.

    Args:
        model: the model that will be run.

    >>> with twice_differentiable(nn.Linear(1, 1)):
    ...     torch.backends.mkldnn.enabled
    True
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    with contextlib.ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(mock.patch.object(checkpoint, "CheckpointFunction", _Unchecked))
        stack.enter_context(mock.patch.object(checkpoint, "_checkpoint_without_reentrant_generator", _kept))
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        if any(isinstance(module, nn.RNNBase) for module in model.modules()):
            stack.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
            torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.flags warns about TF32 on every processor
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


class _Unchecked:
    """Stands for reentrant checkpointing, and keeps activations instead of computing them again."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        """Run the block."""
        return function(*args)


def _kept(*args: Any, **kwargs: Any) -> Iterator[None]:
    """Stands for checkpointing without reentry: nothing happens before the block or after it."""
    yield
