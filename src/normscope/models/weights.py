"""State dicts from files: read without running code, unwrapped, and fitted to a model key by key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from normscope.core.errors import WeightsError, listed
from normscope.core.safe_load import CHECKPOINT, SAFETENSORS, existing_file, safe_load, tensors_by_name, unreadable

#: Prefixes that wrappers of the model leave on every key.
PREFIXES = ("module.", "_orig_mod.")


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path, device="cpu")
    except (SafetensorError, OSError) as error:
        raise unreadable(path, CHECKPOINT, error) from error


def unwrap(content: Any, name: str = "the file") -> dict[str, torch.Tensor]:
    """Return the state dict inside ``content``: wrapper keys opened, common prefixes removed.

    Args:
        content: a state dict, or a mapping with one under ``state_dict``, ``model_state_dict`` or ``model``.
        name: how messages call it.

    Returns:
        Tensors by name.

    Raises:
        WeightsError: if there is no state dict inside.

    >>> list(unwrap({"epoch": 3, "state_dict": {"module.weight": torch.ones(1)}}))
    ['weight']
    """
    tensors = tensors_by_name(content, name)
    while prefix := next((p for p in PREFIXES if all(key.startswith(p) for key in tensors)), None):
        tensors = {key.removeprefix(prefix): value for key, value in tensors.items()}
    return tensors


def read_state_dict(path: str | Path) -> dict[str, torch.Tensor]:
    """Return the state dict in a ``.safetensors``, ``.pt``, ``.pth``, ``.bin`` or ``.ckpt`` file.

    No code in the file is run: pickles are read with ``weights_only=True``.

    Args:
        path: the file.

    Returns:
        Tensors by name, on the CPU.

    Raises:
        WeightsError: if the file is missing, empty, cut short, unsafe or not a state dict.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"weight": torch.ones(2)}, Path(folder) / "m.pt")
    ...     read_state_dict(Path(folder) / "m.pt")["weight"]
    tensor([1., 1.])
    """
    path = Path(path)
    if path.suffix.lower() == SAFETENSORS:
        existing_file(path, CHECKPOINT)
        return unwrap(_read_safetensors(path), str(path))
    return unwrap(safe_load(path, CHECKPOINT), str(path))


def mismatch(model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> str:
    """Return what keeps ``tensors`` from fitting the model, or an empty text.

    Counters of batches are not required: nothing is computed from them in evaluation. Nor is a tensor the model shares
    with one that is there (tied weights).

    Args:
        model: the network.
        tensors: a state dict.

    Returns:
        Missing, unexpected and wrongly shaped keys, at most a dozen each.

    >>> mismatch(nn.Linear(2, 1), {"weight": torch.ones(1, 3), "scale": torch.ones(1)})
    'missing: bias; unexpected: scale; wrongly shaped: weight (model 1x2, file 1x3)'
    """
    own = {key: value for key, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    present = {_storage(own[key]) for key in own if key in tensors}
    missing = [
        key
        for key in own
        if key not in tensors and not key.endswith("num_batches_tracked") and _storage(own[key]) not in present
    ]
    unexpected = [key for key in tensors if key not in own and not key.endswith("num_batches_tracked")]
    shaped = [
        f"{key} (model {_times(own[key])}, file {_times(tensors[key])})"
        for key in own
        if key in tensors and not is_lazy(own[key]) and own[key].shape != tensors[key].shape
    ]
    groups = (("missing", missing), ("unexpected", unexpected), ("wrongly shaped", shaped))
    return "; ".join(f"{title}: {listed(names)}" for title, names in groups if names)


def _storage(tensor: torch.Tensor) -> object:
    """Return what two names of one tensor have in common; tensors without memory share nothing."""
    if is_lazy(tensor) or tensor.device.type == "meta" or tensor.numel() == 0:
        return object()
    return tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride()


def _times(tensor: torch.Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"


def load_weights(model: nn.Module, path: str | Path) -> list[str]:
    """Put the weights in a file into the model.

    Args:
        model: the network; its parameters and buffers are overwritten, and materialized if they were on meta.
        path: a file :func:`read_state_dict` reads.

    Returns:
        Remarks for the user, e.g. on rounding; often none.

    Raises:
        WeightsError: if the file cannot be read, or a key is missing, unexpected, wrongly shaped or complex.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save(nn.Linear(2, 1).state_dict(), Path(folder) / "m.pt")
    ...     load_weights(nn.Linear(2, 1), Path(folder) / "m.pt")
    []
    """
    tensors = read_state_dict(path)
    problems = mismatch(model, tensors)
    if problems:
        raise WeightsError(f"the weights must fit the model; {path} does not: {problems}; build the model they are of")
    own = {key: value for key, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    unreal = [key for key in tensors if tensors[key].is_complex() and key in own and not own[key].is_complex()]
    if unreal:
        raise WeightsError(f"weights must be real numbers; {path} has complex {listed(unreal)}; save real tensors")
    on_meta = any(value.device.type == "meta" for value in own.values())
    model.load_state_dict({key: value for key, value in tensors.items() if key in own}, strict=False, assign=on_meta)
    narrowed = [
        key for key in own if key in tensors and not on_meta and own[key].element_size() < tensors[key].element_size()
    ]
    if not narrowed:
        return []
    return [f"{len(narrowed)} tensors were rounded to the model's precision, e.g. {narrowed[0]}"]
