"""State dicts from files: read without running code, unwrapped, and fitted to a model key by key."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from normscope.core.errors import WeightsError
from normscope.models.check import listed

#: Keys under which training scripts put the state dict.
WRAPPERS = ("state_dict", "model_state_dict", "model")
#: Prefixes that wrappers of the model leave on every key.
PREFIXES = ("module.", "_orig_mod.")
SAFETENSORS = (".safetensors",)
PICKLED = (".pt", ".pth", ".bin", ".ckpt")


def _existing_file(path: Path) -> None:
    if path.is_dir():
        raise WeightsError(
            f"weights must be a file; {path} is a directory; name the file in it (for a model: hf:{path})"
        )
    if not path.exists():
        raise WeightsError(f"weights must be a file; there is no {path}; check the path")
    if path.suffix.lower() not in SAFETENSORS + PICKLED:
        known = ", ".join(SAFETENSORS + PICKLED)
        raise WeightsError(f"weights must end in {known}; got {path.name}; save a state dict in one of these formats")
    if path.stat().st_size == 0:
        raise WeightsError(f"weights must hold tensors; {path} is empty (0 bytes); copy or save it again")


def refused(path: Path, error: Exception) -> WeightsError:
    """Return the error for a file that ``torch.load(weights_only=True)`` would not read, with the likely reason.

    Args:
        path: the file.
        error: what ``torch.load`` raised.

    Returns:
        The error to raise.

    >>> str(refused(Path("m.pt"), EOFError())).splitlines()[0][:40]
    'm.pt cannot be read as a checkpoint (EOF'
    """
    text = str(error)
    asked = re.search(r"(?:GLOBAL|global) (\w+(?:\.\w+)+)", text)
    if isinstance(error, pickle.UnpicklingError) and asked:
        return WeightsError(
            f"a checkpoint must hold tensors and plain containers only; {path} asks for {asked.group(1)} and was "
            "refused, because unpickling it could run code; save a state dict instead: "
            "torch.save(model.state_dict(), FILE)"
        )
    if "TorchScript" in text:
        return WeightsError(
            f"a checkpoint must be a state dict; {path} is a TorchScript archive, which holds code; "
            "save torch.jit.load(FILE).state_dict() instead"
        )
    first = text.splitlines()[0] if text else "no message"
    if isinstance(error, pickle.UnpicklingError):
        first = "not a pickle that torch.save wrote"
    return WeightsError(
        f"{path} cannot be read as a checkpoint ({type(error).__name__}: {first[:160]}); it may be cut short or in "
        "another format; copy it again, or save it with torch.save(model.state_dict(), FILE)"
    )


def _read_pickled(path: Path) -> Any:
    """Return what ``torch.load`` finds, mapped from disk where the format allows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks on the file's age; every refusal below is an error of its own
        try:
            with path.open("rb") as file:
                archive = file.read(2) == b"PK"
            return torch.load(path, map_location="cpu", weights_only=True, mmap=archive)
        except PermissionError as error:
            raise WeightsError(f"{path} must be readable; {error}; check its permissions") from error
        except Exception as error:
            # Damaged pickles raise almost anything, KeyError and struct.error among them.
            raise refused(path, error) from error


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path, device="cpu")
    except (SafetensorError, OSError) as error:
        raise WeightsError(
            f"{path} cannot be read as safetensors ({error}); it may be cut short; copy or save it again"
        ) from error


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
    while isinstance(content, Mapping):
        inner = next((content[key] for key in WRAPPERS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            break
        content = inner
    if not isinstance(content, Mapping):
        raise WeightsError(
            f"a checkpoint must hold tensors by name; {name} holds {type(content).__name__}; save model.state_dict()"
        )
    tensors = {str(key): value for key, value in content.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        keys = listed([str(key) for key in content]) or "nothing"
        raise WeightsError(
            f"a checkpoint must hold tensors by name, at the top or under {', '.join(WRAPPERS)}; "
            f"{name} holds {keys}; save model.state_dict()"
        )
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
    _existing_file(path)
    content = _read_safetensors(path) if path.suffix.lower() in SAFETENSORS else _read_pickled(path)
    return unwrap(content, str(path))


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
