"""Attack the tables of layers and normalizers: each module alone, as the user wrote it."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from normscope.core.result import LayerResult, NormalizerResult
from normscope.core.value import LN10, log_of
from normscope.operators.normalizer import row_of_weights
from normscope.testing.attack_context import AttackContext, find_calls, groups_of, only_normalizes
from normscope.testing.hooked_model import ModuleCall
from normscope.testing.input_pairs import attack, best_pair, points_at_all_scales
from normscope.testing.refutation import Attack

#: Largest number of entries of a matrix that is formed to compute its norm.
DENSE = 4_000_000
#: Relative error of the norm of such a matrix.
_SVD = 1e-10


def attack_layers(context: AttackContext) -> None:
    """Test the norm of every layer, alone and with the normalization after it, against the module itself."""
    calls = find_calls([row.name for row in context.result.layers], context.hooked, context.trace)
    for row in context.result.layers:
        context.say(f"attacking layer {row.name}")
        call = calls[row.name]
        context.attempt(f"layers[{row.name}]", _attack_weight if isinstance(call, str) else _attack_layer, row, call)


def _attack_weight(context: AttackContext, row: LayerResult, why: str) -> None:
    """Test the norm of a matrix without a module of its own against the only parameter of its shape."""
    base = row.name.rpartition("#")[0] or row.name
    module = context.hooked.modules.get(base) or context.hooked.modules.get(base.rpartition(".")[0])
    found = [] if module is None else [p for p in module.parameters(recurse=False) if tuple(p.shape) == row.shape]
    if row.kind != "matrix" or len(row.shape) != 2 or len(found) != 1:
        context.skip(f"layers[{row.name}]", why)
        return
    _compare_norm(context, row, float(torch.linalg.matrix_norm(found[0].detach().double(), ord=2)), "singular values")


def _compare_norm(context: AttackContext, row: LayerResult, norm: float, how: str) -> None:
    log = log_of(norm)
    context.compare("layers", row.name, "upper", row.upper, log - _SVD, how)
    context.compare("layers", row.name, "lower", row.lower, log + _SVD, how)


def _attack_layer(context: AttackContext, row: LayerResult, call: ModuleCall) -> None:
    """Test one layer, and the same with the fixed normalization after it, against the module."""
    function = context.hooked.function(call)
    shape = sample_shape(context, call)
    truth = linear_norm(function, shape)
    if isinstance(truth, str):
        context.skip(f"layers[{row.name}]", truth)
        return
    norm, exact = truth
    if exact:
        _compare_norm(context, row, norm, "singular values")
    else:
        context.compare("layers", row.name, "upper", row.upper, log_of(norm), "pair")
    if row.folded is None:
        return
    after = context.trace.after[call]
    following = [c for c in context.trace.order if context.trace.before.get(c) is after and c != call]
    following = [c for c in following if not any(True for _ in context.hooked.modules[c[0]].children())]
    for other in following:
        second = context.hooked.function(other)
        folded = linear_norm(lambda x, second=second: second(function(x)), shape)  # type: ignore[misc]
        if not isinstance(folded, str) and "norm" in type(context.hooked.modules[other[0]]).__name__.lower():
            context.compare("layers", row.name, "folded", row.folded, log_of(folded[0]) - _SVD, f"with {other[0]}")
            return
    context.skip(f"layers[{row.name}].folded", "no module reads the result of the layer directly")


def sample_shape(context: AttackContext, call: ModuleCall) -> tuple[int, ...]:
    """Return the shape of the input of a module call for one point."""
    shape = tuple(context.trace.before[call].shape)
    return (shape[0] // len(context.trace.output), *shape[1:])


def is_affine(function: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> bool:
    """Return whether a function is affine, by trying it at three points of a line.

    >>> is_affine(lambda x: 3 * x + 1, (1, 4)), is_affine(torch.relu, (1, 4))
    (True, False)
    """
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    with torch.no_grad():
        left, right = function(2 * a - b), 2 * function(a) - function(b)
    return torch.allclose(left, right, rtol=1e-6, atol=1e-6 * float(left.abs().max() + 1e-300))


def linear_norm(function: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> tuple[float, bool] | str:
    """Return the norm of an affine map, and whether it is exact; for other functions, return why there is none.

    The first axis of ``shape`` is part of the batch that the function takes.

    >>> linear_norm(lambda x: 3 * x + 1, (1, 4))
    (3.0, True)
    >>> linear_norm(torch.sin, (1, 4))
    'the module does more than a linear map'
    """
    generator = torch.Generator().manual_seed(0)
    n = math.prod(shape)
    if not is_affine(function, shape):
        return "the module does more than a linear map"
    with torch.no_grad():
        zero = function(torch.zeros(shape, dtype=torch.float64))
        if n * zero.numel() > DENSE:
            flat = lambda x: function(x.reshape(len(x) * shape[0], *shape[1:])).reshape(len(x), -1)  # noqa: E731
            start = torch.randn(2, n, generator=generator, dtype=torch.float64)
            with torch.enable_grad():
                return math.exp(attack(flat, start, noise=1e-13, generator=generator, steps=20).log), False
        eye = torch.eye(n, dtype=torch.float64).reshape(n * shape[0], *shape[1:])
        matrix = function(eye).reshape(n, -1) - zero.flatten()
    return float(torch.linalg.matrix_norm(matrix, ord=2)), True


def attack_normalizers(context: AttackContext) -> None:
    """Test the constant of every normalizer against the module itself, everywhere and at the edge of its floor."""
    calls = find_calls([row.name for row in context.result.normalizers], context.hooked, context.trace)
    for row in context.result.normalizers:
        context.say(f"attacking normalizer {row.name}")
        call = calls[row.name]
        what = f"normalizers[{row.name}]"
        if isinstance(call, str):
            context.skip(what, call)
        elif row_of_weights(row):
            context.attempt(what, _attack_reparametrized, row, call)
        else:
            context.attempt(what, _attack_normalizer, row, call)


def _attack_reparametrized(context: AttackContext, row: NormalizerResult, call: ModuleCall) -> None:
    """Test the number of a normalizer of weights against the layer whose weight it normalizes."""
    truth = linear_norm(context.hooked.function(call), sample_shape(context, call))
    if isinstance(truth, str):
        context.skip(f"normalizers[{row.name}]", truth)
        return
    context.compare("normalizers", row.name, "proved", row.proved, log_of(truth[0]) - _SVD, "singular values")


def _attack_normalizer(context: AttackContext, row: NormalizerResult, call: ModuleCall) -> None:
    """Test one normalizer of activations against its module."""
    module = context.hooked.modules[call[0]]
    if not only_normalizes(context, call):
        context.skip(f"normalizers[{row.name}]", f"{type(module).__name__} may do more than normalize")
        return
    apply = context.hooked.function(call)
    seen = context.trace.before[call].detach()
    n = len(context.trace.output)
    shape = (seen.shape[0] // n, *seen.shape[1:])
    flat = lambda x: apply(x.reshape(len(x) * shape[0], *shape[1:])).reshape(len(x), -1)  # noqa: E731
    data = seen.reshape(n, -1)
    points = points_at_all_scales(data, [shape], context.generator)
    found = attack(flat, points, noise=context.noise, generator=context.generator)
    context.compare("normalizers", row.name, "proved", row.proved, found, "pair")
    if row.on_floor is None:
        return
    groups = groups_of(row, module, seen, apply)
    if groups is None:
        pair = best_pair(flat, data.repeat(n, 1), data.repeat_interleave(n, 0), context.noise, context.generator)
        context.compare("normalizers", row.name, "on_floor", row.on_floor, pair, "pair of the data")
        return
    base = torch.cat([data[:4], context.random(4, data.shape[1])])
    edge = groups.at_edge(base.reshape(len(base) * shape[0], *shape[1:])).reshape(len(base), -1)
    inside = lambda x: groups.inside(x.reshape(len(x) * shape[0], *shape[1:]), len(x))  # noqa: E731
    found = attack(flat, edge, noise=context.noise, generator=context.generator, inside=inside)
    context.compare("normalizers", row.name, "on_floor", row.on_floor, found, "pair at the edge of the floor")


def attack_effect(context: AttackContext) -> None:
    """Test certified products of rows against the products of what was attained at each of them."""
    attained = {(a.table, a.name, a.number): a.attained for a in context.attacks}
    folded = [row.name for row in context.result.layers if row.folded is not None]
    fixed = [row.name for row in context.result.normalizers if "slides" in row.details]
    for key, field, rows in (
        ("folded_product", "log10", [("layers", name, "folded") for name in folded]),
        ("folded_product", "weights_log10", [("layers", name, "upper") for name in folded]),
        ("normalizer_product", "log10", [("normalizers", name, "proved") for name in fixed]),
    ):
        claim = context.result.effect.get(key)
        if claim is None or not all(row in attained for row in rows):
            continue
        log10 = float(claim[field])
        if log10 < math.inf:
            claimed, found = log10 * LN10 + 1e-12 * abs(log10), math.fsum(attained[row] for row in rows)
            context.attacks.append(Attack("effect", key, field, "", claimed, found, how="product of the rows"))
