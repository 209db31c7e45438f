"""Fold BatchNorm with running statistics into the linear layer before it."""

import torch
from torch import Tensor

from normscope.doctor.fixes.change import CannotFix, Change, Draft
from normscope.doctor.subject import place_of
from normscope.operators.expression import LinearOp
from normscope.operators.site import Site

KIND = "fold"


def fold_normalizers(draft: Draft) -> None:
    r"""Fold every BatchNorm that directly follows a linear layer into it.

    :math:`\gamma (W x + b - \mu)/\sigma + \beta = W' x + b'` with :math:`W' = \mathrm{diag}(\gamma/\sigma) W` and
    :math:`b' = \gamma (b - \mu)/\sigma + \beta`. The normalizer becomes the identity (variance ``1 - eps``), or keeps
    the shift if the layer has no bias, so that the weights fit the unchanged code.
    """
    for site in draft.subject.sites():
        if site.running is not None and site.node in draft.subject.program.ends:
            draft.attempt(KIND, place_of(site), _folded, site)


def _layer_before(draft: Draft, site: Site) -> LinearOp:
    """Return the layer that a normalizer can be folded into."""
    layer, out = draft.subject.program.ends[site.node]
    op = layer.op if any(e.id == layer.id for e in draft.subject.program.layers) else None
    if op is None or out is None:
        raise CannotFix("there is no linear layer directly before it")
    if any(reader.id != out.id for reader in draft.subject.evaluation.parents.get(layer.id, [])):
        raise CannotFix("something else reads its input")
    biases = [] if op.bias is None else [draft.name_of(op.bias) or "?"]
    names = [op.weight_name, *biases, *_buffers(draft, site)]
    if any(n not in draft.state for n in names) or not draft.is_plain(op):
        raise CannotFix("the weight before it is computed from others (a parametrization), or is not in the state dict")
    shared = [n for n in names if not draft.is_used_once(n)]
    if shared:
        raise CannotFix(f"{shared[0]} is used in several places")
    if op.data.get("transposed") and op.data.get("groups", 1) > 1:
        raise CannotFix("a transposed convolution with groups")
    if op.kind == "matrix" and op.data.get("axis", -1) != -1:
        raise CannotFix("the matrix does not act on the last axis")
    if op.kind == "matrix" and len(layer.shape) != 2:
        raise CannotFix("its channels are not the outputs of the linear layer")
    return op


def _buffers(draft: Draft, site: Site) -> list[str]:
    """Return the names of a normalizer's tensors: statistics, scale, shift."""
    mean, variance = site.running or (None, None)
    given = [mean, variance, *(t for t in (site.gamma, site.beta) if t is not None)]
    return [draft.name_of(t) or "?" for t in given]


def _folded(draft: Draft, site: Site) -> Change:
    op = _layer_before(draft, site)
    mean, variance = _buffers(draft, site)[:2]
    gamma, beta = draft.name_of(site.gamma), draft.name_of(site.beta)
    mu, v = draft.double(mean), draft.double(variance)
    scale = (v + site.eps).rsqrt() * (draft.double(gamma) if gamma else 1.0)
    weight = draft.double(op.weight_name)
    axis = 1 if op.data.get("transposed") else 0
    shape = [-1 if i == axis else 1 for i in range(weight.ndim)]
    new: dict[str, Tensor] = {
        op.weight_name: weight * scale.reshape(shape),
        variance: torch.full_like(v, 1.0 - site.eps),
        mean: torch.zeros_like(mu),
    }
    if gamma:
        new[gamma] = torch.ones_like(scale)
    bias = draft.name_of(op.bias)
    shift = -mu * scale + (draft.double(beta) if beta else 0.0)
    code = f"replace {site.owner} by nn.Identity()"
    if bias:
        new[bias] = draft.double(bias) * scale + shift
        if beta:
            new[beta] = torch.zeros_like(shift)
    elif beta:
        new[beta] = shift
        code = f"build {op.owner} with bias=True and move {beta} to {op.owner}.bias; then {code}"
    else:
        new[mean] = -shift
        code = f"build {op.owner} with bias=True, set {op.owner}.bias = -{mean}; then {code}"
    return Change(
        KIND,
        site.owner,
        f"folded into {op.weight_name}; it is now the identity" + ("" if bias else " except for its shift"),
        new,
        code,
        "changed: in train mode the normalizer would divide by the batch statistics and its scale is gone. For "
        "inference only",
    )
