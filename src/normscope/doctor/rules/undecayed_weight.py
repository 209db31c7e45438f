"""NS402: scale-invariant weights without weight decay."""

from normscope.doctor.modules import batch_norms
from normscope.doctor.rule import Certainty, Findings, Rule, Severity, Subject
from normscope.doctor.rules.decayed_normalizer import decay_of


def invariant_weights(subject: Subject) -> dict[str, str]:
    """Return the weights whose scale does not change the network in training, by name, and their modules.

    A weight that is used in several places must be invariant in each.
    """
    structure = subject.structure
    good: set[int] = set()
    for normalized in structure.normalized_layers:
        if normalized.layer.id not in good and structure.is_scale_invariant(normalized):
            good.add(normalized.layer.id)
    layers = [(e.id, e.op) for e in structure.program.layers if e.op is not None and e.op.weight_name]
    bad = {op.weight_name for key, op in layers if key not in good}
    found: dict[str, str] = {}
    for _, op in layers:
        if op.weight_name not in bad:
            found.setdefault(op.weight_name, op.owner)
    return found


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield one finding with the number of such weights, unless a BatchNorm stays in evaluation mode."""
    if subject.model.training and not all(bn.training for _, bn in batch_norms(subject.model)):
        return  # it divides by stored statistics, so the scale of the weight before it matters
    decay = decay_of(subject)
    free = {n: o for n, o in invariant_weights(subject).items() if decay.get(n) == 0.0}
    if free:
        name, owner = next(iter(free.items()))
        which = f"{name} is" if len(free) == 1 else f"{name} and {len(free) - 1} more weights are"
        yield rule.finding(
            owner,
            f"{which} scale-invariant without weight decay: the norm only grows, and the effective step lr/||w||^2 "
            "only shrinks",
            {"weights": len(free), "first": name},
        )


RULE = Rule(
    code="NS402",
    title="scale-invariant weight without decay",
    severity=Severity.INFO,
    certainty=Certainty.PROVED,
    statement="<w, grad> = 0, so ||w - lr grad||^2 = ||w||^2 + lr^2 ||grad||^2",
    why="The gradient of a scale-invariant weight is orthogonal to it: every step of gradient descent makes it "
    "longer, and the longer it is, the less a step of the same size turns it. Without decay nothing balances this; "
    "the effective learning rate falls whatever the schedule is.",
    effect="the effective learning rate falls whatever the schedule is",
    fix="apply weight decay to these weights (or normalize them after each step), or be aware that the rate decays by "
    "itself",
    example="model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.LayerNorm(8))\n"
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
    good="model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.LayerNorm(8))\n"
    "groups = [{'params': [model[0].weight], 'weight_decay': 5e-4}, {'params': model[1].parameters()}]\n"
    "optimizer = torch.optim.SGD(groups, lr=0.1)",
    needs=("program", "optimizer"),
    not_for=("inference",),
)
