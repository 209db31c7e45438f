"""Captured graphs on disk: capture takes seconds, reading one back takes milliseconds.

A cache may only ever save time. Whatever goes wrong in it is a miss, and what is not surely the same is not kept.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from normscope.core.files import replacing
from normscope.graph.guard import bits
from normscope.graph.identity import model_key
from normscope.graph.ir import Graph

#: Most files kept; the ones not used for longest go first.
LIMIT = 200
#: Constants larger than this in all are not worth keeping.
MOST_BYTES = 64 * 2**20
_SUFFIX = ".safetensors"
#: The user's cache folder: the variable that names it, and its place below the home folder otherwise.
_BASES = {"win32": ("LOCALAPPDATA", "AppData/Local"), "darwin": ("", "Library/Caches")}


def folder() -> Path | None:
    """Return where graphs are kept: ``$NORMSCOPE_CACHE``, or the user's cache folder; ``None`` if there is none.

    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, NORMSCOPE_CACHE="elsewhere"):
    ...     str(folder())
    'elsewhere'
    """
    chosen = os.environ.get("NORMSCOPE_CACHE")
    if chosen is not None:
        return Path(chosen) if chosen else None
    variable, below = _BASES.get(sys.platform, ("XDG_CACHE_HOME", ".cache"))
    base = os.environ.get(variable)
    try:
        return (Path(base) if base else Path.home() / below) / "normscope" / "graphs"
    except RuntimeError:  # a user without a home, as in a container
        return None


def cached(
    model: nn.Module,
    inputs: Any,
    capture: Callable[[], tuple[Graph, dict[str, Tensor]]],
    **settings: Any,
) -> tuple[Graph, dict[str, Tensor]]:
    """Return the graph of a model from the cache, or capture it and keep it.

    Args:
        model: the model, in the mode it is to be captured in.
        inputs: its example inputs, nested.
        capture: called without arguments if there is nothing in the cache.
        settings: further settings the graph depends on.

    Returns:
        The graph, and its parameters, buffers and constants by name; parameters and buffers are the model's own.
    """
    key = model_key(model, inputs, **settings)
    found = load(key) if key is not None else None
    if found is not None:
        graph, constants = found
        tensors = attach(graph, model, constants)
        if tensors is not None:
            return graph, tensors
    graph, tensors = capture()
    # Running the model may have loaded more code: what the key did not cover before is not kept.
    if key is not None and key == model_key(model, inputs, **settings):
        store(key, graph, tensors)
    return graph, tensors


def load(key: str) -> tuple[Graph, dict[str, Tensor]] | None:
    """Return a graph and its constants, or ``None`` if there is none that is whole.

    Args:
        key: what :func:`~normscope.graph.identity.model_key` returned.
    """
    try:
        path = _path(key)
        if path is None or not path.is_file():
            return None
        with safe_open(str(path), framework="pt") as file:
            text = (file.metadata() or {})["graph"]
            constants = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if file.metadata()["digest"] != _digest(text, constants):
                return None
        graph = Graph.from_json(text)
        os.utime(path)
        return graph, constants
    except Exception:  # whatever is wrong with the file, the graph is captured again
        return None


def store(key: str, graph: Graph, tensors: Mapping[str, Tensor]) -> None:
    """Keep a graph and those of its tensors that are constants; failing to is not an error.

    A recorded graph depends on the data it was recorded with, and is not kept.

    Args:
        key: what :func:`~normscope.graph.identity.model_key` returned.
        graph: the graph.
        tensors: its parameters, buffers and constants by name.
    """
    try:
        path = _path(key)
        names = [node.target for node in graph if node.op == "constant"]
        constants = {name: tensors[name].detach().cpu().contiguous().clone() for name in names}
        if path is None or graph.front_end != "export" or not _portable(names, tensors):
            return
        text = graph.to_json()
        with replacing(path) as temporary:
            save_file(constants, temporary, metadata={"graph": text, "digest": _digest(text, constants)})
        _trim(path.parent)
    except Exception:  # a full disk, a read-only home, another process trimming: the graph is just not kept
        return


def attach(graph: Graph, model: nn.Module, constants: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """Return the tensors of a graph, parameters and buffers taken from the model.

    Args:
        graph: a graph of this model.
        model: the model.
        constants: the graph's constants by name.

    Returns:
        The tensors by name, or ``None`` if the model lacks one or has it in another shape or dtype.
    """
    state = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    found: dict[str, Tensor] = {}
    for node in graph:
        if node.target:
            held = (constants if node.op == "constant" else state).get(node.target)
            if held is None or tuple(held.shape) != node.shape or str(held.dtype) != f"torch.{node.dtype}":
                return None
            found[node.target] = held
    return found


def _path(key: str) -> Path | None:
    """Return the file of a key."""
    where = folder()
    return None if where is None else where / f"{key}{_SUFFIX}"


def _portable(names: list[str], tensors: Mapping[str, Tensor]) -> bool:
    """Tell whether constants are small, and on the processor, where they are when read back."""
    found = [tensors[name] for name in names]
    size = sum(tensor.numel() * tensor.element_size() for tensor in found)
    return size <= MOST_BYTES and all(tensor.device.type == "cpu" for tensor in found)


def _digest(text: str, constants: Mapping[str, Tensor]) -> str:
    """Return a hash of a graph and its constants."""
    digest = hashlib.sha256(f"{torch.__version__} {text}".encode())
    for name in sorted(constants):
        digest.update(name.encode())
        digest.update(bits(constants[name]).numpy().tobytes())
    return digest.hexdigest()


def _trim(where: Path) -> None:
    """Remove the files not used for longest, and what an interrupted run left behind."""
    kept = sorted(where.glob(f"*{_SUFFIX}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in kept[LIMIT:]:
        path.unlink(missing_ok=True)
    newest = kept[0].stat().st_mtime if kept else 0.0
    for path in where.glob("*.tmp"):
        if path.stat().st_mtime < newest - 3600:
            path.unlink(missing_ok=True)
