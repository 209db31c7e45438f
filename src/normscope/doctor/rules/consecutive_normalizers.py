"""NS102: a normalizer right after a normalizer."""

from normscope.doctor.rule import Certainty, Findings, Rule, Severity, Subject, place_of
from normscope.doctor.rules.redundant_normalizer import is_direct, is_first_removable, pairs


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield a finding for each pair, at the first of the two, then for pairs with a path around the second."""
    for pair in filter(is_direct, pairs(subject.structure)):
        first, second = place_of(pair.first), place_of(pair.second)
        gone = is_first_removable(subject, pair)
        what = "the second normalizes again"
        if gone:
            what = "with its present scale and shift, removing the first changes nothing (eps aside)"
        yield rule.finding(
            first,
            f"{pair.first.kind} {first} is followed directly by {pair.second.kind} {second}: {what}",
            {"second": second, "first_removable": "yes" if gone else "no"},
            certainty=Certainty.PROVED if gone else Certainty.LIKELY,
        )
    for pair in filter(is_direct, pairs(subject.structure, confined=False)):
        first, second = place_of(pair.first), place_of(pair.second)
        if first != second:
            yield rule.finding(
                first,
                f"{pair.first.kind} {first} is followed directly by {pair.second.kind} {second}, and its output is "
                "used elsewhere too (a residual): that branch is normalized twice",
                {"second": second, "first_removable": "no"},
                certainty=Certainty.LIKELY,
                severity=Severity.INFO,
            )


RULE = Rule(
    code="NS102",
    title="normalizer directly after a normalizer",
    certainty=Certainty.PROVED,
    statement="N(a N(x) + b) = N(x) for a > 0, eps = 0, where a and b are constant within a group",
    why="The second normalizer undoes the first one's scale and shift where they are constant within its groups, so "
    "these parameters do nothing; the pair costs twice, and two constants of up to 1/sqrt(eps) multiply.",
    effect="none on accuracy in most cases: the first scale and shift do nothing, and the pair costs twice",
    fix="keep one of the two",
    example="model = nn.Sequential(nn.LayerNorm(8), nn.LayerNorm(8), nn.Linear(8, 2))",
    good="model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 2))",
    threads=(
        "pytorch/pytorch/issues/50086",
        "ggml-org/llama.cpp/pull/1925",
        "nlp-with-transformers/notebooks/issues/129",
    ),
)
