"""NS202: normalization groups of one or two entries."""

from normscope.doctor.rule import Certainty, Findings, Rule, Severity, Subject, place_of


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield a finding for each normalizer whose groups are too small."""
    for site in subject.sites():
        spread = site.spread
        if spread is None or 0 in spread.axes or spread.size > 2 or (spread.size == 2 and not spread.centered):
            continue  # groups that span the batch are left to another rule
        if spread.size == 2:
            size, severity = "2 entries", Severity.WARNING
            what = "each group becomes (1, -1) or (-1, 1): only the order of its two entries remains"
        else:
            size, severity = "1 entry", Severity.ERROR
            what = "only the sign of its input remains"
            if spread.centered:
                what = "its output is a constant, whatever its input"
        text = f"{site.kind} has groups of {size}: {what} (eps aside)"
        yield rule.finding(place_of(site), text, {"group_size": spread.size, "eps": site.eps}, severity=severity)


RULE = Rule(
    code="NS202",
    title="normalization groups of one or two entries",
    certainty=Certainty.PROVED,
    statement="normscope F3",
    why="A centred group of one entry is zero after normalization: the layer outputs its shift and passes no "
    "gradient. A group of two becomes (1, -1) or (-1, 1). GroupNorm or InstanceNorm on 1x1 feature maps, or LayerNorm "
    "over an axis of one, lead to such groups.",
    effect="the layer outputs a constant and passes no gradient: the layers before it are not trained",
    fix="use fewer groups, normalize before pooling to 1x1, or use another normalizer (LayerNorm over all channels)",
    example="model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.GroupNorm(8, 8))\noptions = {'input_shape': (8, 4, 4)}",
    good="model = nn.Sequential(nn.GroupNorm(2, 8), nn.AdaptiveAvgPool2d(1))\noptions = {'input_shape': (8, 4, 4)}",
    threads=("pytorch/pytorch/issues/19250", "pytorch/pytorch/issues/45687", "meta-pytorch/opacus/issues/567"),
)
