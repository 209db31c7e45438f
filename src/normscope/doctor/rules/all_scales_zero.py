"""NS603: a normalizer whose scales are all zero."""

from normscope.doctor.modules import batch_norms
from normscope.doctor.neighbours import reach
from normscope.doctor.rule import Certainty, Findings, Rule, Severity, Subject, place_of
from normscope.doctor.rules.initial_statistics import is_new, is_trained


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield these normalizers: an error if every path passes through, a warning if trained, otherwise a remark."""
    graph = subject.graph
    users = graph.users()
    inputs = [n.name for n in graph if n.op == "input"]
    (output,) = (n.name for n in graph if n.op == "output")
    tracking = [bn for _, bn in batch_norms(subject.model) if bn.running_mean is not None]
    trained = any(is_trained(bn) or not is_new(bn) for bn in tracking)
    for site in subject.sites():
        scale = subject.scale_of(site)
        if scale is None or bool((scale != 0).any()):
            continue
        fix = ""
        if output not in reach(inputs, users, without=[site.node]):
            severity = Severity.ERROR
            rest = ", and everything passes through it: the output does not depend on the input"
        elif trained:
            severity, rest = Severity.WARNING, " in a trained network: the branch does nothing"
        else:
            severity, rest = Severity.INFO, " at initialization: the branch is closed"
            fix = "nothing to do: branches that start closed open during training"
        text = f"all {scale.numel()} scales of this {site.kind} are zero{rest}"
        yield rule.finding(place_of(site), text, {"channels": scale.numel()}, severity=severity, fix=fix)


RULE = Rule(
    code="NS603",
    title="all scales of a normalizer are zero",
    certainty=Certainty.PROVED,
    why="A scale of zero makes the output of a normalizer equal to its shift. The last normalizer of a residual branch "
    "may start this way and opens during training. In a trained network the branch was pruned, lost in loading or "
    "never trained; without a path around it, the network is constant.",
    effect="the layers of the branch are dead weight; without a path around it, nothing is learned",
    fix="initialize the scale to one, or remove the branch",
    example="model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))\n"
    "nn.init.zeros_(model[1].weight)",
    good="model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))",
    threads=("tensorpack/tensorpack/issues/420", "jack-willturner/batchnorm-pruning/issues/1"),
    explains=("NS601", "NS604", "NS502"),
)
