"""NS214: padding inside the statistics of a normalizer."""

import torch
from torch import Tensor

from normscope.doctor.rule import Certainty, Findings, Rule, Subject, place_of

#: Share of padding that matters, share of leading blanks above which it is not padding, and fewest samples.
SHARE, LEADING, FEWEST = 0.05, 0.02, 8
#: Normalizers with statistics over positions.
_OVER_PLACES = ("batch_norm", "instance_norm")


def padded_share(x: Tensor) -> float:
    """Return the share of a batch that is padding: a constant tail of sequences of different length.

    Padding is zeros along some axis, or a repeated token id, at the end of most samples and not at their beginning.

    >>> x = torch.ones(8, 4)
    >>> for i in range(8):
    ...     x[i, 1 + i % 4 :] = 0
    >>> padded_share(x)
    0.375
    """
    best = 0.0
    for axis in range(1, x.ndim):
        rows = x.movedim(axis, 1).flatten(2) if x.ndim > 2 else x.movedim(axis, 1).unsqueeze(-1)
        blank = torch.mode(rows[:, -1].flatten()).values if not x.is_floating_point() else rows.new_zeros(())
        empty = (rows == blank).all(-1)
        tail = empty.flip(1).long().cumprod(1).sum(1)
        head = empty.long().cumprod(1).sum(1)
        length = empty.shape[1]
        content = tail < length
        if length < 3 or not bool(content.any()) or len(set(tail[content].tolist())) < 2:
            continue
        if float(head[content].double().mean()) / length <= LEADING:
            best = max(best, float(tail[content].double().mean()) / length)
    return best


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield every normalizer with statistics over positions of padded data."""
    batch = subject.batch or []
    inputs = [t for t in batch if t.ndim > 1 and t.shape[0] >= FEWEST and t.shape[-1] > 1]
    share = max((padded_share(t) for t in inputs), default=0.0)
    if share < SHARE:
        return
    # More rows than samples in the example are positions of sequences.
    samples = max(t.shape[0] for t in subject.captured.example if t.ndim)
    for site in subject.sites():
        if site.kind in _OVER_PLACES and (len(site.shape) > 2 or site.shape[0] > samples):
            text = f"{share:.0%} of the data is padding, and this {site.kind} includes it in its mean and variance"
            yield rule.finding(place_of(site), text, {"padding": share})


_NET = (
    "model = nn.Sequential(nn.Conv1d(4, 8, 3, padding=1{})\n"
    "data = torch.randn(32, 4, 12)\n"
    "for i, row in enumerate(data):\n"
    "    row[:, 3 + i % 9 :] = 0  # sequences of 3 to 11 steps"
)

RULE = Rule(
    code="NS214",
    title="padding inside statistics",
    certainty=Certainty.MEASURED,
    why="Sequences of different lengths are padded to one length. BatchNorm and InstanceNorm do not know the lengths: "
    "zeros pull the mean to zero and shrink the variance, by an amount that changes with the longest sequence of each "
    "batch.",
    effect="a sequence is normalized differently in every batch, and again in evaluation",
    fix="use a normalizer of single positions (LayerNorm over the features), mask the statistics, or batch sequences "
    "of similar length",
    example=_NET.format(", bias=False), nn.BatchNorm1d(8)"),
    good=_NET.format("), nn.GroupNorm(2, 8)"),
    needs=("program", "data"),
    threads=("pytorch/pytorch/issues/70529", "SeanNaren/deepspeech.pytorch/issues/312"),
)
