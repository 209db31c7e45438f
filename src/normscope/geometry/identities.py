r"""Identities of gradient and Hessian that follow from a symmetry, and how the eps of normalizers breaks them.

Along a symmetry ``X(theta)`` the number ``phi(theta) = <grad L, X>`` vanishes everywhere, so its gradient
``H X + (DX)^T grad L`` does too: ``<w, grad L> = 0`` and ``H w = -grad L`` for a scale, ``H s = 0`` for a shift.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from normscope.geometry.candidates.scales import ChannelScales
from normscope.geometry.certificate import coefficients_of
from normscope.geometry.channels.network import LabelledNetwork, TensorLabels
from normscope.geometry.flow import Point
from normscope.geometry.function import ModelFunction, written_out
from normscope.geometry.groups import Certificate, SymmetryFamily, SymmetryGroup, length, total
from normscope.graph.ir import Node, Ref
from normscope.graph.recognise import name_of
from normscope.operators.registry import arguments_of

#: A family and coefficients of it.
Chosen = tuple[SymmetryFamily, Tensor]
_NORMALIZERS = ("batch_norm", "instance_norm", "layer_norm", "rms_norm", "group_norm")


def identities(exact: ModelFunction, families: Sequence[SymmetryFamily], seed: int = 0) -> list[tuple[float, float]]:
    r"""Return ``|<grad L, X>|/(||grad L|| ||X||)`` and ``||H X + (DX)^T grad L||/||grad L||`` for each family.

    The norm of the gradient is that on the parameters the family moves. One product with the Hessian each.

    Args:
        exact: the function without stabilizers.
        families: directions along which it does not change.
        seed: of the targets of the loss and of the coefficients.
    """
    return [_identity(exact, [(family, coefficients_of(family, seed))], seed)[:2] for family in families]


def _identity(exact: ModelFunction, chosen: Sequence[Chosen], seed: int) -> tuple[float, float, list[Point]]:
    """Return both numbers for the sum of several directions, and the directions."""
    leaves = {name: value.clone().requires_grad_() for name, value in exact.point.items()}
    values = list(leaves.values())
    gradient = torch.autograd.grad(
        exact.value(leaves, exact.targets(seed)), values, create_graph=True, allow_unused=True, materialize_grads=True
    )
    by_name = dict(zip(leaves, gradient, strict=True))
    fields = [family.field(leaves, coefficients) for family, coefficients in chosen]
    field = total(fields)
    plain: list[Point] = [{name: value.detach() for name, value in one.items()} for one in fields]
    whole = length({name: value.detach() for name, value in by_name.items()})
    # a gradient that cancels entirely is rounding, so it is compared with that of the other parameters
    size = max(length({name: by_name[name].detach() for name in field}), 1e-6 * whole)
    if not size:
        return 0.0, 0.0, plain
    along = torch.stack([(by_name[name] * value).sum() for name, value in field.items()]).sum()
    second = torch.autograd.grad(along, values, allow_unused=True, materialize_grads=True)
    reach = length({name: value.detach() for name, value in field.items()})
    left = length(dict(zip(leaves, second, strict=True)))
    return abs(float(along.detach())) / (size * reach or 1.0), left / size, plain


def with_identities(
    function: ModelFunction, exact: ModelFunction, net: LabelledNetwork, groups: list[SymmetryGroup], seed: int
) -> list[SymmetryGroup]:
    """Return the groups with the identities, with and without the model's eps, added to their certificates.

    All groups share one product with the Hessian, along the sum of one direction of each, so each number applies to
    every group, and one gradient with eps. Where the network cannot be differentiated twice the fields stay empty.
    """
    chosen = {i: (g.family, coefficients_of(g.family, seed + i)) for i, g in enumerate(groups) if g.family is not None}
    try:
        gradient, hessian, fields = _identity(exact, list(chosen.values()), seed)
        broken = stabilizer_breaking(function, net, list(chosen.values()), fields, seed)
    except (RuntimeError, NotImplementedError):  # an operation without a second derivative
        return groups
    found = list(groups)
    for i, (predicted, measured) in zip(chosen, broken, strict=True):
        proof = groups[i].certificate or Certificate(0.0, 0.0)
        proof = replace(proof, gradient=gradient, hessian=hessian, broken=measured, predicted=predicted)
        found[i] = replace(groups[i], certificate=replace(proof, exact=exact is not function))
    return found


def _spread(node: Node, source: Tensor) -> Tensor:
    """Return the variance, or mean square, by which a normalizer divides, as it broadcasts over what it reads."""
    given = arguments_of(node)
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


def reads_constant(function: ModelFunction) -> bool:
    """Return whether a normalizer reads a channel that is constant up to rounding, so that it needs its eps."""
    found = False

    def visit(node: Node, value: Any, values: Mapping[str, Any]) -> None:
        nonlocal found
        if name_of(node) in _NORMALIZERS and not (name_of(node) == "batch_norm" and not node.args[5]):
            source = values[node.args[0].name]
            found = found or bool((_spread(node, source) <= 1e-28 * source.square().max()).any())

    with torch.no_grad():
        function.outputs(function.point, visit)
    return found


def _shift(node: Node, source: Tensor, function: ModelFunction) -> Tensor:
    """Return the shift of a normalizer as it is added."""
    given = arguments_of(node)
    bias = given.get("bias")
    if not isinstance(bias, Ref):
        return torch.zeros(())
    value = function.tensors[function.canonical(function.graph[bias.name].target)]
    return value if name_of(node) == "layer_norm" else value.reshape(-1, *(1,) * (source.ndim - 2))


def stabilizer_breaking(
    function: ModelFunction, net: LabelledNetwork, chosen: Sequence[Chosen], fields: Sequence[Point], seed: int = 0
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
        state = net.states[node.args[0].name]
        if back is not None and isinstance(state, TensorLabels) and node.name in added:
            shares.append((state.labels.clamp_min(0).expand(source.shape), -added[node.name] * back))
        elif back is not None and isinstance(state, TensorLabels):
            given = arguments_of(node)
            eps = float(given.get("eps") or 0.0)
            if eps and given.get("training", True):  # with fixed statistics eps breaks nothing
                share = eps / (_spread(node, source) + eps)
                left = share * back * (value.detach() - _shift(node, source, function))
                shares.append((state.labels.clamp_min(0).reshape(source.shape), left.expand(source.shape)))
    found: list[tuple[float | None, float]] = []
    for (family, coefficients), field in zip(chosen, fields, strict=True):
        predicted = None
        if isinstance(family, ChannelScales):
            rates = family.of_labels(coefficients)
            predicted = sum((float((rates[labels] * left).sum()) for labels, left in shares), 0.0)
        measured = sum(float((by_name[n] * v).sum()) for n, v in field.items() if by_name[n] is not None)
        found.append((predicted, measured))
    return found
