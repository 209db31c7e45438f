"""NS211: a normalizer over an axis that does not hold the features."""

from __future__ import annotations

import re
from collections.abc import Iterator

from normscope.core.finding import Certainty, Finding, Severity
from normscope.doctor.neighbours import reach, reads
from normscope.doctor.rule import Rule
from normscope.doctor.subject import Subject, place_of
from normscope.graph.recognise import name_of
from normscope.operators.site import Site

_AXES = ("batch", "first", "second", "third", "fourth")


def _axis(axis: int, shape: tuple[int, ...]) -> str:
    """Return an axis in words."""
    name = "last" if axis == len(shape) - 1 else _AXES[axis] if axis < len(_AXES) else str(axis)
    return f"the {name} axis ({shape[axis]} entries)"


def _look(rule: Rule, subject: Subject) -> Iterator[Finding]:
    """Yield the normalizers whose groups do not fit the axis along which the layer before makes features."""
    if subject.captured is None:
        return
    for site in subject.sites():
        features = subject.features.get(site.source)
        if site.kind == "group_norm":
            yield from _cut_heads(rule, subject, site)
        if not features or len(site.shape) < 3 or (site.written_out and not _called_layer_norm(subject, site)):
            continue
        text = _layer_norm(site, features) if site.written_out else _KINDS.get(site.kind, _nothing)(site, features)
        if text:
            yield rule.finding(place_of(site), text, {"features": ", ".join(map(str, sorted(features)))})


def _called_layer_norm(subject: Subject, site: Site) -> bool:
    """Tell whether a normalizer written out is one of features by the name of its class."""
    captured = subject.captured
    kind = "" if captured is None else captured.graph[site.node].owner_type
    return bool(re.search(r"(Layer|RMS)_?Norm", kind)) and not re.search(r"1d|2d|3d|Group|Instance|Global", kind)


def _nothing(site: Site, features: frozenset[int]) -> str:
    """Say nothing: the axes of other normalizers are a matter of design."""
    return ""


def _batch_norm(site: Site, features: frozenset[int]) -> str:
    """Tell what is wrong with a normalizer whose channels are on axis 1."""
    if 1 in features or len(features) != 1:
        return ""
    (axis,) = features
    return (
        f"{site.kind} keeps statistics for each place of {_axis(1, site.shape)}, and the features lie on "
        f"{_axis(axis, site.shape)}: it normalizes all features together and no feature by itself"
    )


def _layer_norm(site: Site, features: frozenset[int]) -> str:
    """Tell what is wrong with a normalizer over the last axes."""
    spread, rank = site.spread, len(site.shape)
    if spread is None or len(spread.view) != rank:
        return ""
    reduced = {a for a in spread.axes if spread.view[a] > 1}
    if reduced and not reduced & features:
        (axis, *_) = sorted(features)
        return (
            f"{site.kind} normalizes over {_axis(max(reduced), site.shape)}, and the features lie on "
            f"{_axis(axis, site.shape)}: places are mixed, features are not"
        )
    extra = reduced - features
    if extra and features == {rank - 1} and 0 not in extra:
        return (
            f"{site.kind} normalizes over {_axis(max(extra), site.shape)} as well as over the features: places see "
            "each "
            "other, and the layer takes inputs of one length only"
        )
    return ""


_KINDS = {"batch_norm": _batch_norm, "layer_norm": _layer_norm, "rms_norm": _layer_norm}


def _cut_heads(rule: Rule, subject: Subject, site: Site) -> Iterator[Finding]:
    """Yield a GroupNorm after attention whose groups hold parts of heads."""
    captured = subject.captured
    if captured is None or site.spread is None or len(site.shape) < 2:
        return
    channels, groups = site.shape[1], site.spread.view[1]
    above = reach([site.source], reads(captured.graph))
    for node in captured.graph:
        if node.name not in above or name_of(node) not in ("matmul", "bmm", "scaled_dot_product_attention"):
            continue
        shape = node.shape or ()
        if len(shape) < 4 or shape[-3] * shape[-1] != channels or shape[-3] < 2:
            continue
        if (channels // groups) % shape[-1]:
            yield rule.finding(
                place_of(site),
                f"{site.kind} has {groups} groups of {channels // groups}, and there are {shape[-3]} heads of "
                f"{shape[-1]}: its groups cut heads apart",
                {"groups": groups, "heads": shape[-3]},
            )
            return


RULE = Rule(
    code="NS211",
    name="wrong-axis",
    title="normalized axis is not that of the features",
    severity=Severity.WARNING,
    certainty=Certainty.LIKELY,
    statement="",
    why="A convolution makes features along axis 1, a linear layer along the last one. BatchNorm keeps statistics for "
    "axis 1, LayerNorm normalizes the last axes. Given a tensor of the other layout they raise no error if the sizes "
    "happen to fit, and normalize rows of pixels, or time steps, instead of features.",
    effect="the network trains, worse: features of different scale are mixed, and places depend on each other",
    fix="move the features to the axis the normalizer expects (transpose, permute), or use GroupNorm(1, channels)",
    example="model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.LayerNorm(6), nn.ReLU())\n"
    "options = {'input_shape': (3, 6, 6)}",
    good="model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(1, 8), nn.ReLU())\n"
    "options = {'input_shape': (3, 6, 6)}",
    needs=("program",),
    look=_look,
    threads=(
        "tensorflow/addons/pull/2142",
        "xieyulai/LSTM-for-Human-Activity-Recognition-using-2D-Pose_Pytorch/issues/2",
        "Zeta36/chess-alpha-zero/pull/90",
        "fkodom/yet-another-retnet/pull/11",
    ),
    explains=("NS101",),
)
