"""State dicts from files: read without running code, unwrapped, and fitted to a model key by key."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from normscope.core.errors import WeightsError, listed
from normscope.core.files import user_path
from normscope.graph.checkpoint import opened
from normscope.graph.safe_load import CHECKPOINT, existing_file, tensors_by_name

#: Names under which wrappers keep a model: DataParallel and torch.compile.
WRAPPING = ("module", "_orig_mod")


def read_state_dict(path: str | Path) -> dict[str, torch.Tensor]:
    """Return the state dict in a ``.safetensors``, ``.pt``, ``.pth``, ``.bin`` or ``.ckpt`` file.

    No code in the file is run: pickles are read with ``weights_only=True``.

    Returns:
        Tensors by the names they have in the file, on the CPU.

    Raises:
        WeightsError: if the file is missing, empty, cut short, unsafe or not a state dict, or if a tensor is not plain
            numbers (quantized, sparse, nested, without values).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"epoch": 3, "state_dict": {"weight": torch.ones(2)}}, Path(folder) / "m.pt")
    ...     read_state_dict(Path(folder) / "m.pt")["weight"]
    tensor([1., 1.])
    """
    path = user_path(path)
    existing_file(path, CHECKPOINT)
    with opened(path) as (names, get):
        return tensors_by_name({name: get(name) for name in names}, str(path))


def fitted(model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return ``tensors`` under the names of the model, where only wrappers (:data:`WRAPPING`) make them differ.

    A name that is the model's own stays: a model may have a part called module.

    >>> list(fitted(nn.Linear(1, 1), {"module.weight": torch.ones(1, 1)}))
    ['weight']
    >>> list(fitted(nn.DataParallel(nn.Linear(1, 1)), {"weight": torch.ones(1, 1)}))
    ['module.weight']
    """
    own: dict[str, list[str]] = {}
    for key in model.state_dict():
        own.setdefault(_bare(key), []).append(key)
    named: dict[str, torch.Tensor] = {}
    for key, value in tensors.items():
        known = own.get(_bare(key), [])
        target = known[0] if len(known) == 1 and known[0] not in tensors else key
        named[key if target in named else target] = value
    return named


def _bare(key: str) -> str:
    """Return a name without the parts that wrappers add."""
    return ".".join(part for part in key.split(".") if part not in WRAPPING)


def mismatch(model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> str:
    """Return what keeps ``tensors`` from fitting the model, or an empty string.

    Counters of batches are not required: nothing is computed from them in evaluation. Nor is a tensor that shares
    its memory with one that is present (tied weights).

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
        WeightsError: if the file cannot be read, or a key is missing, unexpected, wrongly shaped, complex, or of
            integers where the model has numbers.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save(nn.Linear(2, 1).state_dict(), Path(folder) / "m.pt")
    ...     load_weights(nn.Linear(2, 1), Path(folder) / "m.pt")
    []
    """
    tensors = fitted(model, read_state_dict(path))
    problems = mismatch(model, tensors)
    if problems:
        raise WeightsError(f"The weights in {path} do not fit the model: {problems}. Build the model they belong to.")
    own = {key: value for key, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    _refuse_other_numbers(model, own, tensors, path)
    on_meta = any(value.device.type == "meta" for value in own.values())
    known = {key: value for key, value in tensors.items() if key in own}
    try:
        model.load_state_dict(known, strict=False, assign=on_meta)
    except RuntimeError as error:  # a dtype that torch only stores, or a parametrization that refuses its tensor
        reason = " ".join(str(error).split())[:300]
        raise WeightsError(f"The weights in {path} do not fit the model: {reason}. Save them again.") from error
    narrowed = [key for key in known if not on_meta and own[key].element_size() < known[key].element_size()]
    if not narrowed:
        return []
    return [f"{len(narrowed)} tensors were rounded to the model's precision, e.g. {narrowed[0]}"]


def _refuse_other_numbers(
    model: nn.Module, own: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor], path: str | Path
) -> None:
    """Raise if a file has complex numbers where the model has real ones, or integers for a parameter."""
    unreal = [key for key in own if key in tensors and tensors[key].is_complex() and not own[key].is_complex()]
    if unreal:
        raise WeightsError(f"Expected real weights, but {path} has complex {listed(unreal)}. Save real tensors.")
    parameters = {key for key, value in model.named_parameters(remove_duplicate=False) if value.is_floating_point()}
    whole = [
        f"{key} ({str(tensors[key].dtype).removeprefix('torch.')})"
        for key in own
        if key in tensors and key in parameters and not tensors[key].is_floating_point()
    ]
    if whole:
        raise WeightsError(
            f"Expected floating-point parameters, but {path} has integers for {listed(whole)}. They "
            "look quantized and are meaningless without their scales. Save the dequantized model."
        )
