"""Why a value is not finite: the operation that computed it, its inputs, and the model's tensor behind them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from normscope.core.errors import listed
from normscope.doctor.modules import listed_channels
from normscope.doctor.neighbours import ancestors
from normscope.graph.ir import Graph, Node, Ref
from normscope.graph.recognise import name_of

_ROOTS = ("sqrt", "rsqrt")
_LOGARITHMS = ("log", "log2", "log10", "log1p", "logit")
_NORMALIZERS = ("layer_norm", "native_layer_norm", "group_norm", "native_group_norm", "instance_norm", "rms_norm")
_VARIANCES = ("var", "std", "var_mean", "std_mean")
#: Fixes for each kind of fault.
FIXES = {
    "zero": "add eps to what it divides by, inside the root if there is one",
    "negative": "clamp the argument of the root or logarithm at a small positive number, or compute it another way",
    "equal": "give it an eps: 1e-5 for images, 1e-6 for vectors",
    "few": "use correction=0 (unbiased=False), or more entries",
    "infinite": "keep at least one unmasked entry per row, or mask with a large negative number; clamp before log",
    "overflow": "normalize or clip its growing input, or compute it in a wider dtype",
}


@dataclass(frozen=True)
class Fault:
    """An operation with a non-finite result."""

    node: Node  #: the operation
    kind: str = ""  #: a key of :data:`FIXES`, or empty if the reason is not known
    operand: str = ""  #: the graph node of the operand that is the cause, if known
    entries: tuple[int, ...] = ()  #: flat indices of that operand's entries that are the cause
    size: int = 0  #: number of entries of the operand
    largest: float = 0.0  #: largest absolute value of its inputs
    source: Node | None = None  #: the operation that wrote the infinities it turns into NaN, if that is the fault


def fault_of(node: Node, values: Mapping[str, Any]) -> Fault:
    """Return why an operation has a non-finite result, given the values it read.

    >>> import torch
    >>> fault = fault_of(Node("y", "aten.rsqrt.default", (Ref("v"),)), {"v": torch.tensor([1.0, 0.0])})
    >>> fault.kind, fault.operand, fault.entries
    ('zero', 'v', (1,))
    """
    read = [t for name in node.inputs() if isinstance(t := values.get(name), Tensor) and t.is_floating_point()]
    largest = max((float(t.abs().max()) for t in read if t.numel()), default=0.0)
    for operand, bad, kind in _possible_causes(node, values):
        if bool(bad.any()):
            which = tuple(bad.flatten().nonzero().flatten()[:4096].tolist())
            return Fault(node, kind, operand, which, bad.numel(), largest)
    if name_of(node) in _NORMALIZERS:
        return Fault(node, "equal", largest=largest)
    if name_of(node) in _VARIANCES:
        return Fault(node, "few", largest=largest)
    return Fault(node, "overflow" if largest > 1e4 or name_of(node) in ("exp", "pow") else "", largest=largest)


def _possible_causes(node: Node, values: Mapping[str, Any]) -> Iterator[tuple[str, Tensor, str]]:
    """Yield possible causes: an operand, a mask of its entries, and the kind of fault."""
    name = name_of(node)
    position = 1 if name == "div" else 0
    if name in ("batch_norm", "native_batch_norm", "_native_batch_norm_legit_no_training", "cudnn_batch_norm"):
        position = 4
    operand = node.args[position] if len(node.args) > position else None
    value = values.get(operand.name) if isinstance(operand, Ref) else None
    if not isinstance(operand, Ref) or not isinstance(value, Tensor) or not value.is_floating_point():
        return
    exponent = node.args[1] if name == "pow" and len(node.args) > 1 else None
    if position == 4:
        yield operand.name, value <= 0, "zero"
    elif name in ("div", "reciprocal", "rsqrt") or (isinstance(exponent, int | float) and exponent < 0):
        yield operand.name, value == 0, "zero"
    if name in _ROOTS or name == "pow":
        yield operand.name, value < 0, "negative"
    if name in _LOGARITHMS:
        yield operand.name, value <= (-1 if name == "log1p" else 0), "negative"


def explain_fault(fault: Fault, graph: Graph, tensors: Mapping[str, Tensor]) -> tuple[str, str]:
    """Return a description of a fault, and a fix."""
    name = name_of(fault.node)
    fix = FIXES.get(fault.kind, "check the input of this operation; load an earlier checkpoint if weights are lost")
    if fault.kind == "infinite":
        return _infinities_to_nan(fault), fix
    first = f"{name} is the first operation whose result is not finite on the data although its inputs are"
    if fault.kind == "equal":
        return f"{first}: all entries of some group are equal, and no eps is added to their variance of zero", fix
    if fault.kind == "few":
        return f"{first}: the unbiased variance of too few entries is not a number (0/0)", fix
    if fault.kind == "overflow":
        dtype = fault.node.dtype or "its precision"
        return f"{first}: it overflows {dtype}, with entries up to {fault.largest:.3g}", fix
    if not fault.operand:
        return first, fix
    sign = "zero" if fault.kind == "zero" else "zero or negative" if name in _LOGARITHMS else "negative"
    share = f"{len(fault.entries)} of {fault.size} entries of its input"
    if fault.operand in graph.moving:
        why = "; no eps is added, and all entries of some sample are equal" if fault.kind == "zero" else ""
        return f"{first}: {share} are {sign}{why}", fix
    source, where = _source_tensor(fault, graph, tensors)
    if not source:
        made = [node.target for node in ancestors(graph, fault.operand) if node.target in tensors]
        text = f"{first}: {name_of(graph[fault.operand])} of {listed(made)} is {sign}"
        return f"{text} at {listed_channels(fault.entries)}", f"{fix}: the data is not the cause"
    buffer = source.rpartition(".")[2]
    text = f"{first}: {source} is {sign}{where}" + (", and no eps is added" if fault.kind == "zero" else "")
    again = "estimate the statistics again" if buffer.startswith("running_") else f"set {buffer} to one there"
    return text, f"{fix}; or {again}, or remove the channels without signal: the data is not the cause"


def _infinities_to_nan(fault: Fault) -> str:
    name = name_of(fault.node)
    written = ""
    if fault.source is not None:
        written = f" written by {name_of(fault.source)} in {fault.source.owner or 'the model'}"
    text = f"{name} turns infinities{written} into NaN"
    if "softmax" in name or "attention" in name:
        return f"{text}: some row is all minus infinity because everything in it is masked"
    return f"{text}: zero times infinity, or infinity minus infinity"


def _source_tensor(fault: Fault, graph: Graph, tensors: Mapping[str, Tensor]) -> tuple[str, str]:
    """Return the parameter or buffer behind an operand that does not depend on the input, and where its entries are."""
    where = "" if len(fault.entries) == fault.size else f" at {listed_channels(fault.entries)}"
    for node in ancestors(graph, fault.operand):
        tensor = tensors.get(node.target)
        if tensor is None or not tensor.is_floating_point() or tensor.numel() != fault.size:
            continue
        if bool((tensor.detach().flatten()[list(fault.entries)] <= 0).all()):
            return node.target, where
    return "", ""
