"""NS217: a model in evaluation mode while it is trained."""

from normscope.doctor.modules import batch_norms
from normscope.doctor.rule import Certainty, Findings, Rule, RunHistory, Severity, Subject
from normscope.doctor.rules.frozen_in_train_mode import is_frozen

#: Consecutive probes that must agree.
PROBES = 2


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield the first trained BatchNorm of a model in evaluation mode whose purpose is training."""
    if subject.purpose != "train" or subject.model.training:
        return
    trained = [path for path, bn in batch_norms(subject.model) if not is_frozen(bn)]
    if trained:
        yield rule.finding(
            trained[0],
            f"the model is in evaluation mode: its {len(trained)} BatchNorm layers use their running statistics and do "
            "not update them",
            {"layers": len(trained)},
        )


def check_history(rule: Rule, history: RunHistory) -> Findings:
    """Yield the layers that were in train mode at one probe and in evaluation mode at all later ones."""
    for metric in history.metrics("training"):
        modes = [(step, value) for step, value in metric.points if step > 0]
        trained = max((i for i, (_, value) in enumerate(modes) if value > 0), default=-1)
        after = modes[trained + 1 :]
        if trained < 0 or len(after) < PROBES:
            continue
        since = after[0][0]
        yield rule.finding(
            metric.place,
            f"it was trained in train mode but has been in evaluation mode at every probe since step {since}: its "
            "statistics do not change while the weights do",
            {"since": int(since)},
            severity=Severity.WARNING,
            certainty=Certainty.MEASURED,
        )


RULE = Rule(
    code="NS217",
    title="model in evaluation mode while it trains",
    severity=Severity.INFO,
    certainty=Certainty.PROVED,
    why="A validation loop calls model.eval(), and nothing calls model.train() afterwards. Training continues with "
    "dropout off and with running statistics instead of those of the batch, which no longer follow the weights.",
    effect="the loss falls more slowly or diverges after the first validation; dropout does nothing",
    fix="call model.train() at the beginning of every epoch, or after every validation",
    example="model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 2)).eval()\n"
    "options = {'purpose': 'train'}",
    good="model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 2)).train()\n"
    "options = {'purpose': 'train'}",
    needs=("purpose",),
    metrics=("training",),
    threads=("facebookresearch/clevr-iep/pull/22",),
)
