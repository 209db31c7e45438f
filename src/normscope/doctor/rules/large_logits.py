"""NS507: attention logits that saturate the softmax on the data."""

from normscope.doctor.rule import Certainty, Findings, Rule, RunHistory, Subject

#: Distance of a logit from the median of its row that is too large.
LARGE = 100.0


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield every attention with such logits."""
    for name, distance in subject.observer.logits.items():
        if distance >= LARGE:
            yield rule.finding(
                subject.graph[name].owner,
                f"a logit is {distance:.3g} above the median of its row on the data: the softmax selects one entry, "
                "and its gradients vanish",
                {"distance": distance, "samples": subject.seen.samples if subject.seen is not None else 0},
            )


def check_history(rule: Rule, history: RunHistory) -> Findings:
    """Yield every attention whose logits are too large, and since which step."""
    for metric in history.metrics("logit"):
        since = metric.since(LARGE)
        if since is not None:
            yield rule.finding(
                metric.place,
                f"since step {since} a logit is {LARGE:g} or more above the median of its row; at step "
                f"{metric.steps[-1]} it is {metric.last:.3g}: the softmax selects one entry, and its gradients vanish",
                {"distance": metric.last, "since": since},
            )


_NET = (
    "class Net(nn.Module):\n"
    "    def __init__(self):\n"
    "        super().__init__()\n"
    "        self.q, self.k, self.norm = nn.Linear(64, 64), nn.Linear(64, 64), nn.{}\n\n"
    "    def forward(self, x):\n"
    "        x = self.norm(x)\n"
    "        return (self.q(x) @ self.k(x).transpose(1, 2){}).softmax(-1) @ x\n\n\n"
    "model = Net()\n"
    "data = 10 * torch.randn(32, 8, 64)"
)

RULE = Rule(
    code="NS507",
    title="attention logits too large on the data",
    certainty=Certainty.MEASURED,
    statement="the softmax of logits that lie d apart has gradients of at most exp(-d)",
    why="Logits grow with the norms of queries and keys: without the factor 1/sqrt(d), without a normalizer before the "
    "projections, or after long training at a high rate. The softmax then attends to one entry only.",
    effect="attention stops learning; the loss jumps, and half precision overflows",
    fix="divide by sqrt(d), normalize queries and keys (QK-norm), or lower the learning rate",
    example=_NET.format("Identity()", ""),
    good=_NET.format("LayerNorm(64)", " / 8"),
    needs=("program", "data"),
    slow=True,
    metrics=("logit",),
    threads=("PAIR-code/tiny-transformers/issues/71", "lucidrains/imagen-pytorch/issues/69"),
)
