"""NS210: a negative running variance."""

from normscope.doctor.modules import batch_norms, listed_channels
from normscope.doctor.rule import Certainty, Findings, Rule, Severity, Subject


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield every BatchNorm with such channels."""
    for path, bn in batch_norms(subject.model):
        variance = bn.running_var
        if variance is None:
            continue
        wrong = (variance < 0).nonzero().flatten().tolist()
        if wrong:
            least = float(variance.min())
            what = "its root is NaN" if least + bn.eps < 0 else "only eps keeps its root real"
            text = f"running_var of {listed_channels(wrong)} is negative (smallest {least:.3g}): {what}"
            yield rule.finding(path, text, {"channels": len(wrong), "least": least, "eps": bn.eps})


RULE = Rule(
    code="NS210",
    title="negative running variance",
    severity=Severity.ERROR,
    certainty=Certainty.PROVED,
    why="A variance is never negative. A negative running variance was written by something else: an extrapolating "
    "average of checkpoints, a momentum above one, a converter that subtracts eps, or arithmetic on a whole "
    "state_dict.",
    effect="evaluation returns NaN, or a channel amplified by up to 1/sqrt(eps)",
    fix="estimate the statistics again (train mode, momentum=None), and find what wrote them",
    example="model = nn.Sequential(nn.Linear(8, 4, bias=False), nn.BatchNorm1d(4)).eval()\nmodel[1].running_var[2] = "
    "-0.1",
    good="model = nn.Sequential(nn.Linear(8, 4, bias=False), nn.BatchNorm1d(4)).eval()\nmodel[1].running_var[2] = 0.1",
    needs=(),
    threads=("tensorflow/tensorflow/issues/18334", "facebookresearch/detectron2/pull/3160"),
    explains=("NS002", "NS203", "NS301", "NS303", "NS501", "NS504", "NS601"),
)
