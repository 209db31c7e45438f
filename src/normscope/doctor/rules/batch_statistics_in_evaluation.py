"""NS204: BatchNorm that uses the statistics of the batch in evaluation."""

from collections.abc import Iterator

from normscope.doctor.modules import batch_norms
from normscope.doctor.neighbours import reach
from normscope.doctor.rule import Certainty, Findings, Rule, Severity, Subject, place_of
from normscope.doctor.second_run import JOINS
from normscope.graph.ir import Graph, Node
from normscope.graph.recognise import name_of

#: Averages, and operations that apply an average to samples.
_AVERAGES, _APPLIED = ("mean", "sum", "std", "var", "linalg_vector_norm", "norm"), ("div", "mul", "sub")


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield BatchNorm modules left in train mode, and normalizers over the batch axis in evaluation."""
    left = set()
    whole = subject.model.training
    for path, module in batch_norms(subject.model):
        if module.training and (not whole or subject.purpose == "inference"):
            left.add(path)
            while_ = "but is used for inference" if whole else "while the model is in evaluation"
            yield rule.finding(
                path,
                f"{type(module).__name__} is in train mode {while_}: its output depends on the other samples of the "
                "batch, and its running statistics move",
                fix="call model.eval() before inference"
                if whole
                else "call model.eval() after everything is built, and do not override train() of parts",
            )
    for site in subject.sites():
        spread = site.spread
        if spread is None or 0 not in spread.axes or len(site.shape) < 2 or place_of(site) in left:
            continue
        yield rule.finding(
            place_of(site),
            f"{site.kind} uses the statistics of the batch in evaluation: one sample's output depends on the others",
            {"eps": site.eps},
            severity=Severity.WARNING,
            fix="keep running statistics (track_running_stats=True), or use a normalizer of single samples",
        )
    reported = {s.owner for s in subject.sites()} | left
    for node in batch_averages(subject.graph):
        if node.owner not in reported:
            reported.add(node.owner)
            yield rule.finding(
                node.owner or node.name,
                f"{name_of(node)} over the whole batch scales or shifts every sample in evaluation: one sample's "
                "output depends on the others",
                {"operation": name_of(node)},
                severity=Severity.WARNING,
                fix="take the mean of each sample: pass the axes, without the first",
            )
    met = None if subject.second_run.coupling is None else subject.second_run.coupling.culprit()
    if met is not None and met.owner not in reported:
        intended = name_of(met) in JOINS
        unless = "; if its first axis does not hold samples, this is fine" if intended else ""
        yield rule.finding(
            met.owner or met.name,
            f"{name_of(met)} couples the samples of a batch, also in evaluation: without the others, the output of a "
            f"sample changes{unless}",
            {"operation": name_of(met)},
            severity=Severity.INFO if intended else Severity.WARNING,
            certainty=Certainty.MEASURED,
            fix="let it act on each sample separately (the first axis holds the samples), or use a value stored from "
            "training",
        )


def batch_averages(graph: Graph) -> Iterator[Node]:
    """Yield the averages over the sample axis that are then applied to samples, as a factor or a shift.

    >>> import torch
    >>> from torch import nn
    >>> from normscope.graph.capture import capture
    >>> from normscope.graph.inputs import ModelInputs
    >>> class Scaled(nn.Module):
    ...     def forward(self, x):
    ...         return x / x.abs().mean()
    >>> [name_of(n) for n in batch_averages(capture(Scaled(), ModelInputs((torch.rand(4, 3),))).graph)]
    ['mean']
    """
    users = graph.users()
    rows = {n.name for n in graph if n.name in graph.moving and n.shape and n.shape[0] == -1}  # one entry per sample
    for node in graph:
        source = node.inputs()[:1]
        if name_of(node) not in _AVERAGES or not set(source) & rows or -1 in (node.shape or ()):
            continue
        near = reach([node.name], users, without=rows)  # through operations on the average only
        ends = {user for name in near for user in users[name]} & rows
        if any(name_of(graph[end]) in _APPLIED for end in ends):
            yield node


RULE = Rule(
    code="NS204",
    title="batch statistics in evaluation",
    severity=Severity.ERROR,
    certainty=Certainty.PROVED,
    statement="normscope F2",
    why="In evaluation, BatchNorm should be a fixed affine map. With batch statistics, the result for one sample "
    "changes with its neighbours, accuracy depends on the order of the data, and running statistics keep moving. The "
    "same is true of any operation along the sample axis (a standard deviation over the batch, a view that mixes "
    "samples): with data, samples are run with and without the rest of their batch, and the results are compared.",
    effect="the result for one sample changes with the rest of its batch",
    fix="call model.eval(), and keep running statistics",
    example="model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8)).eval()\nmodel[1].train()",
    good="model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8)).eval()",
    needs=(),
    threads=(
        "yunjey/pytorch-tutorial/issues/62",
        "uci-cbcl/UFold/issues/18",
        "dragen1860/MAML-Pytorch/issues/44",
        "facebookresearch/pytorch_GAN_zoo/issues/118",
        "xuexingyu24/License_Plate_Detection_Pytorch/issues/22",
    ),
)
