"""What a forward pass in evaluation mode leaves behind in a model."""

from __future__ import annotations

from torch import nn

from normscope.core.errors import StateChangedError
from normscope.graph.guard import untouched
from normscope.graph.inputs import ModelInputs
from normscope.graph.statefulness import evaluating


def changed_by_forward(model: nn.Module, inputs: ModelInputs) -> tuple[str, ...]:
    """Return the attributes, buffers and parameters that one forward pass changes; afterwards they are as before.

    Args:
        model: the model.
        inputs: what it is run on.

    >>> import torch
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
    except StateChangedError:  # parameters were overwritten, and put back
        pass
    except Exception:  # the user's code may raise anything
        return ()
    return tuple(name for name in guard.moved if not name.endswith("training"))
