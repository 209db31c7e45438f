"""The module tree of a result, with equal blocks merged and normalizers marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from normscope.core.result import NormalizerResult
from normscope.core.value import Value
from normscope.report.table import RUN

#: Most blocks shown at one level of the tree.
SHOWN = 120


@dataclass(frozen=True)
class NormalizerMark:
    """The normalizers at one place of a block, of all its equal copies."""

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
    ops: int  #: number of operations of one of them, children's left out
    marks: tuple[NormalizerMark, ...]  #: normalizers that it is itself
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
    places = [(str(n.details.get("module", n.name.partition("#")[0])), n) for n in normalizers]
    children = tuple(_branch(block, places) for block in blocks[:SHOWN])
    total = sum(int(block["parameters"]) for block in blocks)
    return ModuleBranch("", "", 1, total, 0, (), len(places), children, max(0, len(blocks) - SHOWN))


def _branch(block: Mapping[str, Any], places: Sequence[tuple[str, NormalizerResult]]) -> ModuleBranch:
    name = str(block["name"])
    inside = [(path, n) for path, n in ((_within(name, p), n) for p, n in places) if path is not None]
    first = _first(name)
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


def _within(name: str, path: str) -> str | None:
    """Return a module path relative to the first copy of a block, or ``None`` if it is not inside the block.

    >>> _within("layers.0..11", "layers.3.norm"), _within("layers.0..11", "layers.12.norm"), _within("a", "ab")
    ('layers.0.norm', None, None)
    """
    match = RUN.match(name)
    if match is None:
        return path if path == name or (name and path.startswith(f"{name}.")) else None
    if not path.startswith(match["base"]):
        return None
    number, dot, rest = path[len(match["base"]) :].partition(".")
    if not number.isdigit() or not int(match["first"]) <= int(number) <= int(match["last"]):
        return None
    return f"{match['base']}{match['first']}{dot}{rest}"


def _marks(normalizers: Sequence[NormalizerResult]) -> tuple[NormalizerMark, ...]:
    """Return normalizers at one place, by kind."""
    kinds: dict[str, list[Value]] = {}
    for n in normalizers:
        kinds.setdefault(n.kind, []).append(n.proved if n.on_floor is None else n.on_floor)
    return tuple(
        NormalizerMark(kind, len(values), min(values, key=lambda v: v.log), max(values, key=lambda v: v.log))
        for kind, values in kinds.items()
    )
