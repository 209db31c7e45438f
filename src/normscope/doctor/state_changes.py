"""What a forward pass in evaluation mode changes in a model, and which part of it draws random numbers."""

from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.errors import StateChangedError
from normscope.graph.capture import tensors_in
from normscope.graph.guard import untouched
from normscope.graph.inputs import ModelInputs
from normscope.graph.statefulness import evaluating


def changed_by_forward(model: nn.Module, inputs: ModelInputs) -> tuple[str, ...]:
    """Return the attributes, buffers and parameters that a forward pass changes; they are restored afterwards.

    >>> class Counter(nn.Module):
    ...     calls = 0
    ...     def forward(self, x):
    ...         self.calls += 1
    ...         return x * self.calls
    >>> changed_by_forward(Counter(), ModelInputs((torch.ones(1, 1),)))
    ('calls',)
    """
    guard = untouched(model, *inputs.tensors())
    try:
        with guard:
            evaluating(model)(*inputs.args, **inputs.kwargs)
    except StateChangedError:  # parameters were overwritten, and restored
        pass
    except Exception:  # the user's code may raise anything
        return ()
    return tuple(name for name in guard.moved if not name.endswith("training"))


def random_part(model: nn.Module, inputs: ModelInputs) -> str:
    """Return the first module whose output differs between two runs with the same input.

    >>> class Noisy(nn.Module):
    ...     def forward(self, x):
    ...         return x + torch.randn_like(x)
    >>> random_part(nn.Sequential(nn.Linear(2, 2), Noisy()), ModelInputs((torch.ones(1, 2),)))
    '1'
    """
    runs: list[list[tuple[str, Any, Any]]] = []
    for _ in range(2):
        calls: list[tuple[str, Any, Any]] = []
        hooks = [
            module.register_forward_hook(
                lambda m, args, out, path=path, calls=calls: calls.append((path, _copied(args), _copied(out)))
            )
            for path, module in model.named_modules()
        ]
        try:
            with untouched(model, *inputs.tensors()), torch.no_grad():
                torch.manual_seed(len(runs))
                evaluating(model)(*inputs.args, **inputs.kwargs)
        except Exception:  # the user's code may raise anything
            return ""
        finally:
            for hook in hooks:
                hook.remove()
        runs.append(calls)
    for (path, given, gave), (other, given2, gave2) in zip(*runs, strict=False):
        if path == other and _same(given, given2) and not _same(gave, gave2):
            return path
    return ""


def _copied(value: Any) -> list[Tensor]:
    return [tensor.detach().clone() for _, tensor in tensors_in(value)]


def _same(a: list[Tensor], b: list[Tensor]) -> bool:
    """Return whether two lists of tensors are equal up to rounding."""
    return len(a) == len(b) and all(
        x.shape == y.shape and torch.allclose(x, y, rtol=1e-3, atol=1e-5, equal_nan=True)
        for x, y in zip(a, b, strict=True)
    )
