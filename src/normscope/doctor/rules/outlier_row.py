"""NS508: rows of a layer many times longer than the others."""

from normscope.doctor.modules import listed_channels
from normscope.doctor.rule import Certainty, Findings, Rule, Subject

#: Ratio to the median row that is too large, and fewest rows to compare.
FACTOR, FEWEST = 100.0, 3


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield the layers with such rows."""
    for layer in subject.program.layers:
        op = layer.op
        if op is None or op.kind == "embedding" or op.data.get("transposed"):
            continue
        lengths = op.data["weight"].detach().double().flatten(1).norm(dim=1)
        nonzero = lengths[lengths > 0]
        if nonzero.numel() < FEWEST:
            continue
        usual = float(nonzero.median())
        long = (lengths > FACTOR * usual).nonzero().flatten().tolist()
        if long:
            factor = float(lengths.max()) / usual
            yield rule.finding(
                op.owner,
                f"{len(long)} of {lengths.numel()} rows are far longer than the others ({listed_channels(long)}): up "
                f"to {factor:.3g} times the median",
                {"rows": len(long), "factor": factor, "channels": ", ".join(map(str, long))},
            )


RULE = Rule(
    code="NS508",
    title="rows of a layer far longer than the others",
    certainty=Certainty.LIKELY,
    why="The rows of a layer are its output units. One that is a hundred times longer than the median alone "
    "determines the constant of the layer, and in the last layer one class wins whatever the input. Usual causes: "
    "rows that were initialized differently, a conversion of units, a class that diverged.",
    effect="one output dominates; the first loss is huge",
    fix="initialize the rows like the others, or find what wrote them",
    example="model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))\nmodel[2].weight.data[1] *= 1000",
    good="model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))",
    slow=True,
    threads=("yaoing/DAN/issues/14",),
    explains=("NS501", "NS502"),
)
