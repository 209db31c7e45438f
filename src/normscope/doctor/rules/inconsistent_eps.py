"""NS304: one eps that differs from the others."""

from collections import Counter
from collections.abc import Iterator

from normscope.doctor.modules import role
from normscope.doctor.rule import Certainty, Findings, Rule, Severity, Subject, place_of
from normscope.operators.site import Site

#: Fewest siblings, share of them that must agree, and smallest ratio that counts as a difference.
SIBLINGS, SHARE, FACTOR = 3, 0.6, 2.0


def odd_ones(sites: list[Site]) -> Iterator[tuple[Site, float]]:
    """Yield the sites whose eps differs from the most common one, each with the latter."""
    eps = Counter(s.eps for s in sites)
    usual, times = eps.most_common(1)[0]
    if len(sites) < SIBLINGS or times < SHARE * len(sites) or times == len(sites):
        return
    for site in sites:
        low, high = sorted((site.eps, usual))
        if high > FACTOR * low:
            yield site, usual


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield such normalizers among those at equal positions of equal blocks, then among all of a kind."""
    sites = list({place_of(s): s for s in subject.sites()}.values())
    reported: set[str] = set()
    by_role: dict[tuple[str, str], list[Site]] = {}
    by_kind: dict[str, list[Site]] = {}
    for site in sites:
        by_role.setdefault((site.kind, role(place_of(site))), []).append(site)
        by_kind.setdefault(site.kind, []).append(site)
    for groups, severity in ((by_role, None), (by_kind, Severity.INFO)):
        for group in groups.values():
            for site, usual in odd_ones(group):
                if place_of(site) in reported:
                    continue
                reported.add(place_of(site))
                text = f"{site.kind} has eps = {site.eps:g}, but {len(group) - 1} others mostly have {usual:g}"
                yield rule.finding(
                    place_of(site), text, {"eps": site.eps, "usual": usual, "siblings": len(group)}, severity=severity
                )


RULE = Rule(
    code="NS304",
    title="eps differs from that of similar layers",
    certainty=Certainty.LIKELY,
    why="Layers at the same position of equal blocks have the same eps. One that differs was built on another code "
    "path, or its checkpoint was trained with another value: 1e-5 instead of 1e-6 is enough to change what a language "
    "model says.",
    effect="outputs differ from those of the network the weights were trained in",
    fix="use the eps of the others, or say in the code why it differs",
    example="model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8, eps=1e-6)) for _ in range(4)))\n"
    "model[2][1].eps = 1e-3",
    good="model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8, eps=1e-6)) for _ in range(4)))",
    threads=("LeelaChessZero/lc0/pull/1914", "huggingface/candle/pull/271"),
)
