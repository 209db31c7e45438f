"""Nested arguments and results: tensors and references in lists, tuples and dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from normscope.graph.ir import Ref


def tensors(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors of a nested argument."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, list | tuple | dict):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from tensors(item)


def paths(out: Any) -> Iterator[tuple[tuple[int, ...], Tensor]]:
    """Yield the tensors of a nested result with the path of indices that leads to each."""
    if isinstance(out, Tensor):
        yield (), out
    elif isinstance(out, list | tuple):
        for index, item in enumerate(out):
            yield from (((index, *path), tensor) for path, tensor in paths(item))


def flat(tree: Any) -> list[Ref]:
    """Return the references in a nested argument, each once."""
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if isinstance(tree, Ref):
        return [tree]
    if not isinstance(tree, list | tuple):
        return []
    return list(dict.fromkeys(ref for item in tree for ref in flat(item)))


def substitute(tree: Any, function: Callable[[Ref], Any]) -> Any:
    """Return a nested argument with every reference replaced."""
    if isinstance(tree, Ref):
        return function(tree)
    if isinstance(tree, dict):
        return {key: substitute(value, function) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return tuple(substitute(item, function) for item in tree)
    return tree
