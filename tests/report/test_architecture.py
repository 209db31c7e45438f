"""The module tree: equal blocks folded, every normalizer at its place, of a real network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from normscope.analysis import analyze
from normscope.core.result import NormalizerResult
from normscope.core.value import Kind, Value
from normscope.report.architecture import SHOWN, ModuleBranch, architecture
from normscope.zoo.catalogue import build, example_input
from report.samples import result


def _walk(branches: Sequence[ModuleBranch]) -> Iterator[ModuleBranch]:
    for branch in branches:
        yield branch
        yield from _walk(branch.children)


def test_every_normalizer_is_marked_once() -> None:
    """In a folded transformer the marks count all of them, with least and most of their constants."""
    arguments = {"width": 8, "layers": 3, "heads": 2, "vocabulary": 11}
    found = analyze(build("gpt", **arguments).eval(), example_input("gpt", 4, **arguments))
    tree = architecture(found.blocks, found.normalizers).children
    marks = {branch.name: branch.marks[0] for branch in _walk(tree) if branch.marks}
    assert {name: mark.count for name, mark in marks.items()} == {
        "blocks.0.norm1": 3,
        "blocks.0.norm2": 3,
        "norm": 1,
    }
    values = [n.on_floor.log for n in found.normalizers if n.name.endswith("norm1") and n.on_floor is not None]
    assert (marks["blocks.0.norm1"].least.log, marks["blocks.0.norm1"].most.log) == (min(values), max(values))
    run = next(branch for branch in _walk(tree) if branch.repeat == 3)
    assert (run.name, run.inside) == ("blocks.0..2", 6)


def test_a_module_called_twice_is_marked_at_its_place() -> None:
    """The call number is no part of the module's path."""
    (normalizer,) = result().normalizers
    twice = [replace(normalizer, name=f"norm#{i}") for i in (1, 2)]
    marked = [b for b in architecture(result().blocks, twice).children if b.marks]
    assert [(b.name, b.marks[0].count) for b in marked] == [("norm", 2)]


def test_normalizers_at_any_depth_are_counted_inside_a_block() -> None:
    one = Value(0.0, Kind.CERTIFIED)
    places = [NormalizerResult(name, "layer_norm", None, None, one) for name in ("a.norm", "a.b.norm", "c.norm")]
    leaf = {"name": "", "type": "Block", "repeat": 1, "ops": [], "parameters": 0, "children": []}
    inner = {**leaf, "name": "a.b", "children": [{**leaf, "name": "a.b.norm"}]}
    outer = {**leaf, "name": "a", "children": [{**leaf, "name": "a.norm"}, inner]}
    (branch,) = architecture([outer], places).children
    assert [branch.inside, *(child.inside for child in branch.children)] == [2, 1, 1]


def test_a_wide_level_is_cut_and_says_so() -> None:
    """Beyond some children the rest is counted."""
    leaf = {"name": "", "type": "ReLU", "repeat": 1, "ops": [], "parameters": 0, "children": []}
    wide = {**leaf, "name": "a", "children": [{**leaf, "name": f"a.x{i}"} for i in range(SHOWN + 7)]}
    (branch,) = architecture([wide], []).children
    assert (len(branch.children), branch.hidden) == (SHOWN, 7)
    root = architecture(wide["children"], [])
    assert (len(root.children), root.hidden) == (SHOWN, 7)
