"""NS215: dropout right before BatchNorm."""

from normscope.doctor.neighbours import LAYERS, chain_before
from normscope.doctor.rule import Certainty, Findings, Rule, Subject, drop_rate, place_of
from normscope.graph.recognise import name_of


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield every BatchNorm after dropout, with only activations and views between them."""
    graph = subject.graph
    for site in subject.sites():
        if site.kind != "batch_norm":
            continue
        for node in (graph[site.source], *chain_before(graph, site.source)):
            rate = drop_rate(node)
            if rate > 0:
                factor = 1 / (1 - rate) if rate < 1 else float("inf")
                yield rule.finding(
                    place_of(site),
                    f"dropout ({rate:g}) comes right before this batch_norm: second moments are up to {factor:.3g} "
                    "times larger in training than in evaluation, and the running variance is that of training",
                    {"rate": rate, "factor": factor},
                )
            if rate > 0 or name_of(node) in LAYERS or node.op == "input" or "norm" in node.op:
                break


RULE = Rule(
    code="NS215",
    title="dropout right before BatchNorm",
    certainty=Certainty.LIKELY,
    statement="E (x m / (1 - p))^2 = E x^2 / (1 - p) for a mask m kept with probability 1 - p",
    why="Dropout scales what it keeps by 1/(1 - p), so that means stay the same and second moments grow. BatchNorm "
    "learns the variance of training and divides by it in evaluation, where dropout is off.",
    effect="a shift of variance between training and evaluation, which costs accuracy",
    fix="put dropout after the normalizer, or after the last one",
    example="model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 2))",
    good="model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))",
    not_for=("inference",),
    threads=("luigibonati/mlcolvar/pull/205", "FengAoWang/TMO-Net/issues/12"),
)
