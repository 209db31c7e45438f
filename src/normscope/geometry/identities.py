r"""What a symmetry says about gradient and Hessian of a loss, and what the stabilizers of normalizers make of it.

Along a symmetry ``X(theta)`` the number ``phi(theta) = <grad L, X>`` vanishes everywhere, so its gradient
``H X + (DX)^T grad L`` does too: ``<w, grad L> = 0`` and ``H w = -grad L`` for a scale, ``H s = 0`` for a shift.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from normscope.geometry.certificate import coefficients_of
from normscope.geometry.function import Function
from normscope.geometry.groups import Certificate, Family, Group, Point, length
from normscope.geometry.labelling import Labelling
from normscope.geometry.stabilizers import stabilizer_breaking

Chosen = tuple[Family, Tensor]


def identities(exact: Function, families: Sequence[Family], seed: int = 0) -> list[tuple[float, float]]:
    r"""Return ``|<grad L, X>|/(||grad L|| ||X||)`` and ``||H X + (DX)^T grad L||/||grad L||`` for each family.

    The norm of the gradient is that on the parameters the family moves. One product with the Hessian each.

    Args:
        exact: the function without stabilizers.
        families: directions along which it does not change.
        seed: of the targets of the loss and of the coefficients.
    """
    return [_identity(exact, [(family, coefficients_of(family, seed))], seed)[:2] for family in families]


def _identity(exact: Function, chosen: Sequence[Chosen], seed: int) -> tuple[float, float, list[Point]]:
    """Return both numbers for the sum of several directions, and these."""
    leaves = {name: value.clone().requires_grad_() for name, value in exact.point.items()}
    values = list(leaves.values())
    gradient = torch.autograd.grad(
        exact.value(leaves, exact.targets(seed)), values, create_graph=True, allow_unused=True, materialize_grads=True
    )
    by_name = dict(zip(leaves, gradient, strict=True))
    fields = [family.field(leaves, coefficients) for family, coefficients in chosen]
    field: dict[str, Tensor] = {}
    for one in fields:
        for name, value in one.items():
            field[name] = field[name] + value if name in field else value
    plain: list[Point] = [{name: value.detach() for name, value in one.items()} for one in fields]
    whole = length({name: value.detach() for name, value in by_name.items()})
    # what is cancelled entirely has a gradient of rounding, which is compared with that of the other parameters
    size = max(length({name: by_name[name].detach() for name in field}), 1e-6 * whole)
    if not size:
        return 0.0, 0.0, plain
    along = torch.stack([(by_name[name] * value).sum() for name, value in field.items()]).sum()
    second = torch.autograd.grad(along, values, allow_unused=True, materialize_grads=True)
    reach = length({name: value.detach() for name, value in field.items()})
    left = length(dict(zip(leaves, second, strict=True)))
    return abs(float(along.detach())) / (size * reach or 1.0), left / size, plain


def with_identities(
    function: Function, exact: Function, walk: Labelling, groups: list[Group], seed: int
) -> list[Group]:
    """Return groups whose certificates also hold the identities and what the model's own eps leaves of them.

    All groups share one product with the Hessian, along the sum of one direction of each, so that a number holds for
    every group, and one gradient with eps. Where the network cannot be differentiated twice the fields stay empty.
    """
    chosen = {i: (g.family, coefficients_of(g.family, seed + i)) for i, g in enumerate(groups) if g.family is not None}
    try:
        gradient, hessian, fields = _identity(exact, list(chosen.values()), seed)
        broken = stabilizer_breaking(function, walk, list(chosen.values()), seed, fields)
    except (RuntimeError, NotImplementedError):  # an operation without a second derivative
        return groups
    found = list(groups)
    for i, (predicted, measured) in zip(chosen, broken, strict=True):
        proof = groups[i].certificate or Certificate(0.0, 0.0)
        found[i] = replace(
            groups[i],
            certificate=replace(
                proof, gradient=gradient, hessian=hessian, broken=measured, predicted=predicted,
                exact=exact is not function,
            ),
        )  # fmt: skip
    return found
