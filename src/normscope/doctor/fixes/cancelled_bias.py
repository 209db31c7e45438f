"""Set cancelled biases to zero; BatchNorm's running mean absorbs them."""

import torch
from torch import Tensor

from normscope.doctor.fixes.change import CannotFix, Change, Draft
from normscope.doctor.rules.cancelled_bias import cancelling_sites
from normscope.doctor.structure import propagated
from normscope.doctor.subject import place_of
from normscope.operators.expression import Expr
from normscope.operators.site import Site

KIND = "drop-bias"


def drop_biases(draft: Draft) -> None:
    r"""Set every bias that normalizers cancel to zero.

    With running statistics :math:`\gamma (M(x + b) - \mu)/\sigma` is :math:`\gamma (M x - (\mu - M b))/\sigma`: the
    running mean changes by what the bias adds to it. A normalizer with the statistics of its input needs no change.
    """
    places = {place_of(site) for site in draft.subject.sites()}
    for name, uses in cancelling_sites(draft.subject).items():
        expr, sites = uses[0]
        owner = expr.op.owner if expr.op is not None else ""
        if name in draft.state and bool((draft.state[name] != 0).any()):
            code = f"build {owner} with bias=False" if name.endswith(".bias") and owner not in places else ""
            draft.attempt(KIND, owner, _dropped, name, owner, expr, sites, code)


def _dropped(draft: Draft, name: str, owner: str, expr: Expr, sites: list[Site], code: str) -> Change:
    if not draft.is_used_once(name):
        raise CannotFix(f"{name} is used in several places, so no single running mean can absorb it")
    moved = _moved_means(draft, name, expr, sites)
    what = f"{name} set to zero" + (f"; {', '.join(sorted(moved))} absorbs it" if moved else "")
    new = {name: torch.zeros_like(draft.state[name]), **moved}
    return Change(KIND, owner, what, new, code, "unchanged: the bias had no gradient")


def _moved_means(draft: Draft, name: str, expr: Expr, sites: list[Site]) -> dict[str, Tensor]:
    """Return the new running means of the normalizers that cancel a bias."""
    moved: dict[str, Tensor] = {}
    fixed = {s.node: s for s in draft.subject.sites() if s.running is not None}
    bias = None if expr.op is None else expr.op.bias
    if bias is None:
        raise CannotFix(f"{name} is not added by a linear operation")
    present = draft.double(name).reshape(bias.shape).cpu()
    for site in sites:
        running = fixed.get(site.node)
        if running is None or running.running is None:
            continue  # it subtracts the mean of its input itself
        mean = draft.name_of(running.running[0])
        if not mean or not draft.is_used_once(mean):
            raise CannotFix(f"the running mean of {place_of(site)} is not a buffer of its own")
        source = draft.subject.structure.program.ends[site.node][0]
        arrived = propagated(expr, source, present.expand(expr.shape).clone())
        per_channel = arrived.movedim(1, 0).flatten(1)[:, 0] if arrived.ndim > 1 else arrived
        moved[mean] = draft.double(mean) - per_channel.reshape(draft.state[mean].shape).to(draft.state[mean].device)
    return moved
