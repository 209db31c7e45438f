"""What the stabilizers of normalizers do to scale invariance: the small radial gradient that eps > 0 leaves."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from normscope.geometry.candidates.scales import Scales
from normscope.geometry.function import Function, written_out
from normscope.geometry.groups import Family, Point
from normscope.geometry.labelling import Label, Labelling
from normscope.graph.ir import Node, Ref
from normscope.graph.recognise import name_of
from normscope.operators.registry import bind

_NORMALIZERS = ("batch_norm", "instance_norm", "layer_norm", "rms_norm", "group_norm")


def _share(node: Node, source: Tensor) -> Tensor:
    """Return ``eps/(sigma^2 + eps)`` for every entry of what a normalizer reads."""
    given = bind(node.op, list(node.args), dict(node.kwargs))
    eps = float(given.get("eps") or 0.0)
    if not eps or (name_of(node) == "batch_norm" and not given["training"]):
        return torch.zeros(())
    spread = _spread(node, source)
    return eps / (spread + eps)


def _spread(node: Node, source: Tensor) -> Tensor:
    """Return the variance, or mean square, by which a normalizer divides, as it broadcasts over what it reads."""
    given = bind(node.op, list(node.args), dict(node.kwargs))
    name = name_of(node)
    if name == "group_norm":
        view = source.reshape(len(source), given["num_groups"], -1)
        return view.var(-1, keepdim=True, correction=0).expand(view.shape).reshape(source.shape)
    if name in ("layer_norm", "rms_norm"):
        dims = tuple(range(source.ndim - len(given["normalized_shape"]), source.ndim))
    else:
        dims = tuple(d for d in range(source.ndim) if d > 1 or (d == 0 and name == "batch_norm"))
    if name == "rms_norm":
        return source.square().mean(dims, keepdim=True)
    return source.var(dims, keepdim=True, correction=0)


def reads_constant(function: Function) -> bool:
    """Return whether a normalizer reads a channel that is constant but for rounding, so that it needs its eps."""
    found = False

    def visit(node: Node, value: Any, values: Mapping[str, Any]) -> None:
        nonlocal found
        if name_of(node) in _NORMALIZERS and not (name_of(node) == "batch_norm" and not node.args[5]):
            source = values[node.args[0].name]
            found = found or bool((_spread(node, source) <= 1e-28 * source.square().max()).any())

    with torch.no_grad():
        function.outputs(function.point, visit)
    return found


def _shift(node: Node, source: Tensor, function: Function) -> Tensor:
    """Return the shift of a normalizer as it is added."""
    given = bind(node.op, list(node.args), dict(node.kwargs))
    bias = given.get("bias")
    if not isinstance(bias, Ref):
        return torch.zeros(())
    value = function.tensors[function.canonical(function.graph[bias.name].target)]
    if name_of(node) == "layer_norm":
        return value
    return value.reshape(-1, *(1,) * (source.ndim - 2))


def stabilizer_breaking(
    function: Function,
    walk: Labelling,
    chosen: Sequence[tuple[Family, Tensor]],
    seed: int = 0,
    fields: Sequence[Point] | None = None,
) -> list[tuple[float | None, float]]:
    r"""Return ``<grad L, X>`` with the model's own eps for each family and coefficients, as predicted and as measured.

    A normalizer gives the same for ``(c x, c^2 eps)`` as for ``(x, eps)``, so that ``<grad L, X>`` is the sum over all
    normalizers of ``sum lambda (eps/(sigma^2 + eps)) <dL/dout, out - beta>``, ``lambda`` being the rate at which its
    input is scaled: for BatchNorm ``(eps/(sigma^2 + eps)) gamma dL/dgamma`` per channel. A normalizer that is written
    out as ``rsqrt(v + eps)`` adds ``-eps <dL/d(v + eps), rate of v>``. Nothing is predicted for families other than
    scales.
    """
    targets = function.targets(seed)
    leaves = {name: value.clone().requires_grad_() for name, value in function.point.items()}
    kept: list[tuple[Node, Tensor, Tensor]] = []
    added = written_out(function.graph)

    def visit(node: Node, value: Any, values: Mapping[str, Any]) -> None:
        if isinstance(value, Tensor) and value.requires_grad and (name_of(node) in _NORMALIZERS or node.name in added):
            kept.append((node, values[node.args[0].name].detach(), value))

    loss = function.loss_of(function.outputs(leaves, visit), targets)
    gradient = torch.autograd.grad(loss, [*leaves.values(), *(v for _, _, v in kept)], allow_unused=True)
    by_name = dict(zip(leaves, gradient, strict=False))
    shares: list[tuple[Tensor, Tensor]] = []
    for (node, source, value), back in zip(kept, gradient[len(leaves) :], strict=True):
        state = walk.states[node.args[0].name]
        if back is not None and isinstance(state, Label) and node.name in added:
            shares.append((state.labels.clamp_min(0).expand(source.shape), -added[node.name] * back))
        elif back is not None and isinstance(state, Label):
            left = _share(node, source) * back * (value.detach() - _shift(node, source, function))
            shares.append((state.labels.clamp_min(0).reshape(source.shape), left.expand(source.shape)))
    found: list[tuple[float | None, float]] = []
    fields = (
        [family.field(function.point, coefficients) for family, coefficients in chosen] if fields is None else fields
    )
    for (family, coefficients), field in zip(chosen, fields, strict=True):
        measured = sum(float((by_name[n] * v).sum()) for n, v in field.items() if by_name[n] is not None)
        if not isinstance(family, Scales):
            found.append((None, measured))
            continue
        rates = family.of_labels(coefficients)
        found.append((sum(float((rates[labels] * left).sum()) for labels, left in shares), measured))
    return found
