"""NS212: a momentum of BatchNorm that keeps mostly the last batch, or never updates."""

from normscope.doctor.modules import batch_norms
from normscope.doctor.rule import Certainty, Findings, Rule, Subject

#: With this momentum the last batch weighs as much as all before it.
LARGE = 0.5


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield every BatchNorm with such a momentum."""
    for path, bn in batch_norms(subject.model):
        momentum = bn.momentum
        if momentum is None or bn.running_mean is None or 0 < momentum < LARGE:
            continue
        if momentum <= 0:
            text = f"momentum={momentum:g}: running statistics are never updated"
            fix = "use the default 0.1; to freeze the statistics, put the layer in evaluation mode"
        else:
            text = (
                f"momentum={momentum:g}: {momentum:.0%} of the running statistics is the last batch; in PyTorch, "
                f"momentum is the weight of the new value, so {momentum:g} of another framework is {1 - momentum:.2g} "
                "here"
            )
            fix = f"momentum={1 - momentum:.2g}" if momentum < 1 else "use the default 0.1"
        yield rule.finding(path, text, {"momentum": float(momentum)}, fix=fix)


RULE = Rule(
    code="NS212",
    title="momentum of BatchNorm at or above 0.5, or zero",
    certainty=Certainty.PROVED,
    statement="running = (1 - momentum) running + momentum batch",
    why="PyTorch's momentum is the weight of the new batch (0.1 by default); in TensorFlow and Keras it is the weight "
    "of the past (0.9, 0.99). A value copied from there makes the running statistics those of the last batch alone. "
    "Zero freezes them at their current values.",
    effect="evaluation depends on which batch came last, and is much worse than training",
    fix="use one minus the value: momentum=0.1 or 0.01",
    example="model = nn.Sequential(nn.Linear(8, 4, bias=False), nn.BatchNorm1d(4, momentum=0.99))",
    good="model = nn.Sequential(nn.Linear(8, 4, bias=False), nn.BatchNorm1d(4, momentum=0.01))",
    needs=(),
    not_for=("inference",),
    threads=("pytorch/vision/issues/8250", "Cadene/pretrained-models.pytorch/issues/44",
             "Cadene/pretrained-models.pytorch/issues/5", "kazuto1011/deeplab-pytorch/issues/79"),
)  # fmt: skip
