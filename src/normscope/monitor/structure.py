"""What a model is made of, without its values: told from what it was when a graph of it was captured."""

from __future__ import annotations

from torch import nn

from normscope.core.errors import listed

#: Of each parameter and buffer by name: the first name of the same tensor, its shape, its dtype and its device.
Structure = dict[str, tuple[str, tuple[int, ...], str, str]]


def structure(model: nn.Module) -> Structure:
    """Return what parameters and buffers a model has, by every name; a tied one also says with which it is tied.

    Args:
        model: the model.

    >>> structure(nn.Linear(2, 1, bias=False))
    {'weight': ('weight', (1, 2), 'torch.float32', 'cpu')}
    """
    first: dict[int, str] = {}
    held = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {n: (first.setdefault(id(t), n), tuple(t.shape), str(t.dtype), str(t.device)) for n, t in held}


def difference(was: Structure, now: Structure) -> str:
    """Return in words what differs, nothing if nothing does.

    Args:
        was: what the model was made of.
        now: what it is made of.

    >>> difference(structure(nn.Linear(2, 1)), structure(nn.Linear(3, 1, bias=False)))
    'it no longer has bias; weight differs'
    >>> difference(structure(nn.Linear(2, 1)), structure(nn.Linear(2, 1)))
    ''
    """
    gone = [name for name in was if name not in now]
    new = [name for name in now if name not in was]
    other = [name for name in was if name in now and was[name] != now[name]]
    parts = (
        f"it no longer has {listed(gone)}" if gone else "",
        f"it has gained {listed(new)}" if new else "",
        f"{listed(other)} differ{'s' if len(other) == 1 else ''}" if other else "",
    )
    return "; ".join(part for part in parts if part)
