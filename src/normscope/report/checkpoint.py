"""The report on a checkpoint without its model, as text."""

from collections import Counter

from normscope.analysis.checkpoint import CheckpointResult, TensorResult
from normscope.core.number_text import digits
from normscope.report.numbers import kind_text, value_text
from normscope.report.table import ROWS, Section, Table, without_empty

#: Words for one and for several tensors of a role; the others have one for both.
ROLES = {
    "matrix": ("matrix", "matrices"),
    "convolution": ("convolution", "convolutions"),
    "embedding": ("embedding", "embeddings"),
    "norm scale": ("normalizer scale", "normalizer scales"),
    "bias": ("bias", "biases"),
}


def checkpoint_sections(result: CheckpointResult, *, everything: bool = False) -> list[Section]:
    """Return the report of a checkpoint as sections: what it holds, products of norms, then every tensor."""
    facts = result.checkpoint
    roles = Counter(t.role for t in result.tensors)
    files = len(facts["files"])
    lines = [
        f"{facts['tensors']:,} tensors, {facts['numbers']:,} numbers, "
        f"{facts['bytes']:,} bytes in {files} {'file' if files == 1 else 'files'}",
        ", ".join(f"{count} {ROLES.get(role, (role, role))[count > 1]}" for role, count in roles.items()),
    ]
    sections = [Section(f"weights: {facts['name']}", lines=tuple(line for line in lines if line))]
    if result.messages:
        sections.append(Section("messages", lines=result.messages))
    if result.products:
        words = {
            "printed_weights": "product of weight norms (Lemma 5)",
            "printed_kernels": "product of matrices and reshaped kernels, not a bound",
        }
        rows = tuple((words.get(key, key), value_text(v), kind_text(v)) for key, v in result.products.items())
        columns = ("product", "value", "kind")
        sections.append(Section("products", table=Table(columns, rows, ("product", "kind"))))
    if result.tensors:
        sections.append(_tensors(result, everything))
    return sections


def _tensors(result: CheckpointResult, everything: bool) -> Section:
    """Return every tensor, those with a norm first where the list is cut."""
    tensors = list(result.tensors)
    after: list[str] = []
    if not everything and len(tensors) > ROWS:
        tensors = [t for t in tensors if t.upper is not None][:ROWS] or tensors[:ROWS]
        more = len(result.tensors) - len(tensors)
        after.append(f"... {more} more rows, all in result.json (or with --all)")
    columns = ("tensor", "role", "shape", "dtype", "attained", "certified", "kernel", "more")
    table = Table(columns, tuple(_row(t) for t in tensors), ("tensor", "role", "shape", "dtype", "more"))
    if any(t.kernel is not None for t in tensors):
        after.append(
            "certified for a convolution: on any image size, sqrt(taps) times its kernel; kernel: the reshaped kernel"
        )
    return Section("tensors", table=without_empty(table), after=tuple(after))


def _row(t: TensorResult) -> tuple[str, ...]:
    shape = "x".join(map(str, t.shape)) or "scalar"
    facts = [f"{key.replace('_', ' ')} {digits(x)}" for key, x in t.details.items() if key != "variance_min"]
    more = "; ".join([*facts, *([t.note] if t.note else [])]) or "-"
    numbers = (value_text(t.lower), value_text(t.upper), value_text(t.kernel))
    return (t.name, t.role, shape, t.dtype, *numbers, more)
