"""NS001: the model could not be captured as a graph."""

from normscope.core.errors import listed
from normscope.doctor.rule import NET, Certainty, Finding, Findings, Rule, Severity, Subject


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield the reason why there is no graph."""
    if subject.changed_state:
        yield _stateful(rule, subject)
    elif subject.random_at:
        text = "it draws random numbers in evaluation mode: two runs on one input differ; only the modules were checked"
        fix = "pass training=self.training to dropout, move sampling and noise out of forward(), or draw them once"
        yield rule.finding(subject.random_at, text, fix=fix)
    elif subject.failure:
        reason = " ".join(subject.failure.split())
        raised = bool(subject.failed_at)
        yield rule.finding(
            subject.failed_at,
            f"the model does not run on the data: {reason}"
            if raised
            else f"only the modules were checked, as there is no graph. {reason}",
            severity=Severity.ERROR if raised else None,
            fix="fix the error, or pass other data" if raised else "fix the error" if "() raised" in reason else "",
        )


def _stateful(rule: Rule, subject: Subject) -> Finding:
    """Return the finding for a forward pass that changes the state it depends on, at the module that holds it."""
    modules = dict(subject.model.named_modules())
    owners = (name.rpartition(".")[0] for name in subject.changed_state)
    place = next((path for path in owners if path in modules), "")
    parameters = [name for name in subject.changed_state if name in subject.parameters]
    others = [name for name in subject.changed_state if name not in subject.parameters]
    verbs = {"overwrites": parameters, "changes": others}
    changed = " and ".join(f"{verb} {listed(names)}" for verb, names in verbs.items() if names)
    when = "initialize from data" if parameters else "change state"
    flag = ", and store a flag for it as a buffer" if parameters else " (if self.training), and store it in buffers"
    return rule.finding(
        place,
        f"a forward pass in evaluation mode {changed}, and the output depends on it: the first batch after loading "
        "determines what the network computes, so only the modules were checked",
        {"changed": ", ".join(subject.changed_state)},
        severity=Severity.ERROR if parameters else None,
        fix=f"{when} in train mode only{flag}, so that a checkpoint contains it",
    )


RULE = Rule(
    code="NS001",
    title="the model cannot be captured",
    certainty=Certainty.PROVED,
    why="Most rules read the graph of what the model computes. Without it, only the modules and the optimizer are "
    "checked. A forward pass that changes the model in evaluation (parameters set from the first batch, a counter) "
    "means that the output depends on more than the input; the finding names what changes.",
    effect="most rules did not run",
    fix="pass an input shape (--input) or data, or make forward() run on them without errors",
    example=NET.format("x.argmax()"),
    good=NET.format("x.relu()"),
    needs=(),
    threads=("liufeng2915/CFSM/issues/4", "rosinality/glow-pytorch/issues/6"),
)
