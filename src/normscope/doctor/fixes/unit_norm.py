"""Rescale scale-invariant weights to norm one."""

import math

from torch import Tensor

from normscope.doctor.fixes.change import CannotFix, Change, Draft
from normscope.doctor.structure import NormalizedLayer
from normscope.doctor.subject import place_of
from normscope.operators.expression import LinearOp
from normscope.operators.site import Site

KIND = "unit-norm"
#: Largest relative change of a normalizer's denominator, well below the tolerance of the verification.
TOLERANCE = 1e-6
#: Norms this close to one are not changed.
NEAR_ONE = 1e-6


def unit_norms(draft: Draft) -> None:
    r"""Rescale every scale-invariant weight, followed directly by its normalizer, to Frobenius norm one.

    With running statistics, :math:`c (W x - \mu)/\sqrt{c^2 (v + \epsilon)}` is the same as before: the mean becomes
    :math:`c \mu` and the variance :math:`c^2 (v + \epsilon) - \epsilon`, if that is positive. With statistics of its
    own input, eps would have to become :math:`c^2 \epsilon`; that is a change of the code, so the weight is rescaled
    only if eps is zero or too small to matter on the data.
    """
    subject = draft.subject
    folded = {change.place for change in draft.changes if change.kind == "fold"}
    for normalized in subject.structure.normalized_layers:
        op = normalized.layer.op
        if op is not None and normalized.site.owner not in folded and subject.structure.is_scale_invariant(normalized):
            draft.attempt(KIND, op.owner, _rescaled, normalized, op)


def _rescaled(draft: Draft, normalized: NormalizedLayer, op: LinearOp) -> Change | None:
    """Return the change for one weight, or ``None`` if its norm is one."""
    name = op.weight_name
    if not draft.is_plain(op):
        raise CannotFix("its weight is computed from others (a parametrization)")
    if not draft.is_used_once(name) or normalized.source.id != normalized.layer.id:
        raise CannotFix(f"{name} is used in several places, or something is between it and its normalizer")
    norm = float(draft.double(name).norm())
    if norm == 0 or abs(norm - 1) < NEAR_ONE:
        return None
    c = 1.0 / norm
    site = next((s for s in draft.subject.sites() if s.node == normalized.site.node), None)
    if site is None:
        raise CannotFix("its normalizer behaves differently in evaluation")
    new: dict[str, Tensor] = {name: draft.double(name) * c}
    bias = draft.name_of(op.bias)
    if op.bias is not None:
        if not bias or not draft.is_used_once(bias):
            raise CannotFix("its bias is used in several places")
        new[bias] = draft.double(bias) * c
    note = ""
    if site.running is not None:
        new |= _statistics(draft, site, c)
    elif site.eps > 0:
        off = denominator_change(draft, site, c)
        needed = f"eps = {site.eps:g} of {place_of(site)} would have to become {site.eps * c * c:.3g}"
        if off is None:
            raise CannotFix(f"{needed}: pass data to see whether that matters")
        if off > TOLERANCE:
            raise CannotFix(
                f"{needed}, or the output would change by {off:.2g} (relative): set eps and rescale by hand"
            )
        note = f"; eps changes the output by at most {off:.2g} (relative) on the data"
    return Change(
        KIND,
        op.owner,
        f"{name} divided by its norm {1 / c:.6g}{note}",
        new,
        "",
        "changed: the same step turns a shorter weight further (effective rate lr/||w||^2)",
    )


def _statistics(draft: Draft, site: Site, c: float) -> dict[str, Tensor]:
    mean, variance = (draft.name_of(t) for t in site.running or (None, None))
    if not mean or not variance or not (draft.is_used_once(mean) and draft.is_used_once(variance)):
        raise CannotFix(f"the running statistics of {place_of(site)} are not buffers of their own")
    new = (draft.double(variance) + site.eps) * c * c - site.eps
    if not bool((new > 0).all()):
        raise CannotFix(
            f"the running variance of {place_of(site)} would have to be negative: eps = {site.eps:g} is too large"
        )
    return {mean: draft.double(mean) * c, variance: new}


def denominator_change(draft: Draft, site: Site, c: float) -> float | None:
    """Return the largest relative change of ``c / sqrt(c^2 v + eps)`` against ``1 / sqrt(v + eps)`` on the data."""
    variances = draft.subject.least_variances(site)
    if variances is None:
        return None
    v = float(variances.min())
    before, after = v + site.eps, v + site.eps / (c * c)
    return abs(math.sqrt(before / after) - 1.0) if min(before, after) > 0 else math.inf
