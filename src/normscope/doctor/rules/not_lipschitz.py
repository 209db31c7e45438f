"""NS504: operations without a Lipschitz constant."""

import math

from normscope.doctor.rule import NET, Certainty, Findings, Rule, Severity, Subject
from normscope.doctor.rules.unbounded_attention import attentions
from normscope.operators.nonlinear import Opaque


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield operations known not to be Lipschitz, then those without a constant on all inputs, each kind once."""
    program = subject.program
    broken: dict[str, dict[str, str]] = {}
    for atom in program.opaque:
        if atom.atom.known:
            broken.setdefault(atom.atom.owner, {}).setdefault(atom.atom.op, " ".join(atom.atom.reason.split()))
    alike: dict[tuple[str, ...], list[str]] = {}
    for owner, reasons in broken.items():
        alike.setdefault(tuple(sorted(reasons)), []).append(owner)
    for ops, owners in alike.items():  # equal modules are reported once
        where = f" ({len(owners)} places)" if len(owners) > 1 else "" if owners[0] else " in forward()"
        text = f"{', '.join(ops)}{where} is not Lipschitz: {broken[owners[0]][ops[0]]}"
        yield rule.finding(owners[0], text, {"places": len(owners), "operations": ", ".join(ops)})
    attended = {id(attention) for attention, _ in attentions(subject)}
    lipschitz = subject.on_all_inputs.lipschitz
    for atom in program.atoms:
        lipschitz(atom)  # in order, which avoids deep recursion
    first: dict[str, tuple[str, int]] = {}
    for atom in program.atoms:
        part = atom.atom
        if isinstance(part, Opaque) or id(part) in attended or max(lipschitz(atom).certified) < math.inf:
            continue
        if all(max(lipschitz(e).certified) < math.inf for e in part.inputs):
            place, uses = first.get(part.op, (part.owner or part.name, 0))
            first[part.op] = (place, uses + 1)
    for op, (place, uses) in first.items():
        yield rule.finding(
            place,
            f"{op} has no finite constant on all inputs ({uses} uses): its inputs, which it multiplies or divides, are "
            "unbounded",
            {"uses": uses, "operation": op},
            fix="put a normalizer or a bounded activation before it; on data of bounded range it has a constant",
        )


RULE = Rule(
    code="NS504",
    title="part without a Lipschitz constant",
    severity=Severity.INFO,
    certainty=Certainty.PROVED,
    statement="normscope F10",
    why="A discontinuous operation (rounding, argmax, comparisons) or one of unbounded slope (a square, a quotient, a "
    "root at zero) has no Lipschitz constant: arbitrarily small changes of the input may change the output by a fixed "
    "amount, or gradients may be arbitrarily large. No certificate passes through it.",
    effect="no certificate passes through it; gradients there are zero or unbounded",
    fix="bound its input (a normalizer or clamp before it), or use a smooth counterpart",
    example=NET.format("torch.sign(x)"),
    good=NET.format("torch.tanh(x)"),
    slow=True,
)
