"""NS101: a bias that the next normalizer subtracts."""

import torch

from normscope.doctor.rule import Certainty, Findings, Rule, Severity, Subject, place_of
from normscope.doctor.structure import ZERO, Structure, centred, propagated
from normscope.doctor.training_run import acting_in_training
from normscope.operators.expression import Expr, reached
from normscope.operators.normalizer import couples_samples
from normscope.operators.site import Site


def cancelling_sites(subject: Subject) -> dict[str, list[tuple[Expr, list[Site]]]]:
    """Return the biases that normalizers cancel, by name, with the expressions that add each and its normalizers.

    A bias ``b`` reaches a normalizer as ``M b`` with the linear map ``M`` between them, and is cancelled if ``M b`` is
    constant within every group, which is tested with random values for ``b``. A bias that is used in several places
    must be cancelled in each. Last, the model is run in training mode with other biases: a normalizer may be frozen
    there, or a bias read once more.
    """
    structure = subject.structure
    uses: dict[str, list[tuple[Expr, list[Site]]]] = {}
    for expr in structure.expressions:
        bias = None if expr.op is None else expr.op.bias
        if expr.op is None or bias is None or not bias.numel():
            continue
        name = subject.parameter_name(bias, expr.op.owner)
        if name:
            uses.setdefault(name, []).append((expr, sites_that_cancel(structure, expr)))
    cancelled = {  # dropout leaves a bias at some entries of a group and not at others
        name: found
        for name, found in uses.items()
        if all(sites for _, sites in found)
        and not any(subject.drops_between(name, site.node) for _, sites in found for site in sites)
    }
    if cancelled and subject.example is not None:
        for name in acting_in_training(subject.model, subject.example, cancelled):
            del cancelled[name]
    return cancelled


def sites_that_cancel(structure: Structure, expr: Expr) -> list[Site]:
    """Return the normalizers that cancel a bias, in order, if they do so on every path to an output, otherwise none."""
    outputs = {e.id for _, e in structure.program.outputs}
    met = reached([expr], lambda e: () if e.op is None else structure.parents.get(e.id, ()))
    atoms = {e.id for e in met if e.op is None}
    found = [(site, source) for site, source, atom in structure.sites() if atom.id in atoms]
    if len(found) < len(atoms) or any(e.op is not None and e.id in outputs for e in met):
        return []  # something else reads it
    return [site for site, _ in found] if all(vanishes(expr, *pair) for pair in found) else []


def vanishes(expr: Expr, site: Site, source: Expr) -> bool:
    """Return whether the centring of a normalizer cancels any bias that is added at an expression."""
    op, spread = expr.op, site.spread
    if op is None or op.bias is None or spread is None or not spread.centered:
        return False
    probe = torch.randn(op.bias.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    arrived = propagated(expr, source, probe.expand(expr.shape).clone())
    size = float(arrived.abs().max()) if arrived.numel() else 0.0
    # A bias that does not reach the normalizer is not cancelled by it.
    return size > 0 and float(centred(spread, arrived).abs().max()) <= ZERO * size


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield a finding for each bias."""
    shifts = {subject.parameter_name(s.beta, s.owner) for s in subject.sites() if s.beta is not None}
    for name, uses in cancelling_sites(subject).items():
        (expr, sites), *_ = uses
        if expr.op is None or expr.op.bias is None:
            continue
        owner, site, bias = expr.op.owner, sites[0], expr.op.bias
        largest = float(bias.detach().abs().max())
        when = " in training" if couples_samples(site.kind) else ""
        fix = ""
        if name in shifts:
            fix = "nothing to do: the shift of a normalizer comes with its scale"
        elif site.beta is not None and site.beta.numel() != bias.numel():
            fix = "normalize over the features instead: the shift of this normalizer is along another axis and does "
            fix += "not replace the bias"
        yield rule.finding(
            owner or name,
            f"{name} has no effect{when}: {site.kind} {place_of(site)} subtracts it",
            {"entries": bias.numel(), "largest": largest, "parameter": name, "normalizer": place_of(site)},
            severity=Severity.INFO if name in shifts else None,
            fix=fix,
        )


RULE = Rule(
    code="NS101",
    title="bias cancelled by a normalizer",
    certainty=Certainty.PROVED,
    statement="(x + b) - mean(x + b) = x - mean(x) if b is constant within a group",
    why="A centred normalizer subtracts the mean of each group. A bias that is the same for all entries of a group is "
    "subtracted too: its gradient is zero, weight decay shrinks it for nothing, and it costs memory and time. In "
    "evaluation it cancels against BatchNorm's running mean. Dropout in between is taken into account: it leaves the "
    "bias at some entries only. So that nothing else that happens only in training is missed, the model is run in "
    "training mode with other biases: none that changes its outputs is reported.",
    effect="none on accuracy: wasted parameters, memory and time",
    fix="build the layer with bias=False (the normalizer's own shift does the work), or run "
    "`normscope fix --only drop-bias` to move it into the running mean",
    example="model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16))",
    good="model = nn.Sequential(nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16))",
    threads=("milesial/Pytorch-UNet/pull/325", "4uiiurz1/pytorch-nested-unet/issues/39"),
)
