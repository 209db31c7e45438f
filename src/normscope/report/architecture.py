"""The module tree of a result, with equal blocks merged and normalizers marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from normscope.core.result import NormalizerResult
from normscope.core.value import Value
from normscope.report.table import RUN, folded, runs_of

#: Most blocks shown at one level of the tree.
SHOWN = 120


@dataclass(frozen=True)
class NormalizerMark:
    """The normalizers at one place of a block, in all its equal copies."""

    kind: str  #: what they are
    count: int  #: how many
    least: Value  #: the smallest of their constants, on the data's floor where there is one
    most: Value  #: the largest


@dataclass(frozen=True)
class ModuleBranch:
    """A module, or a run of equal ones, of the tree."""

    name: str  #: module path, numbers of a run as ``0..11``
    type: str  #: class name
    repeat: int  #: how many equal modules it stands for
    parameters: int  #: of all of them
    ops: int  #: number of operations of one of them, without those of its children
    marks: tuple[NormalizerMark, ...]  #: normalizers that the module itself computes
    inside: int  #: number of normalizers in it and below
    children: tuple[ModuleBranch, ...]  #: modules inside one of them
    hidden: int = 0  #: children that are not shown


def architecture(blocks: Sequence[Mapping[str, Any]], normalizers: Sequence[NormalizerResult]) -> ModuleBranch:
    """Return the tree of a result's blocks with its normalizers marked; its root is the model.

    >>> block = {"name": "a.0..2", "type": "LayerNorm", "repeat": 3, "ops": [], "parameters": 6, "children": []}
    >>> from normscope.core.value import Kind
    >>> ones = [NormalizerResult(f"a.{i}", "layer_norm", None, None, Value(float(i), Kind.CERTIFIED)) for i in range(3)]
    >>> (branch,) = architecture([block], ones).children
    >>> branch.marks[0].count, branch.marks[0].least.log, branch.marks[0].most.log
    (3, 0.0, 2.0)
    """
    runs = runs_of(blocks)
    modules = ((str(n.details.get("module", n.name.partition("#")[0])), n) for n in normalizers)
    places = [(folded(module, runs)[0], n) for module, n in modules]
    children = tuple(_branch(block, places) for block in blocks[:SHOWN])
    total = sum(int(block["parameters"]) for block in blocks)
    return ModuleBranch("", "", 1, total, 0, (), len(places), children, max(0, len(blocks) - SHOWN))


def _branch(block: Mapping[str, Any], places: Sequence[tuple[str, NormalizerResult]]) -> ModuleBranch:
    name = str(block["name"])
    first = _first(name)
    inside = [(path, n) for path, n in places if path == first or (first and path.startswith(f"{first}."))]
    own = [n for path, n in inside if path == first]
    children = block["children"]
    return ModuleBranch(
        name=name,
        type=str(block["type"]),
        repeat=int(block["repeat"]),
        parameters=int(block["parameters"]),
        ops=len(block["ops"]),
        marks=_marks(own),
        inside=len(inside),
        children=tuple(_branch(child, inside) for child in children[:SHOWN]),
        hidden=max(0, len(children) - SHOWN),
    )


def _first(name: str) -> str:
    """Return the path of the first module of a run.

    >>> _first("layers.0..11"), _first("head")
    ('layers.0', 'head')
    """
    match = RUN.match(name)
    return f"{match['base']}{match['first']}" if match else name


def _marks(normalizers: Sequence[NormalizerResult]) -> tuple[NormalizerMark, ...]:
    """Return normalizers at one place, by kind."""
    kinds: dict[str, list[Value]] = {}
    for n in normalizers:
        kinds.setdefault(n.kind, []).append(n.proved if n.on_floor is None else n.on_floor)
    return tuple(
        NormalizerMark(kind, len(values), min(values, key=lambda v: v.log), max(values, key=lambda v: v.log))
        for kind, values in kinds.items()
    )
