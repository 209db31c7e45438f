"""NS301: channels whose variance is near or below eps."""

from torch import Tensor

from normscope.doctor.modules import listed_channels
from normscope.doctor.neighbours import producers
from normscope.doctor.rule import Certainty, Finding, Findings, Rule, Severity, Subject, place_of
from normscope.operators.site import Site

#: A variance within this factor of eps is near it.
NEAR = 2.0
#: Amplification that is worth a warning.
STEEP = 100.0


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield a finding for each normalizer with such running variances, or with such groups in the data."""
    for site in subject.sites():
        found = _variances(subject, site)
        if found is None:
            continue
        variance, words, certainty = found
        low = variance <= NEAR * site.eps
        if site.gamma is not None and site.gamma.numel() == variance.numel():
            low &= site.gamma.detach().double().flatten().to(low.device) != 0  # a channel with scale zero does no harm
        if not bool(low.any()):
            continue
        if _most_live(subject, site, variance):
            yield _too_large(rule, subject, site, variance, certainty)
            continue
        least, count = float(variance[low].min()), int(low.sum())
        steep = float(_gain(site, variance)[low].max())
        where = words.format(count=count, of=variance.numel())
        named = f" ({listed_channels(low.nonzero().flatten().tolist())})" if variance.numel() > 1 else ""
        share = site.eps / (max(least, 0.0) + site.eps)
        yield rule.finding(
            place_of(site),
            f"{where} at most {NEAR:g} eps{named}: smallest {least:.3g}, eps {site.eps:g} is {share:.0%} of the "
            f"divisor, and the channel is amplified {steep:.3g} times",
            {"channels": count, "of": variance.numel(), "least_variance": least, "eps": site.eps, "gain": steep},
            certainty=certainty,
            severity=Severity.WARNING if certainty is Certainty.PROVED and steep >= STEEP else Severity.INFO,
        )


def _most_live(subject: Subject, site: Site, variance: Tensor) -> bool:
    """Return whether most channels or groups lie below eps: then eps is too large, not the variances too small."""
    if site.running is not None:
        middle = float(variance.median())
        return 0 < middle <= NEAR * site.eps
    seen = subject.seen_before(site)
    return seen is not None and seen.below_eps > seen.groups / 2


def _too_large(rule: Rule, subject: Subject, site: Site, variance: Tensor, certainty: Certainty) -> Finding:
    seen = subject.seen_before(site)
    if site.running is not None or seen is None:
        what = f"half of the {variance.numel()} running variances are at most {float(variance.median()):.3g}"
    else:
        least = float(variance.min())
        what = f"{seen.below_eps} of {seen.groups} groups have a variance below eps, smallest {least:.3g}"
    steep = float(_gain(site, variance).max())
    # Small variances of the input come from the data; those after a layer may be due to initialization.
    made = bool(producers(subject.graph, site.node))
    loud = steep >= STEEP if certainty is Certainty.PROVED else not made
    return rule.finding(
        place_of(site),
        f"{what}, and eps is {site.eps:g}: eps is most of the divisor, so the outputs do not have variance one",
        {"least_variance": float(variance.min()), "eps": site.eps, "gain": steep, "of": variance.numel()},
        certainty=certainty,
        severity=Severity.WARNING if loud else Severity.INFO,
        fix="lower eps to a hundredth of the variance or less, or scale the data up: the channels are alive but small",
    )


def _gain(site: Site, variance: Tensor) -> Tensor:
    """Return ``|gamma| / sqrt(variance + eps)`` of each group."""
    gamma = None if site.gamma is None else site.gamma.detach().double().flatten().abs().to(variance.device)
    gain = (variance.clamp_min(0.0) + site.eps).rsqrt()
    return gain if gamma is None else gain * (gamma if gamma.numel() == gain.numel() else gamma.max())


def _variances(subject: Subject, site: Site) -> tuple[Tensor, str, Certainty] | None:
    """Return the variances a normalizer divides by, if known: running ones, or the smallest of each group."""
    if site.eps <= 0:
        return None
    if site.running is not None:
        variance = site.running[1].detach().double().flatten()
        return variance, "{count} of {of} running variances are", Certainty.PROVED
    least = subject.least_variances(site)
    if least is None or site.spread is None or site.spread.size < 2:
        return None
    words = "the variance of some sample is" if least.numel() == 1 else "{count} of {of} groups have a variance of"
    return least, words, Certainty.MEASURED


RULE = Rule(
    code="NS301",
    title="variance near or below eps",
    certainty=Certainty.PROVED,
    statement="normscope F1",
    why="The constant of a channel is |gamma|/sqrt(variance + eps). Where the variance falls to eps, the channel is "
    "nearly constant on the data, is amplified up to 1/sqrt(eps) times (316 for 1e-5), and is no longer normalized: a "
    "small shift of the data moves it by many standard deviations. Where most channels, or most samples, are below "
    "eps, nothing is wrong with them: eps is too large, and the layer hardly normalizes.",
    effect="the channel is amplified up to 1/sqrt(eps) times: a small shift of the data moves it by a lot",
    fix="remove the dead channel (its unit carries no signal while the others do), restart it, or raise eps above the "
    "noise",
    example="model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8)).eval()\n"
    "model[1].running_var[3] = 1e-8",
    good="model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8)).eval()",
    threads=(
        "Tomiinek/Multilingual_Text_to_Speech/issues/81",
        "qqwweee/keras-yolo3/issues/451",
        "unit8co/darts/issues/2739",
    ),
)
