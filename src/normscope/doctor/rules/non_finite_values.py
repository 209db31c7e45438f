"""NS002: weights, or values on the data, that are not finite."""

from normscope.doctor.rule import Certainty, Findings, Rule, RunHistory, Severity, Subject


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield what is not finite."""
    if subject.non_finite:
        yield rule.finding(subject.non_finite_at, " ".join(subject.non_finite.split()), fix=subject.non_finite_fix)


def check_history(rule: Rule, history: RunHistory) -> Findings:
    """Yield the first layer that is not finite at the first probe that finds one, or a logged number that is not."""
    lost = history.first_non_finite("train")
    probes = {at for metric in history.metrics("clock") for at in metric.steps}
    metrics = [t for t in history.metrics("not_finite") if max(t.values) > 0]
    if metrics:
        begun = [next(step for step, entries in t.points if entries > 0) for t in metrics]
        step = min(begun)
        first = metrics[begun.index(step)]
        clean = max((at for at in probes if at < step), default=None)
        text = f"by step {step}" + ("" if clean is None else f" (the last probe without any was at step {clean})")
        text += " it is the first layer in the network with NaN or infinite values"
        if lost is not None and lost.steps[0] < step:
            text += f"; train/{lost.place} was first {lost.values[0]} at step {lost.steps[0]}"
        evidence = {"step": int(step), "entries": max(first.values)}
        yield rule.finding(first.place, text, evidence, certainty=Certainty.MEASURED)
        return
    if lost is not None:
        text = f"at step {lost.steps[0]} it is {lost.values[0]}, with finite weights at the probes"
        yield rule.finding(f"train/{lost.place}", text, {"step": int(lost.steps[0])}, certainty=Certainty.MEASURED)


RULE = Rule(
    code="NS002",
    title="weights or activations are not finite",
    severity=Severity.ERROR,
    certainty=Certainty.PROVED,
    why="A NaN or an infinity in one weight spreads to every output that depends on it; no other statement about such "
    "a network is possible.",
    effect="every output that depends on it is NaN",
    fix="load an earlier checkpoint; find what divides by zero or overflows",
    example="model = nn.Linear(4, 2)\nmodel.weight.data[0] = float('nan')",
    good="model = nn.Linear(4, 2)",
    needs=(),
    explains=("NS001", "NS203", "NS301", "NS303", "NS501", "NS601"),
    metrics=("not_finite", "train", "clock"),
    threads=("pytorch/pytorch/issues/1206",),
)
