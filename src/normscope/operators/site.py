"""Normalizers in a graph: the node of each, what it normalizes, and its parameters."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from normscope.operators.expression import Expr
from normscope.operators.registry import Call
from normscope.operators.spread_division import Division, Spread


@dataclass(frozen=True, eq=False)
class Site:
    """A normalizer found in a graph."""

    node: str  #: the graph node of its result
    source: str  #: the graph node it normalizes
    owner: str  #: module path
    kind: str  #: ``batch_norm``, ``layer_norm``, ..., ``weight_norm``, ``spectral_norm``, ``weight_standardization``
    spread: Spread | None = None  #: groups and stabilizer, for those that use the statistics of their input
    gamma: Tensor | None = None  #: scale, if it was found
    beta: Tensor | None = None  #: shift, if it was found
    running: tuple[Tensor, Tensor] | None = None  #: (mean, variance) for fixed statistics
    eps: float = 0.0  #: the stabilizer
    shape: tuple[int, ...] = ()  #: shape of what it normalizes
    written_out: bool = False  #: recognized from elementary operations
    end: str = ""  #: for one written out, the graph node of its result with scale and shift
    of_array: bool = False  #: it normalizes a learned array that is not the weight of a layer
    details: Mapping[str, float] = field(default_factory=dict)  #: further numbers specific to its kind


def describe(site: Site) -> dict[str, Any]:
    """Return facts about a normalizer for the report."""
    details: dict[str, Any] = {"eps": site.eps, "module": site.owner, "written_out": site.written_out}
    if site.spread is not None:
        details["group_size"] = site.spread.size
    if site.running is not None:
        variance = site.running[1].detach().double()
        details["std_min"] = float(variance.min().clamp_min(0).sqrt())
        details["std_max"] = float(variance.max().clamp_min(0).sqrt())
        details["channels"] = variance.numel()
    if site.gamma is not None:
        details["gamma_max"] = float(site.gamma.detach().abs().max())
    return details


def site_of(call: Call, kind: str, x: Expr, out: Expr) -> Site:
    """Return the site of a normalizer that is a single torch operation."""
    division = _division_below(out, call.node.name)
    spread = None if division is None else division.spread
    mean, var = call.get("running_mean"), call.get("running_var")
    running = (mean, var) if spread is None and isinstance(mean, Tensor) and isinstance(var, Tensor) else None
    eps = float(call.get("eps", 0.0 if spread is None else spread.eps))
    place = (call.node.name, call.node.inputs()[0], call.node.owner)
    return Site(*place, kind, spread, call.get("weight"), call.get("bias"), running, eps, x.shape)


def _division_below(expr: Expr, node: str) -> Division | None:
    """Return the division created by a node itself, or ``None`` if the node is linear."""
    while expr.op is not None:
        if len(expr.inputs) != 1:
            return None
        expr = expr.inputs[0]
    return expr.atom if isinstance(expr.atom, Division) and expr.atom.name == node else None
