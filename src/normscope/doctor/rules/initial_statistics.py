"""NS205: initial running statistics with trained weights."""

import torch
from torch import Tensor, nn

from normscope.doctor.modules import tracked
from normscope.doctor.rule import Certainty, Findings, Rule, Severity, Subject, place_of

#: Mean, or logarithm of the variance, of data that does not match the initial statistics.
OFF = 0.2


def are_new(mean: Tensor, variance: Tensor) -> bool:
    """Return whether running statistics have exactly their initial values.

    >>> are_new(torch.zeros(2), torch.ones(2)), are_new(torch.zeros(2), torch.zeros(2))
    (True, False)
    """
    return bool((mean == 0).all()) and bool((variance == 1).all())


def is_new(bn: nn.Module) -> bool:
    """Return whether the running statistics of a layer have their initial values.

    >>> is_new(nn.BatchNorm1d(2)), is_new(nn.Identity())
    (True, False)
    """
    mean, variance = getattr(bn, "running_mean", None), getattr(bn, "running_var", None)
    return isinstance(mean, Tensor) and isinstance(variance, Tensor) and are_new(mean, variance)


def is_trained(bn: nn.Module) -> bool:
    """Return whether scale and shift were trained, that is, the shifts differ from channel to channel.

    >>> bn = nn.BatchNorm1d(2)
    >>> is_trained(bn)
    False
    >>> bn.bias.data[0] = 0.1
    >>> is_trained(bn)
    True
    """
    shift, scale = getattr(bn, "bias", None), getattr(bn, "weight", None)
    # Some recipes initialize scales at random, but none does so with shifts.
    moved = [shift if isinstance(shift, Tensor) else scale]
    if moved == [None]:  # a layer written by hand, with other names
        moved = [p for p in bn.parameters(recurse=False) if p.ndim == 1]
    with torch.no_grad():
        return bool(moved) and all(
            isinstance(p, Tensor) and p.numel() > 1 and bool((p != p.flatten()[0]).any()) for p in moved
        )


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield every layer whose statistics, both or one of them, are new although the layer is not."""
    modules = list(tracked(subject.model))
    new = [are_new(mean, variance) for *_, mean, variance in modules]
    used = [i for i, (_, bn, *_) in enumerate(modules) if not new[i] and _count(bn) > 0]
    facts = {"new": sum(new), "of": len(modules)}
    for i, (path, bn, mean, variance) in enumerate(modules):
        if not new[i]:
            half = _half_new(mean, variance)
            if half:
                yield rule.finding(path, half, facts)
            continue
        if subject.model.training and not bn.training:
            yield rule.finding(
                path,
                "it is in evaluation mode while the model trains, with the initial statistics (mean 0, variance 1): it "
                "normalizes nothing",
                facts,
                severity=Severity.WARNING,
            )
            continue
        if is_trained(bn) or _count(bn):
            because = "its scale and shift were trained" if is_trained(bn) else f"it has counted {_count(bn)} batches"
            yield rule.finding(
                path, f"running statistics still have their initial values (mean 0, variance 1), but {because}", facts
            )
            continue
        inside = bool(used) and used[0] < i < used[-1]
        because = ""  # what shows that the network is past its first step
        if inside:
            because = "the layers before and after it have estimated theirs"
        elif subject.purpose == "inference":
            because = "the model is used for inference"
        elif subject.optimizer is not None and any(subject.optimizer.state.values()):
            because = "the optimizer has taken steps"
        called = not subject.has("program") or any(place_of(s) == path for s in subject.sites())
        if because and called and _data_differs(subject, path):
            yield rule.finding(
                path,
                "running statistics still have their initial values (mean 0, variance 1, no batch counted), but "
                f"{because}",
                facts,
                severity=Severity.ERROR if inside else Severity.WARNING,
                certainty=Certainty.LIKELY,
            )
    yield from _hand_written(rule, subject)


def _hand_written(rule: Rule, subject: Subject) -> Findings:
    """Yield every normalizer of another class whose statistics are new and whose scale and shift are trained."""
    known = {path for path, *_ in tracked(subject.model)}
    modules = dict(subject.model.named_modules())
    for site in subject.sites():
        path = place_of(site)
        if site.running is None or path in known or not are_new(*site.running) or path not in modules:
            continue
        if is_trained(modules[path]):
            yield rule.finding(
                path,
                "its statistics still have their initial values (mean 0, variance 1), but its scale and shift were "
                "trained",
                {"channels": site.running[0].numel()},
            )


def _count(bn: nn.Module) -> int:
    return int(getattr(bn, "num_batches_tracked", None) or 0)


def _half_new(mean: Tensor, variance: Tensor) -> str:
    """Return what is wrong with statistics of which one is exactly that of a new layer and the other is not."""
    mean, variance = mean.detach().flatten(), variance.detach().flatten()
    if mean.numel() < 2:
        return ""
    if bool((variance == 1).all()) and bool((mean != 0).all()):
        return "the running variance is exactly 1 in all channels, its initial value, but the running mean is not 0"
    if bool((variance == 0).all()):
        return "the running variance is exactly 0 in all channels: everything is divided by the root of eps"
    if bool((mean == 0).all()) and bool((variance != 1).all()) and bool((variance != variance[0]).any()):
        return "the running mean is exactly 0 in all channels, its initial value, but the running variance is not 1"
    return ""


def _data_differs(subject: Subject, path: str) -> bool:
    """Return whether the data, if there is any, has a mean or variance other than those of a new layer."""
    for site in subject.sites():
        seen = subject.batch_statistics.get(site.node) if place_of(site) == path else None
        if seen is not None:
            return bool(seen.mean.abs().max() > OFF) or bool((seen.variance.clamp_min(1e-30)).log().abs().max() > OFF)
    return True


RULE = Rule(
    code="NS205",
    title="initial running statistics with trained weights",
    severity=Severity.ERROR,
    certainty=Certainty.PROVED,
    why="Running statistics are buffers, not parameters. They are lost when only parameters are saved, averaged (EMA) "
    "or loaded, when keys do not match and strict=False hides it, and when a functional copy is trained. In "
    "evaluation, BatchNorm then divides by one and subtracts nothing. A converter may lose one of the two: estimated "
    "means next to variances of exactly one in every channel. Weights with a folded normalizer, loaded into a network "
    "that still has the normalizer, leave all of its parameters and statistics at their initial values.",
    effect="evaluation is close to chance, while training looks fine",
    fix="save and load the whole state_dict, average buffers too, or estimate the statistics again: run training data "
    "through the model in train mode with momentum=None",
    example="model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())\n"
    "nn.init.normal_(model[1].bias)  # trained weights were loaded, their statistics were not",
    good="model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())\n"
    "nn.init.normal_(model[1].bias)\n"
    "model(torch.randn(64, 3, 8, 8))  # in train mode: the statistics are gathered",
    needs=(),
    threads=(
        "CuriousAI/mean-teacher/issues/9",
        "hiwonjoon/tf-frrn/issues/2",
        "facebookresearch/higher/issues/55",
        "slothkong/DNN-Pruning/issues/8",
        "open-mmlab/mmdetection/issues/2924",
        "patrick-kidger/equinox/issues/955",
    ),
    explains=("NS203", "NS601", "NS301", "NS303", "NS501"),
)
