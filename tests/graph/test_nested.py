"""Nested arguments: tensors and references are found wherever they are."""

from __future__ import annotations

import torch

from normscope.graph.ir import Ref
from normscope.graph.nested import flat, paths, substitute, tensors

A, B = torch.zeros(1), torch.ones(1)


def test_tensors_of_arguments() -> None:
    """In lists, tuples and dictionaries, in order, as often as they occur."""
    found = list(tensors(((A, [B, None, 3]), {"k": (A,)})))
    assert [t is o for t, o in zip(found, (A, B, A), strict=True)] == [True] * 3


def test_paths_of_results() -> None:
    """The indices that lead to each tensor."""
    assert [path for path, _ in paths(A)] == [()]
    assert [path for path, _ in paths((A, [B, None, (A,)], 4))] == [(0,), (1, 0), (1, 2, 0)]
    assert list(paths(3)) == []


def test_references() -> None:
    """Each once, and replaced everywhere."""
    tree = ((Ref("a"), 1, (Ref("b"),)), {"k": Ref("a"), "n": None})
    assert flat(tree) == [Ref("a"), Ref("b")]
    renamed = substitute(tree, lambda ref: Ref(ref.name * 2))
    assert renamed == ((Ref("aa"), 1, (Ref("bb"),)), {"k": Ref("aa"), "n": None})
    assert flat(3) == []
