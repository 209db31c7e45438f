"""``compare``: results of several models, aligned by layer; what changed, and which findings are new."""

import difflib
import json
import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from normscope.analysis.checkpoint import CheckpointResult
from normscope.core.display import Shown
from normscope.core.errors import InputError
from normscope.core.files import Saved
from normscope.core.finding import Finding, order
from normscope.core.json_form import fields_of, to_plain
from normscope.core.result import Result
from normscope.core.value import LN10, Kind, Value

Comparable = Result | CheckpointResult
#: Numbers of tensors that have no norm.
DETAILS = ("largest", "std_min", "std_max", "frobenius")


@dataclass(frozen=True)
class Quantity:
    """One quantity of every model."""

    name: str  #: its name
    values: tuple[Value | None, ...]  #: its value in each model; ``None`` where there is none

    @property
    def changes(self) -> tuple[float | None, ...]:
        """Return the decimal logarithm of each value over the first; ``None`` where one of them is missing.

        >>> Quantity("upper", (Value.of(1.0, Kind.CERTIFIED), Value.of(10.0, Kind.CERTIFIED), None)).changes
        (0.0, 1.0, None)
        """
        return tuple(_change(self.values[0], value) for value in self.values)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return fields_of(self) | {"changes_log10": to_plain(self.changes)}


def _change(first: Value | None, value: Value | None) -> float | None:
    """Return the decimal logarithm of a quotient of two values, zero if they are equal."""
    if first is None or value is None:
        return None
    return 0.0 if first.log == value.log else round((value.log - first.log) / LN10, 12)


@dataclass(frozen=True)
class ComparedPart:
    """One layer, normalizer or tensor in each of the models."""

    names: tuple[str | None, ...]  #: its name in each model; ``None`` where there is none
    kinds: tuple[str | None, ...]  #: what it is in each
    quantities: tuple[Quantity, ...]  #: its numbers

    @property
    def name(self) -> str:
        """Return the name in the first model that has it."""
        return next(name for name in self.names if name is not None)

    @property
    def largest_change(self) -> float:
        """Return the largest change of any of its numbers, in decades; infinite where a part is missing.

        >>> ComparedPart(("a", None), ("matrix", None), ()).largest_change
        inf
        """
        if any(name is None for name in self.names):
            return math.inf
        changes = [abs(c) for q in self.quantities for c in q.changes if c is not None and not math.isnan(c)]
        return max(changes, default=0.0)


@dataclass(frozen=True, repr=False)
class Comparison(Saved, Shown):
    """Several models side by side; the others are compared with the first.

    Attributes:
        models: their names.
        end_to_end: constants of the whole networks.
        layers: linear layers, or tensors where checkpoints are compared.
        normalizers: normalizers.
        findings: findings of each model that was checked, by code and place.
        checked: models that were checked.
        messages: notes on the numbers.
    """

    _kind = "comparison"
    _layout = ("normscope.report.comparison", "comparison_sections")
    _rows = "numbers"

    models: tuple[str, ...]
    end_to_end: tuple[Quantity, ...]
    layers: tuple[ComparedPart, ...]
    normalizers: tuple[ComparedPart, ...] = ()
    findings: tuple[tuple[Finding, tuple[bool, ...]], ...] = ()
    checked: tuple[bool, ...] = ()
    messages: tuple[str, ...] = ()
    results: tuple[Comparable, ...] = field(default=(), repr=False, compare=False)

    @property
    def numbers(self) -> list[dict[str, Any]]:
        """Return one row for every number of every part: part, name, quantity, and its value in each model."""
        whole = [ComparedPart(("",), ("",), self.end_to_end)]
        parts = {"network": whole, "layer": self.layers, "normalizer": self.normalizers}
        return [
            {"part": part, "name": row.name, "number": q.name, **dict(zip(self.models, q.values, strict=True))}
            for part, rows in parts.items()
            for row in rows
            for q in row.quantities
        ]

    def new_findings(self, model: int) -> tuple[Finding, ...]:
        """Return findings in a model that are not in the first, if both were checked."""
        return self._found_in(model, 0)

    def gone_findings(self, model: int) -> tuple[Finding, ...]:
        """Return findings in the first model that are not in another, if both were checked."""
        return self._found_in(0, model)

    def _found_in(self, model: int, other: int) -> tuple[Finding, ...]:
        both = bool(self.checked) and self.checked[model] and self.checked[other]
        return tuple(f for f, present in self.findings if both and present[model] and not present[other])

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        found = [{"finding": f.to_dict(), "present": list(p)} for f, p in self.findings]
        return super().to_dict() | {"findings": found}


def compare(results: Mapping[str, Comparable], findings: Mapping[str, Sequence[Finding]] | None = None) -> Comparison:
    """Compare results side by side, aligned by layer.

    Args:
        results: two or more results of ``analyze`` by name, all of models or all of checkpoints; the first is what the
            others are compared with.
        findings: what ``check`` found, by the same names; models may be missing.

    Returns:
        The comparison.

    Raises:
        InputError: if there are fewer than two, or models and bare checkpoints are mixed.

    >>> import torch, normscope
    >>> one, two = torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False)
    >>> _ = torch.nn.init.eye_(one.weight), torch.nn.init.constant_(two.weight, 5.0)
    >>> x = torch.ones(1, 2)
    >>> found = compare({"a": normscope.analyze(one, x), "b": normscope.analyze(two, x)})
    >>> [round(c, 6) for c in found.layers[0].quantities[0].changes]
    [0.0, 1.0]
    """
    if not isinstance(results, Mapping) or not all(isinstance(r, Comparable) for r in results.values()):
        given = results.values() if isinstance(results, Mapping) else [results]
        got = ", ".join(sorted({type(r).__name__ for r in given}))
        raise InputError(f"Expected results of analyze by name, such as compare({{'a': one, 'b': other}}); got {got}.")
    if len(results) < 2:
        raise InputError(f"Expected at least two models to compare, got {len(results)}.")
    models = [r for r in results.values() if isinstance(r, Result)]
    checkpoints = [r for r in results.values() if isinstance(r, CheckpointResult)]
    if models and checkpoints:
        kinds = ", ".join(f"{k} ({'model' if isinstance(r, Result) else 'weights'})" for k, r in results.items())
        raise InputError(
            f"Models can only be compared with models, and checkpoints with checkpoints; got {kinds}. Load the "
            "checkpoints into their model (--model on the command line)."
        )
    names = tuple(results)
    seen, checked = _findings(names, findings or {})
    if checkpoints:
        rows = _rows([c.tensors for c in checkpoints], ("role", "shape"), ("upper", "kernel", *DETAILS))
        products = _quantities([c.products for c in checkpoints])
        return Comparison(names, products, rows, (), seen, checked, _messages(rows), tuple(checkpoints))
    layers = _rows([r.layers for r in models], ("kind", "shape"), ("upper", "attained", "folded"))
    # A different kind of normalizer at the same place is what a comparison should show: places also match by order.
    normalizers = _rows([r.normalizers for r in models], (), ("proved", "on_floor", "printed"))
    whole = _quantities([r.end_to_end for r in models])
    messages = (*_messages((*layers, *normalizers)), *_other_domains(models))
    return Comparison(names, whole, layers, normalizers, seen, checked, messages, tuple(models))


def _quantities(values: Sequence[Mapping[str, Value | None]]) -> tuple[Quantity, ...]:
    keys = dict.fromkeys(key for column in values for key, value in column.items() if value is not None)
    return tuple(Quantity(key, tuple(column.get(key) for column in values)) for key in keys)


def _rows(
    columns: Sequence[Sequence[Any]], signature: Sequence[str], numbers: Sequence[str]
) -> tuple[ComparedPart, ...]:
    """Return the aligned rows of parts, each with those of its numbers that some model has."""
    rows = []
    for places in align(
        [[PartSignature(x.name, tuple(getattr(x, key) for key in signature)) for x in c] for c in columns]
    ):
        items = [None if i is None else column[i] for i, column in zip(places, columns, strict=True)]
        kinds = tuple(None if x is None else str(getattr(x, "kind", None) or getattr(x, "role", "")) for x in items)
        found = (Quantity(n, tuple(None if x is None else _number(x, n) for x in items)) for n in numbers)
        quantities = tuple(q for q in found if any(v is not None for v in q.values))
        rows.append(ComparedPart(tuple(None if x is None else x.name for x in items), kinds, quantities))
    return tuple(rows)


def _number(part: Any, name: str) -> Value | None:
    """Return a number of a part, or of its details if it is one of these."""
    if name not in DETAILS:
        value: Value | None = getattr(part, name)
        return value
    return Value.of(part.details[name], Kind.ESTIMATE) if name in part.details else None


def _findings(
    names: Sequence[str], findings: Mapping[str, Sequence[Finding]]
) -> tuple[tuple[tuple[Finding, tuple[bool, ...]], ...], tuple[bool, ...]]:
    """Return every finding once, with the models that have it, and which models were checked."""
    first: dict[tuple[str, str], Finding] = {}
    for name in names:
        for finding in findings.get(name, ()):
            first.setdefault(finding.key, finding)
    present = {name: {f.key for f in findings.get(name, ())} for name in names}
    seen = tuple((f, tuple(f.key in present[name] for name in names)) for f in order(first.values()))
    return seen, tuple(name in findings for name in names)


def _messages(rows: Sequence[ComparedPart]) -> tuple[str, ...]:
    """Return messages about parts that are missing or renamed in some models."""
    alone = sum(any(name is None for name in row.names) for row in rows)
    renamed = sum(len({n for n in row.names if n is not None}) > 1 for row in rows)
    said = {
        f"{alone} of {len(rows)} parts are not in every model": alone,
        f"{renamed} parts have different names and were matched by kind, shape and order": renamed,
    }
    return tuple(text for text, holds in said.items() if holds)


def _other_domains(results: Sequence[Result]) -> tuple[str, ...]:
    """Return warnings if the models were analyzed on different inputs, data or BatchNorm modes."""
    modes = {str(r.model.get("mode")) for r in results}
    shapes = {json.dumps([[b["name"], list(b["shape"])] for b in r.input.get("blocks", ())]) for r in results}
    data = {json.dumps(r.input.get("source"), sort_keys=True, default=str) for r in results}
    said = {
        f"BatchNorm modes differ ({', '.join(sorted(modes))}): the numbers are about different functions": modes,
        "the input shapes differ: end-to-end constants are on different spaces": shapes,
        "the data differ: variance floors and attained values are for different inputs": data,
    }
    return tuple(text for text, kinds in said.items() if len(kinds) > 1)


@dataclass(frozen=True)
class PartSignature:
    """What layers or normalizers of two models are matched by."""

    name: str  #: its module path
    #: what it is, e.g. its kind and shape; parts of other names are matched only if these are equal
    signature: Hashable


def align(columns: Sequence[Sequence[PartSignature]]) -> list[tuple[int | None, ...]]:
    """Align the parts of several networks: each row holds the index of a part in every network, or ``None``.

    Every network is matched to the rows of those before it; a part without a match gets a row of its own, after that of
    its predecessor. Parts match if their names are equal; between matched neighbours, parts with equal signatures match
    in order.

    >>> a = [PartSignature("fc1", 3), PartSignature("norm", "bn"), PartSignature("fc2", 3)]
    >>> b = [PartSignature("fc1", 3), PartSignature("fc2", 3), PartSignature("fc3", 3)]
    >>> align([a, b])
    [(0, 0), (1, None), (2, 1), (None, 2)]
    """
    if not columns:
        return []
    rows: list[tuple[int | None, ...]] = [(i,) for i in range(len(columns[0]))]
    faces: list[PartSignature] = list(columns[0])
    for width, column in enumerate(columns[1:], start=1):
        matched = _match(faces, column)
        taken = {j: i for i, j in matched.items()}
        new: dict[int, list[int]] = defaultdict(list)  # parts without a row, by the row of the part before
        before = -1
        for j in range(len(column)):
            before = taken.get(j, before)
            if j not in taken:
                new[before].append(j)
        merged: list[tuple[tuple[int | None, ...], PartSignature]] = []
        for i in range(-1, len(rows)):
            merged += [((*rows[i], matched.get(i)), faces[i])] if i >= 0 else []
            merged += [((*[None] * width, j), column[j]) for j in new[i]]
        rows, faces = [row for row, _ in merged], [face for _, face in merged]
    return rows


def _match(faces: Sequence[PartSignature], column: Sequence[PartSignature]) -> dict[int, int]:
    """Return the index in the column of each row that has a match there; the order is kept."""
    names = difflib.SequenceMatcher(None, [f.name for f in faces], [p.name for p in column], autojunk=False)
    blocks = names.get_matching_blocks()
    found = {b.a + k: b.b + k for b in blocks for k in range(b.size)}
    before_a = before_b = 0
    for block in blocks:  # the last one is empty and stands at the end
        left, right = range(before_a, block.a), range(before_b, block.b)
        kinds = difflib.SequenceMatcher(
            None, [faces[i].signature for i in left], [column[j].signature for j in right], autojunk=False
        )
        for same in kinds.get_matching_blocks():
            found |= {left[same.a + k]: right[same.b + k] for k in range(same.size)}
        before_a, before_b = block.a + block.size, block.b + block.size
    return found
