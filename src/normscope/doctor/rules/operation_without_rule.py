"""NS003: operations without a rule."""

from normscope.doctor.rule import NET, Certainty, Findings, Rule, Severity, Subject


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield each kind of operation once, at its first use."""
    unknown = [a.atom for a in subject.program.opaque if not a.atom.known]
    for op in dict.fromkeys(r.op for r in unknown):
        places = [r for r in unknown if r.op == op]
        reason = " ".join(places[0].reason.split())
        text = f"there is no rule for {op} ({len(places)} uses), so no bound passes through it: {reason}"
        yield rule.finding(places[0].owner, text, {"uses": len(places), "operation": op})


RULE = Rule(
    code="NS003",
    title="operation without a rule",
    severity=Severity.INFO,
    certainty=Certainty.PROVED,
    statement="normscope F10",
    why="A bound through an operation without a rule is infinite. This says nothing about the operation, only that "
    "what follows it was not checked.",
    effect="nothing after it is certified",
    fix="register a rule for it (normscope.register_rule), or write it with known operations",
    example=NET.format("torch.special.bessel_j0(x)"),
    good=NET.format("torch.tanh(x)"),
)
