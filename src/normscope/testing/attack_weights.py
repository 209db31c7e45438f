"""Attack the Lipschitz constants in the weights with Jacobians in each weight, at the data and away from it."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from normscope.core.value import Value, log_of
from normscope.lipschitz.weights.result import WeightResult, WeightRow
from normscope.testing.attack_context import AttackContext, find_calls, stacked_model
from normscope.testing.hooked_model import HookedModel, Place
from normscope.testing.input_pairs import along, most_stretched, points_at_all_scales, quotients, unit

#: Samples at which constants in the weights are attacked, and Lanczos steps at each.
SAMPLES, STEPS = 3, 12
#: Relative rounding error of the norm of a Jacobian.
_JACOBIAN = 1e-9
Function = Callable[[Tensor], Tensor]


def attack_weights(context: AttackContext, weights: WeightResult) -> None:
    """Test every certified constant in the weights against derivatives of the model in its weights."""
    parameters = dict(context.hooked.model.named_parameters())
    for row in weights.weights:
        context.say(f"attacking weight {row.name}")
        if row.effective or row.name not in parameters:
            context.skip(f"weights[{row.name}]", "the weight has a parametrization")
            continue
        context.attempt(f"weights[{row.name}]", _attack_weight, row, parameters[row.name])
        context.attempt(f"weights[{row.name}].outputs", _attack_outputs, row)
    context.attempt("weights.stacked", _attack_stacked, weights, parameters)
    context.attempt("weights.jointly", _attack_jointly, weights, parameters)


def _samples(context: AttackContext) -> int:
    return max(1, round(SAMPLES * context.effort))


def _norm(context: AttackContext, function: Function, at: Tensor, *, confirm: bool = True) -> float:
    """Return the logarithm of the norm of a Jacobian, or ``-inf`` where finite differences do not confirm it."""
    x = at.detach().reshape(1, -1)
    norms, direction = most_stretched(function, x, STEPS, context.generator)
    value = float(norms[0])
    if not 0 < value < math.inf:
        return -math.inf
    if confirm and _largest_quotient(function, *along(x, direction), context.noise) <= 0.9 * value:
        return -math.inf
    return math.log(value) - _JACOBIAN - context.noise


def _largest_quotient(function: Function, a: Tensor, b: Tensor, noise: float) -> float:
    """Return the largest quotient over pairs, run one at a time."""
    with torch.no_grad():
        left, right = (torch.cat([function(row[None]) for row in end]) for end in (a, b))
    return float(quotients((left, right), a, b, noise).max())


def _of_weight(hooked: HookedModel, name: str, weight: Tensor, x: Tensor, call: Place = None) -> Function:
    """Return the output of the network, or of one module call, at one point as a function of a weight."""
    watched = () if call is None else call[:1]
    return lambda w: hooked(x, weights={name: w.reshape(weight.shape)}, watched=watched).rows(call)


def _attack_weight(context: AttackContext, row: WeightRow, weight: Tensor) -> None:
    """Test ``||h, W||`` at the data, for small changes and for changes of any size."""
    points = context.data[: _samples(context), None]
    best = max(_norm(context, _of_weight(context.hooked, row.name, weight, x), weight) for x in points)
    wide = [
        v for v in row.constants.values() if "all values of this weight" in v.domain and "for which" not in v.domain
    ]
    far = max((_far(context, row.name, weight, x) for x in points), default=-math.inf) if wide else -math.inf
    for key, value in row.constants.items():
        context.compare(
            "weights", row.name, f"constants.{key}", value, max(best, far) if value in wide else best, "Jacobian"
        )
    if row.best is not None and row.attained is not None:
        context.compare("weights", row.name, "best", row.best, row.attained.log, "the result's own attained")
    call = _call(context, row)
    if row.input_norm is not None and call is not None:
        log = max(_norm(context, _of_weight(context.hooked, row.name, weight, x, call), weight) for x in points)
        context.compare("weights", row.name, "input_norm", row.input_norm, log, "Jacobian of the module")


def _far(context: AttackContext, name: str, weight: Tensor, x: Tensor) -> float:
    """Return the largest quotient over pairs of values of a weight, at every scale."""
    flat = weight.detach().flatten()
    noise = context.random(4, flat.numel()) * flat.norm() / flat.numel() ** 0.5
    starts = torch.stack([flat, 1e-3 * flat, 30 * flat, -flat, *noise, *(1e-3 * noise[:2])])
    function = _of_weight(context.hooked, name, weight, x)
    a, b = along(starts, unit(context.random(*starts.shape)))
    a, b = torch.cat([a, starts]), torch.cat([b, starts.roll(1, 0)])
    return log_of(_largest_quotient(function, a, b, 10 * context.noise)) - _JACOBIAN


def _call(context: AttackContext, row: WeightRow) -> Place:
    """Return the call of the module that owns a weight, if that is the only use of the weight."""
    module = row.name.rpartition(".")[0]
    call = find_calls([module], context.hooked, context.trace).get(module)
    return call if row.uses == 1 and isinstance(call, tuple) else None


def _attack_outputs(context: AttackContext, row: WeightRow) -> None:
    """Test ``||h, y||`` against a shift of the output of the module."""
    call = _call(context, row)
    if call is None:
        context.skip(f"weights[{row.name}].outputs", "the weight is not used exactly once, by its own module")
        return
    size = context.trace.rows(call).shape[1]
    zero = torch.zeros(size, dtype=torch.float64)
    shifted = lambda x: lambda d: context.hooked(x, shifts={call: d}, watched=()).output  # noqa: E731
    at_data = max(_norm(context, shifted(x), zero, confirm=False) for x in context.data[: _samples(context), None])
    pool = points_at_all_scales(context.data, context.hooked.shapes, context.generator)[::6, None]
    anywhere = max(at_data, *(_norm(context, shifted(x), zero, confirm=False) for x in pool))
    for key, value in row.outputs.items():
        log = anywhere if key.startswith("global") else at_data
        context.compare("weights", row.name, f"outputs.{key}", value, log, "Jacobian in the output of the module")


def _attack_stacked(context: AttackContext, weights: WeightResult, parameters: Mapping[str, Tensor]) -> None:
    """Test the constants for a whole batch as one input."""
    found = [row for row in weights.weights if "certified" in row.stacked and row.name in parameters]
    if not found:
        return
    size = min(16, context.batch.batch)
    batch = found[0].stacked["certified"].mode == "batch"
    hooked = stacked_model(context, size, batch_statistics=batch)
    x = hooked.point()[None]
    for row in found:
        weight = parameters[row.name]
        log = _norm(context, _of_weight(hooked, row.name, weight, x), weight)
        context.compare(
            "weights", row.name, "stacked.certified", row.stacked["certified"], log, "Jacobian at the batch"
        )


def _attack_jointly(context: AttackContext, weights: WeightResult, parameters: Mapping[str, Tensor]) -> None:
    value: Value | None = weights.jointly.get("certified")
    names = [row.name for row in weights.weights]
    if value is None or any(name not in parameters for name in names):
        return
    sizes = [parameters[name].numel() for name in names]
    together = torch.cat([parameters[name].detach().flatten() for name in names])

    def function(w: Tensor, x: Tensor) -> Tensor:
        parts = {n: p.reshape(parameters[n].shape) for n, p in zip(names, torch.split(w.flatten(), sizes), strict=True)}
        return context.hooked(x, weights=parts, watched=()).output

    best = -math.inf
    for x in context.data[: _samples(context), None]:
        best = max(best, _norm(context, lambda w, x=x: function(w, x), together))  # type: ignore[misc]
    context.compare("weights", "all", "jointly.certified", value, best, "Jacobian")
