"""NS604: scales of a normalizer that scatter around zero."""

from normscope.doctor.rule import Certainty, Findings, Rule, Subject, place_of

_KINDS = ("layer_norm", "rms_norm", "group_norm")
#: Share of negative scales that is mixed (neither few nor most), a small scale, and fewest channels.
MIXED, SMALL, FEWEST = 0.2, 0.02, 8
#: The value of 1 + w if w was set to one.
DOUBLED = 2.0


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield the normalizers of single samples whose scales have no common sign, or are all tiny."""
    for site in subject.sites():
        scale = subject.scale_of(site) if site.kind in _KINDS else None
        if scale is None or scale.numel() < FEWEST or not bool((scale != 0).any()):
            continue
        if bool((scale == DOUBLED).all()):
            text = f"its scales are all {DOUBLED:g}: does it multiply by 1 + w, and was w set to one?"
            fix = "set w to zero where the normalizer multiplies by 1 + w"
            yield rule.finding(place_of(site), text, {"mean": DOUBLED, "median": DOUBLED, "negative": 0.0}, fix=fix)
            continue
        negative = float((scale < 0).double().mean())
        usual, mean, spread = float(scale.abs().median()), float(scale.mean()), float(scale.std())
        scattered = MIXED <= negative <= 1 - MIXED and abs(mean) < spread
        if not scattered and usual >= SMALL:
            continue
        what = f"its scales are about {usual:.2g}"
        if scattered:
            what = f"{negative:.0%} of its scales are negative and their mean is {mean:.2g}"
        text = f"{what}: were they stored as deviations from one (1 + w), and the one was lost?"
        yield rule.finding(place_of(site), text, {"mean": mean, "median": usual, "negative": negative})


RULE = Rule(
    code="NS604",
    title="scales near zero, or doubled",
    certainty=Certainty.LIKELY,
    why="Trained scales of LayerNorm and RMSNorm are near one and have one sign. Some families of models store "
    "deviations from one and multiply by 1 + w; read without the one, every normalizer outputs almost zero, and with "
    "w set to one it doubles every signal.",
    effect="the model's outputs are garbage, without an error",
    fix="multiply by 1 + weight, or add one to these weights when converting the checkpoint",
    example="model = nn.Sequential(nn.Linear(16, 16), nn.RMSNorm(16))\nnn.init.normal_(model[1].weight, 0.0, 0.05)",
    good="model = nn.Sequential(nn.Linear(16, 16), nn.RMSNorm(16))\nnn.init.normal_(model[1].weight, 1.0, 0.05)",
    threads=("pytorch/executorch/pull/19901", "llmmanorg/llmman/pull/151", "huggingface/transformers/pull/40796"),
)
