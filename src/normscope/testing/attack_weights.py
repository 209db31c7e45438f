"""Attack the constants in the weights: Jacobians with respect to each weight, at the data and away from it."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from normscope.core.value import Value, log_of
from normscope.lipschitz.weights.result import WeightResult, WeightRow
from normscope.testing.hooked_model import Call, HookedModel
from normscope.testing.pairs import along, everywhere, most_stretched, quotients, unit
from normscope.testing.scene import Scene, find_calls, stacked_model

#: Samples at which constants in the weights are attacked, and steps of Lanczos at each.
SAMPLES, STEPS = 3, 12
#: Relative error of a Jacobian's norm that automatic differentiation leaves.
_JACOBIAN = 1e-9
Function = Callable[[Tensor], Tensor]


def attack_weights(scene: Scene, weights: WeightResult) -> None:
    """Hold every certified constant in the weights against derivatives of the model in its weights."""
    parameters = dict(scene.hooked.model.named_parameters())
    for row in weights.weights:
        scene.say(f"attacking weight {row.name}")
        if row.effective or row.name not in parameters:
            scene.skip(f"weights[{row.name}]", "the weight has a parametrization")
            continue
        scene.attempt(f"weights[{row.name}]", _attack_weight, row, parameters[row.name])
        scene.attempt(f"weights[{row.name}].outputs", _attack_outputs, row)
    scene.attempt("weights.stacked", _attack_stacked, weights, parameters)
    scene.attempt("weights.jointly", _attack_jointly, weights, parameters)


def _samples(scene: Scene) -> int:
    """Return at how many points to look."""
    return max(1, round(SAMPLES * scene.effort))


def _norm(scene: Scene, function: Function, at: Tensor) -> float:
    """Return the logarithm of the norm of a Jacobian, or ``-inf`` where no difference comes near it."""
    x = at.detach().clone().reshape(1, -1).requires_grad_(True)
    with torch.enable_grad():
        y = function(x)
    norms, direction = most_stretched(y.reshape(1, -1), x, STEPS, scene.generator)
    value = float(norms[0])
    if not value > 0 or not math.isfinite(value):
        return -math.inf
    a, b = along(x.detach(), direction)
    with torch.no_grad():
        images = [torch.cat([function(row[None]).reshape(1, -1) for row in end]) for end in (a, b)]
    seen = float(quotients((images[0], images[1]), a, b, scene.noise).max())
    return math.log(value) - _JACOBIAN - scene.noise if seen > 0.9 * value else -math.inf


def _of_weight(hooked: HookedModel, name: str, weight: Tensor, x: Tensor, call: Call | None = None) -> Function:
    """Return the network, or what comes out of a call, at one point as a function of a weight."""
    watched = () if call is None else call[:1]
    return lambda w: hooked(x, weights={name: w.reshape(weight.shape)}, watched=watched).rows(call)


def _attack_weight(scene: Scene, row: WeightRow, weight: Tensor) -> None:
    """Hold ``||h, W||`` at the data, for small changes and for changes of any size."""
    points = scene.data[: _samples(scene), None]
    best = max(_norm(scene, _of_weight(scene.hooked, row.name, weight, x), weight) for x in points)
    wide = [
        v for v in row.constants.values() if "all values of this weight" in v.domain and "for which" not in v.domain
    ]
    far = max((_far(scene, row.name, weight, x) for x in points), default=-math.inf) if wide else -math.inf
    for key, value in row.constants.items():
        scene.hold(
            "weights", row.name, f"constants.{key}", value, max(best, far) if value in wide else best, "Jacobian"
        )
    if row.best is not None and row.attained is not None:
        scene.hold("weights", row.name, "best", row.best, row.attained.log, "the result's own attained")
    call = _call(scene, row)
    if row.input_norm is not None and call is not None:
        log = max(_norm(scene, _of_weight(scene.hooked, row.name, weight, x, call), weight) for x in points)
        scene.hold("weights", row.name, "input_norm", row.input_norm, log, "Jacobian of the module")


def _far(scene: Scene, name: str, weight: Tensor, x: Tensor) -> float:
    """Return the largest quotient over pairs of values of a weight, at every scale."""
    flat = weight.detach().flatten()
    noise = scene.random(4, flat.numel()) * flat.norm() / flat.numel() ** 0.5
    starts = torch.stack([flat, 1e-3 * flat, 30 * flat, -flat, *noise, *(1e-3 * noise[:2])])
    function = _of_weight(scene.hooked, name, weight, x)
    a, b = along(starts, unit(scene.random(*starts.shape)))
    a, b = torch.cat([a, starts]), torch.cat([b, starts.roll(1, 0)])
    with torch.no_grad():
        images = [torch.cat([function(row[None]) for row in end]) for end in (a, b)]
    value = float(quotients((images[0], images[1]), a, b, 10 * scene.noise).max())
    return log_of(value) - _JACOBIAN


def _call(scene: Scene, row: WeightRow) -> Call | None:
    """Return the one call of the module that a weight belongs to, if there is one and it applies the weight itself."""
    module = row.name.rpartition(".")[0]
    call = find_calls([module], scene.hooked, scene.trace).get(module)
    return call if row.uses == 1 and isinstance(call, tuple) else None


def _attack_outputs(scene: Scene, row: WeightRow) -> None:
    """Hold ``||h, y||`` against a shift of what comes out of the module."""
    call = _call(scene, row)
    if call is None:
        scene.skip(f"weights[{row.name}].outputs", "the weight is not used exactly once, by its own module")
        return
    size = scene.trace.rows(call).shape[1]
    zero = torch.zeros(size, dtype=torch.float64)
    shifted = lambda x: lambda d: scene.hooked(x, shifts={call: d}, watched=()).output  # noqa: E731
    at_data = max(_shift(scene, shifted(x), zero) for x in scene.data[: _samples(scene), None])
    pool = everywhere(scene.data, scene.hooked.shapes, scene.generator)[::6, None]
    anywhere = max(at_data, *(_shift(scene, shifted(x), zero) for x in pool))
    for key, value in row.outputs.items():
        log = anywhere if key.startswith("global") else at_data
        scene.hold("weights", row.name, f"outputs.{key}", value, log, "Jacobian in the output of the module")


def _shift(scene: Scene, function: Function, zero: Tensor) -> float:
    """Return the logarithm of the norm of the Jacobian in a shift, at none."""
    x = zero.clone()[None].requires_grad_(True)
    with torch.enable_grad():
        y = function(x)
    value = float(most_stretched(y.reshape(1, -1), x, STEPS, scene.generator)[0][0])
    return math.log(value) - _JACOBIAN - scene.noise if value > 0 and math.isfinite(value) else -math.inf


def _attack_stacked(scene: Scene, weights: WeightResult, parameters: Mapping[str, Tensor]) -> None:
    """Hold the constants of a batch as one input."""
    found = [row for row in weights.weights if "certified" in row.stacked and row.name in parameters]
    if not found:
        return
    size = min(16, scene.batch.batch)
    batch = found[0].stacked["certified"].mode == "batch"
    hooked = stacked_model(scene, size, batch_statistics=batch)
    x = hooked.point()[None]
    for row in found:
        weight = parameters[row.name]
        log = _norm(scene, _of_weight(hooked, row.name, weight, x), weight)
        scene.hold("weights", row.name, "stacked.certified", row.stacked["certified"], log, "Jacobian at the batch")


def _attack_jointly(scene: Scene, weights: WeightResult, parameters: Mapping[str, Tensor]) -> None:
    """Hold the constant in all weights together."""
    value: Value | None = weights.jointly.get("certified")
    names = [row.name for row in weights.weights]
    if value is None or any(name not in parameters for name in names):
        return
    sizes = [parameters[name].numel() for name in names]
    together = torch.cat([parameters[name].detach().flatten() for name in names])

    def function(w: Tensor, x: Tensor) -> Tensor:
        parts = {n: p.reshape(parameters[n].shape) for n, p in zip(names, torch.split(w.flatten(), sizes), strict=True)}
        return scene.hooked(x, weights=parts, watched=()).output

    best = -math.inf
    for x in scene.data[: _samples(scene), None]:
        best = max(best, _norm(scene, lambda w, x=x: function(w, x), together))  # type: ignore[misc]
    scene.hold("weights", "all", "jointly.certified", value, best, "Jacobian")
