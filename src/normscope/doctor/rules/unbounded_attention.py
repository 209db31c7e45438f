"""NS503: attention logits without a bound."""

import math
from collections.abc import Iterator

from normscope.doctor.rule import Certainty, Findings, Rule, Severity, Subject
from normscope.operators.attention import Attention, Softmax
from normscope.operators.expression import Expr, reached
from normscope.operators.matrix import MatrixProduct
from normscope.operators.nonlinear import Nonlinear


def attentions(subject: Subject) -> Iterator[tuple[Nonlinear, tuple[Expr, Expr]]]:
    """Yield every attention with its queries and keys: fused, or written as a softmax of a product."""
    for atom in subject.program.atoms:
        rule = atom.atom
        if isinstance(rule, Attention) and rule.scale and rule.inputs[1].shape[-2] > 1:
            yield rule, (rule.inputs[0], rule.inputs[1])
        elif isinstance(rule, Softmax) and rule.length > 1:
            for item in reached([rule.inputs[0]])[::-1]:
                if item.op is None and isinstance(item.atom, MatrixProduct):
                    yield rule, (item.atom.inputs[0], item.atom.inputs[1])
                    break


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield a finding for each attention whose queries and keys have no bound on all inputs."""
    for attention, (q, k) in attentions(subject):
        # The logits q.k are bounded if the rows of both are.
        open_ends = [n for n, e in (("queries", q), ("keys", k)) if math.isinf(subject.on_all_inputs.range(e).row)]
        if open_ends:
            text = f"the logits of this attention have no bound: nothing normalizes its {' and '.join(open_ends)}"
            yield rule.finding(attention.owner, text, {"unbounded": ", ".join(open_ends)})


RULE = Rule(
    code="NS503",
    title="attention logits without a bound",
    severity=Severity.INFO,
    certainty=Certainty.PROVED,
    statement="normscope F11",
    why="Dot-product attention is Lipschitz only where queries, keys and values are bounded. With a normalizer before "
    "the projections (or of queries and keys themselves) the logits are bounded by the weights; without one they grow "
    "with the square of the input, the softmax saturates, and training in half precision overflows.",
    effect="logits may grow without bound in training; half precision overflows first",
    fix="normalize what the queries and keys are computed from (pre-norm), or the queries and keys (QK-norm)",
    example="model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)\noptions = {'input_shape': (5, 16)}",
    good="model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)\n"
    "options = {'input_shape': (5, 16)}",
    slow=True,
)
