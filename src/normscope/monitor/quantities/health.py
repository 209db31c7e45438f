"""What the doctor follows during a run: statistics, modes, batches, logits, scales, and non-finite values."""

import torch
from torch import Tensor, nn

from normscope.doctor.modules import batch_norms, is_normalizer
from normscope.doctor.rules.drifted_statistics import channel_drift
from normscope.monitor.quantity import Chart, Description, Kind, Quantity, Snapshot

_LAYER = "the layer"


class Health(Quantity):
    """The metrics of BatchNorms, normalizers and attentions that the doctor's rules read."""

    name = "health"
    preset = "economy"
    cost = 3
    charts = (
        Chart("not-finite", "NaN and infinite entries", "linear", ("not_finite/*",), 90),
        Chart("drift", "Distance of running statistics from those of the probe", "log", ("drift/*",), 100),
        Chart("training", "Whether each BatchNorm is in train mode", "linear", ("training/*",), 110),
        Chart("tracked", "Batches each BatchNorm has seen per step", "linear", ("tracked/*",), 120),
        Chart("logit", "Largest attention logit", "log", ("logit/*",), 130),
        Chart("scale-moved", "Distance of each scale from its initial value", "log", ("scale_moved/*",), 140),
    )
    describes = (
        Description("drift/*", Kind.ESTIMATE, "distance of running statistics from those of the probe, median channel"),
        Description("training/*", Kind.ESTIMATE, "whether a BatchNorm is in train mode", domain=_LAYER),
        Description("tracked/*", Kind.ESTIMATE, "batches a BatchNorm has seen per step", domain=_LAYER),
        Description("logit/*", Kind.ESTIMATE, "largest distance of an attention logit from the median of its row"),
        Description(
            "scale_moved/*", Kind.ESTIMATE, "relative distance of a scale from its initial value", domain=_LAYER
        ),
        Description(
            "not_finite/*",
            Kind.ESTIMATE,
            "NaN and infinite entries of the network's first layer that has any at the probe",
        ),
    )

    def __init__(self) -> None:
        self._starts: dict[str, Tensor] = {}
        self._counts: dict[str, tuple[int, int]] = {}

    def measure(self, moment: Snapshot) -> dict[str, float]:
        """Return all of these metrics."""
        model = moment.view.model
        found = {f"training/{path}": float(bn.training) for path, bn in batch_norms(model)}
        found |= self._tracked(model, moment.step)
        found |= self._scales(model)
        found |= {f"logit/{place}": distance for place, distance in moment.probe_pass.logits.items()}
        found |= _drifts(moment)
        return found | _not_finite(model, moment)

    def _tracked(self, model: nn.Module, step: int) -> dict[str, float]:
        """Return batches per step since the last probe."""
        found = {}
        for path, bn in batch_norms(model):
            count = getattr(bn, "num_batches_tracked", None)
            if count is None:
                continue
            before, then = self._counts.get(path, (0, step))
            if step > then:
                found[f"tracked/{path}"] = (int(count) - before) / (step - then)
            if step > then or path not in self._counts:
                self._counts[path] = int(count), step
        return found

    def _scales(self, model: nn.Module) -> dict[str, float]:
        """Return the relative distance of each trained scale from its first value."""
        found = {}
        for path, module in model.named_modules():
            scale = getattr(module, "weight", None) if is_normalizer(module) else None
            if not isinstance(scale, Tensor) or not scale.requires_grad:
                continue
            now = scale.detach().float()
            start = self._starts.setdefault(path, now.clone())
            if start.shape == now.shape:
                found[f"scale_moved/{path}"] = float((now - start).norm() / start.norm().clamp_min(1e-12))
        return found


def _drifts(moment: Snapshot) -> dict[str, float]:
    found = {}
    for normalizer in moment.normalizers:
        site, name = normalizer.site, normalizer.name
        mean, variance = moment.probe_pass.means.get(name), moment.probe_pass.variances.get(name)
        if site.running is not None and mean is not None and variance is not None:
            found[f"drift/{name}"] = channel_drift(mean, variance, site.running, site.eps)
    return found


def _not_finite(model: nn.Module, moment: Snapshot) -> dict[str, float]:
    """Return the number of non-finite entries of the first layer whose weights, or inputs on the probe, have any."""
    tensors = [(name.rpartition(".")[0] or name, p.detach()) for name, p in model.named_parameters()]
    tensors += list((moment.probe_pass.variances | moment.probe_pass.activations).items())
    for place, tensor in tensors:
        broken = int((~torch.isfinite(tensor)).sum()) if tensor.is_floating_point() else 0
        if broken:
            return {f"not_finite/{place}": float(broken)}
    return {}
