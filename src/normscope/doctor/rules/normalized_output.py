"""NS106: a normalizer right before the output."""

from normscope.doctor.neighbours import LAYERS, chain_before, skip_back
from normscope.doctor.rule import Certainty, Findings, Rule, Subject, place_of
from normscope.graph.ir import Ref
from normscope.graph.recognise import name_of

#: Larger outputs may be embeddings, which many networks normalize.
FEW = 16
#: With fewer layers, a model is part of a network.
FEWEST = 2
#: Operations that may follow the logits.
_ENDINGS = (
    "sigmoid", "softmax", "_softmax", "log_softmax", "_log_softmax", "tanh", "squeeze", "view", "flatten", "reshape",
    "clone", "contiguous", "detach", "alias", "mul", "add",
)  # fmt: skip

#: Operations that may stand between a layer and its normalizer.
_PASSING = ("view", "reshape", "flatten", "squeeze", "clone", "contiguous", "dropout", "to", "transpose", "permute")


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield the normalizers at the end of the network, if the output is too small for an embedding."""
    if len(subject.program.layers) < FEWEST:
        return
    graph = subject.graph
    sites = {s.node: s for s in subject.sites()}
    ends = [a.name for n in graph if n.op == "output" for a in n.args if isinstance(a, Ref)]
    for end in ends:
        for node in (graph[end], *chain_before(graph, end)):
            site = sites.get(node.name)
            if site is not None:
                axis = 1 if site.kind == "batch_norm" else len(site.shape) - 1
                plain = site.kind == "batch_norm" or len(site.shape) == 2
                few = plain and site.kind in ("batch_norm", "layer_norm", "rms_norm") and site.shape[axis] <= FEW
                # Pooled features and residual sums are not outputs of a head.
                if few and name_of(skip_back(graph, site.source, _PASSING)) in LAYERS:
                    yield rule.finding(
                        place_of(site),
                        f"{site.kind} is the last layer: it fixes the mean and variance of the {site.shape[axis]} "
                        "outputs, whatever the targets are",
                        {"outputs": site.shape[axis]},
                    )
                break
            if name_of(node) not in _ENDINGS and node.op != "getitem":
                break


RULE = Rule(
    code="NS106",
    title="normalizer right before the output",
    certainty=Certainty.LIKELY,
    why="A normalizer as the last layer fixes the mean and variance of the outputs over the batch, or over the "
    "outputs of a sample. Regression targets and the logits of a classifier have their own scale. Outputs of more "
    "than 16 entries are taken to be embeddings, which are normalized on purpose, and a single layer is taken to be "
    "part of a network; pooled features and residual sums do not count as outputs of a head.",
    effect="the network cannot fit the scale of its targets; with BatchNorm, predictions depend on the batch",
    fix="remove the normalizer after the last linear layer",
    example="model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1, bias=False), nn.BatchNorm1d(1))",
    good="model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))",
    not_for=("contrastive",),
    threads=("fastai/fastai2/issues/107", "Lab41/attalos/pull/89", "yaoing/DAN/issues/14"),
)
