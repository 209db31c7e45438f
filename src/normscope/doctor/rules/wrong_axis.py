"""NS211: a normalizer over an axis that is not the feature axis."""

import re

from normscope.doctor.neighbours import ancestors, skip_back
from normscope.doctor.rule import Certainty, Findings, Rule, Subject, place_of
from normscope.graph.ir import Graph
from normscope.graph.recognise import name_of
from normscope.operators.site import Site

_VIEWS = ("view", "reshape", "_unsafe_view", "unflatten", "flatten", "contiguous")
_AXES = ("batch", "first", "second", "third", "fourth")


def _axis(axis: int, shape: tuple[int, ...], samples: int = 1) -> str:
    """Describe an axis; the first one holds samples, unless ``samples`` is 0."""
    name = "last" if axis == len(shape) - 1 else _AXES[axis + 1 - samples] if axis + 1 < len(_AXES) else str(axis)
    return f"the {name} axis ({shape[axis]} entries)"


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield the normalizers whose groups do not match the feature axis of the layer before."""
    yield from _along_kernels(rule, subject)
    yield from _lengths_elsewhere(rule, subject)
    for site in subject.sites():
        features = subject.features.get(site.source)
        yield from _one_side_of_the_plane(rule, site, features)
        yield from _cut_features(rule, subject, site)
        if site.kind == "group_norm":
            yield from _cut_heads(rule, subject, site)
        if site.kind == "l2_norm" and features == frozenset({2}):
            yield from _over_tokens(rule, site)
        kind = subject.graph[site.node].owner_type
        named = re.search(r"(Layer|RMS)_?Norm", kind) and not re.search(r"1d|2d|3d|Group|Instance|Global", kind)
        if not features or len(site.shape) < 3 or (site.written_out and not named):
            continue
        text = ""  # the axes of other normalizers are a design choice
        if site.written_out or site.kind in ("layer_norm", "rms_norm"):
            text = _layer_norm(site, features)
        elif site.kind in ("batch_norm", "group_norm", "instance_norm"):
            text = _channels(site, features)
        if text:
            yield rule.finding(place_of(site), text, {"features": ", ".join(map(str, sorted(features)))})


def _channels(site: Site, features: frozenset[int]) -> str:
    """Return what is wrong with a normalizer that takes axis 1 for channels."""
    if 1 in features or len(features) != 1:
        return ""
    (axis,) = features
    taken, given = _axis(1, site.shape), _axis(axis, site.shape)
    does, result = f"takes {taken} for channels", "has scales and groups of positions, not of features"
    if site.kind == "batch_norm":
        does = f"keeps statistics for each position of {taken}"
        result = "normalizes all features together and no feature by itself"
    return f"{site.kind} {does}, but the features are on {given}: it {result}"


def _layer_norm(site: Site, features: frozenset[int]) -> str:
    """Return what is wrong with a normalizer over the last axes."""
    spread, rank = site.spread, len(site.shape)
    if spread is None or len(spread.view) != rank:
        return ""
    reduced = {a for a in spread.axes if spread.view[a] > 1}
    if reduced and not reduced & features:
        (axis, *_) = sorted(features)
        return (
            f"{site.kind} normalizes over {_axis(max(reduced), site.shape)}, but the features are on "
            f"{_axis(axis, site.shape)}: positions are mixed, features are not"
        )
    extra = reduced - features
    if extra and features == {rank - 1} and 0 not in extra:
        return (
            f"{site.kind} normalizes over {_axis(max(extra), site.shape)} as well as over the features: positions see "
            "each other, and the layer accepts inputs of one length only"
        )
    return ""


def _over_tokens(rule: Rule, site: Site) -> Findings:
    """Yield a vector norm over axis 1 of (samples, tokens, features), the default of F.normalize."""
    spread = site.spread
    if spread is not None and len(site.shape) == len(spread.view) == 3 and tuple(spread.axes) == (1,):
        yield rule.finding(
            place_of(site),
            f"each feature is divided by its norm over {_axis(1, site.shape)}, but the features are on "
            f"{_axis(2, site.shape)}: tokens do not have length one, and see each other",
            {"features": "2"},
            fix="F.normalize(x, dim=-1): without dim it normalizes over axis 1",
        )


def _one_side_of_the_plane(rule: Rule, site: Site, features: frozenset[int] | None) -> Findings:
    """Yield a hand-written norm over one side of images, neither over the features nor over the whole plane."""
    spread, rank = site.spread, len(site.shape)
    if spread is None or not site.written_out or features != frozenset({1}) or rank < 4 or len(spread.view) != rank:
        return
    sides = {a for a in range(2, rank) if site.shape[a] > 1}
    reduced = {a for a in spread.axes if spread.view[a] > 1}
    if reduced and reduced < sides:
        yield rule.finding(
            place_of(site),
            f"{site.kind} runs along {_axis(max(reduced), site.shape)}, one side of the image, but the features are on "
            f"{_axis(1, site.shape)}: rows of pixels are normalized, not features",
            {"features": "1"},
            fix="normalize over axis 1, where the features are (dim=1), or over the whole plane",
        )


def _cut_features(rule: Rule, subject: Subject, site: Site) -> Findings:
    """Yield a BatchNorm after a view that turns parts of a feature's plane into channels."""
    if site.kind != "batch_norm" or len(site.shape) < 3:
        return
    node = skip_back(subject.graph, site.source, _VIEWS)
    shape, channels = node.shape or (), site.shape[1]
    if node.name == site.source or subject.features.get(node.name) != frozenset({1}):
        return
    if len(shape) < 3 or channels <= shape[1]:
        return
    mixed = ", and mixes features" if channels % shape[1] else ""
    yield rule.finding(
        place_of(site),
        f"it has {channels} channels for an input of {shape[1]} features: a view cuts the positions of each feature "
        f"into parts, which are normalized separately{mixed}",
        {"channels": channels, "features": shape[1]},
        fix=f"build the normalizer for {shape[1]} channels, and pass the tensor unchanged",
    )


def _lengths_elsewhere(rule: Rule, subject: Subject) -> Findings:
    """Yield weights that are divided by norms along one axis and multiplied by lengths along another."""
    graph, users = subject.graph, subject.graph.users()
    for site in subject.weight_sites():
        node, rank = graph[site.node], len(site.shape)
        if site.kind != "weight_norm" or name_of(node) not in ("div", "mul"):
            continue
        norms = _axes_of(graph, node.inputs()[-1], rank)
        for user in (graph[n] for n in users[node.name] if name_of(graph[n]) == "mul"):
            others = [n for n in user.inputs() if n != node.name]
            lengths = _axes_of(graph, others[0], rank) if others else set()
            if norms and lengths and not norms & lengths:
                yield rule.finding(
                    place_of(site),
                    f"weights of shape {site.shape} have one norm for each position of "
                    f"{_axis(min(norms), site.shape, 0)} but one length for each position of "
                    f"{_axis(min(lengths), site.shape, 0)}: the lengths do not belong to what was normalized",
                    {"norms": min(norms), "lengths": min(lengths)},
                    fix="take the norm over all axes but that of the lengths (the outputs)",
                )


def _axes_of(graph: Graph, name: str, rank: int) -> set[int]:
    """Return the axes of a weight along which a factor varies."""
    shape = skip_back(graph, name, ("expand", "expand_as")).shape or ()
    return {rank - len(shape) + i for i, n in enumerate(shape) if n > 1}


def _along_kernels(rule: Rule, subject: Subject) -> Findings:
    """Yield weights of convolutions that are divided by norms along the kernel only, not by those of filters."""
    for site in subject.weight_sites():
        if site.kind != "weight_norm" or len(site.shape) < 3:
            continue
        for node in ancestors(subject.graph, site.node):
            if name_of(node) not in ("linalg_vector_norm", "norm"):
                continue
            axes = next((a for a in node.args if isinstance(a, list | tuple)), ())
            along = {int(a) % len(site.shape) for a in axes if isinstance(a, int)}
            if along and min(along) >= 2:
                yield rule.finding(
                    place_of(site),
                    f"weights of shape {site.shape} are divided by their norms along {_axis(max(along), site.shape)}, "
                    "the kernel's, not by the norm of each filter",
                    {"axes": ", ".join(map(str, sorted(along)))},
                    fix="normalize weight.flatten(1) along its last axis, and restore its shape",
                )
                break


def _cut_heads(rule: Rule, subject: Subject, site: Site) -> Findings:
    """Yield a GroupNorm after attention whose groups contain parts of heads."""
    if site.spread is None or len(site.shape) < 2:
        return
    channels, groups = site.shape[1], site.spread.view[1]
    for node in ancestors(subject.graph, site.source):
        shape = node.shape or ()
        if name_of(node) not in ("matmul", "bmm", "scaled_dot_product_attention") or len(shape) < 4:
            continue
        if shape[-3] > 1 and shape[-3] * shape[-1] == channels and (channels // groups) % shape[-1]:
            yield rule.finding(
                place_of(site),
                f"{site.kind} has {groups} groups of {channels // groups}, but there are {shape[-3]} heads of "
                f"{shape[-1]}: its groups split heads",
                {"groups": groups, "heads": shape[-3]},
            )
            return


RULE = Rule(
    code="NS211",
    title="normalized axis is not the feature axis",
    certainty=Certainty.LIKELY,
    why="A convolution puts features on axis 1, a linear layer on the last one. BatchNorm keeps statistics for axis 1, "
    "LayerNorm normalizes the last axes. Given a tensor of the other layout, they raise no error if the sizes happen "
    "to fit, and normalize rows of pixels, or time steps, instead of features.",
    effect="the network trains, but worse: features of different scale are mixed, and positions depend on each other",
    fix="move the features to the axis the normalizer expects (transpose, permute), or use GroupNorm(1, channels)",
    example="model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.LayerNorm(6), nn.ReLU())\n"
    "options = {'input_shape': (3, 6, 6)}",
    good="model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(1, 8), nn.ReLU())\n"
    "options = {'input_shape': (3, 6, 6)}",
    slow=True,
    threads=(
        "tensorflow/addons/pull/2142",
        "xieyulai/LSTM-for-Human-Activity-Recognition-using-2D-Pose_Pytorch/issues/2",
        "Zeta36/chess-alpha-zero/pull/90",
        "fkodom/yet-another-retnet/pull/11",
        "gabeur/mmt/issues/1",
        "lucidrains/denoising-diffusion-pytorch/issues/293",
        "lucidrains/lightweight-gan/issues/17",
        "openai/iaf/issues/7",
        "vacancy/Synchronized-BatchNorm-PyTorch/issues/31",
    ),
    explains=("NS101",),
)
