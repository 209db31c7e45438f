"""NS206: layers of a network that have counted different numbers of batches."""

from collections import Counter

from normscope.doctor.modules import batch_norms
from normscope.doctor.rule import Certainty, Findings, Rule, RunHistory, Severity, Subject


def between(counts: list[int]) -> list[int]:
    """Return the indices whose count differs from an equal count before and after them.

    A backbone that was trained longer than its head has two parts with different counts, and no such index.

    >>> between([9, 9, 2, 9]), between([9, 9, 2, 2])
    ([2], [])
    """
    usual, times = Counter(counts).most_common(1)[0] if counts else (0, 0)
    if times < 2:
        return []
    first, last = counts.index(usual), len(counts) - 1 - counts[::-1].index(usual)
    return [i for i in range(first, last) if counts[i] != usual]


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield the layers whose number of batches differs from that of their neighbours."""
    called = subject.calls
    counted = [(path, bn.num_batches_tracked) for path, bn in batch_norms(subject.model)]
    found = [(path, int(n)) for path, n in counted if n is not None and called.get(path, 1) == 1]
    counts = [n for _, n in found]
    usual = Counter(counts).most_common(1)[0][0] if counts else 0
    for place in between(counts):
        path, n = found[place]
        if n == 0 or usual == 0:
            continue  # never used, or never counted: NS205 reports them
        yield rule.finding(
            path,
            f"its statistics come from {n} batches, those before and after it from {usual}: they come from another "
            "run, or the layer was frozen for a while",
            {"batches": n, "others": usual},
        )


def check_history(rule: Rule, history: RunHistory) -> Findings:
    """Yield the layers with an unusual number of batches per step, and the first if all see several per step."""
    rates = {t.place: t.last for t in history.metrics("tracked") if t.last > 0}
    if not rates:
        return
    usual, times = Counter(round(rate, 3) for rate in rates.values()).most_common(1)[0]
    for place, rate in rates.items():
        if abs(rate - usual) > 1e-3 * max(1.0, usual) and times > len(rates) / 2:
            yield rule.finding(
                place,
                f"it counts {rate:.3g} batches per step, most others {usual:.3g}: it is called more often, or is "
                "frozen part of the time",
                {"batches": rate, "others": usual},
            )
    if usual > 1 and times > len(rates) / 2:
        first = next(place for place, rate in rates.items() if abs(rate - usual) <= 1e-3 * usual)
        yield rule.finding(
            first,
            f"running statistics are updated with {usual:.3g} batches per step: forward runs more than once "
            "(activation checkpointing, accumulation, a second pass), so they follow the batches as with a larger "
            "momentum",
            {"batches": usual},
            severity=Severity.INFO,
            fix="with checkpointing use momentum 1 - sqrt(1 - momentum); run other passes in evaluation mode",
        )


RULE = Rule(
    code="NS206",
    title="statistics from different numbers of batches",
    certainty=Certainty.LIKELY,
    why="Every BatchNorm counts the batches it has seen in training. Layers that are called once per step have the "
    "same count. A layer in the middle with another count got its buffers from another checkpoint, or was left out of "
    "a copy or an average.",
    effect="the layer normalizes by statistics of other weights; accuracy in evaluation drops",
    fix="load all buffers from one checkpoint, or estimate the statistics again",
    example="model = nn.Sequential(*(nn.BatchNorm1d(4) for _ in range(3)))\n"
    "for bn, n in zip(model, (500, 20, 500)):\n    bn.num_batches_tracked.fill_(n)",
    good="model = nn.Sequential(*(nn.BatchNorm1d(4) for _ in range(3)))\n"
    "for bn in model:\n    bn.num_batches_tracked.fill_(500)",
    needs=(),
    metrics=("tracked",),
    threads=("pytorch/ignite/issues/2590", "NVIDIA/apex/pull/380", "pytorch/pytorch/issues/96136"),
)
