"""One moment of a training run, as quantities see it: read from the model when first used."""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from normscope.core.errors import NonFiniteError
from normscope.monitor.view import MapOf, MonitoredLayer, MonitoredNormalizer, ProbePass, View
from normscope.monitor.warm_norms import WarmNorms
from normscope.operators.normalizer import Constants, site_constants


@dataclass(eq=False)
class Snapshot:
    """The model at one step."""

    view: View  #: the model and its probe
    step: int  #: the number of updates so far
    rates: Mapping[str, float] = field(default_factory=dict)  #: learning rates by parameter; empty if unknown
    #: the weights of the layers before the last update, if they were kept
    previous: Mapping[str, Tensor] = field(default_factory=dict)
    gradient: bool = False  #: whether the pass over the probe also differentiates
    #: computes spectral norms, starting from those of earlier moments
    warm_norms: WarmNorms = field(default_factory=WarmNorms)
    #: returns a context, given the name of a metric, in which a layer or normalizer is measured; if the context
    #: swallows an exception, only that layer is left out
    tolerate: Callable[[str], AbstractContextManager[Any]] = nullcontext
    #: how the model itself differs from that of the last moment; empty if it does not
    changed: str = field(init=False)

    def __post_init__(self) -> None:
        self.changed = self.view.refresh()

    @cached_property
    def layers(self) -> tuple[MonitoredLayer, ...]:
        """Return the linear layers."""
        return self.view.layers()

    @cached_property
    def normalizers(self) -> tuple[MonitoredNormalizer, ...]:
        """Return the normalizers."""
        return self.view.normalizers()

    @cached_property
    def parameters(self) -> dict[str, Tensor]:
        """Return the current parameters, detached."""
        return self.view.parameters()

    @cached_property
    def probe_pass(self) -> ProbePass:
        """Return the pass over the probe batch, made once for all quantities."""
        return self.view.run_probe(gradient=self.gradient)

    @cached_property
    def loss(self) -> float | None:
        """Return the loss on the probe."""
        return None if self.probe_pass.loss is None else float(self.probe_pass.loss.detach())

    @cached_property
    def gradients(self) -> dict[str, Tensor]:
        """Return the gradient of the loss on the probe, by parameter."""
        if self.gradient:
            return self.probe_pass.gradients
        return self.view.run_probe(gradient=True, statistics=False).gradients

    def moved(self, direction: Mapping[str, Tensor], by: float) -> tuple[float, dict[str, Tensor]]:
        """Return loss and gradient on the probe at ``w + by * direction``, without changing the model."""
        with torch.no_grad():
            point = {n: torch.add(self.parameters[n], d, alpha=by) for n, d in direction.items()}
        found = self.view.run_probe(gradient=True, statistics=False, parameters=point)
        return (float("nan") if found.loss is None else float(found.loss.detach())), found.gradients

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """Return the parameter of each layer, by the layer's name."""
        return {x.name: self.parameters[x.parameter] for x in self.layers if x.parameter in self.parameters}

    @cached_property
    def not_finite(self) -> dict[str, str]:
        """Return what contains NaN or infinite values, by the name of the layer or normalizer, which is skipped."""
        found: dict[str, str] = {}
        model = self.view.model
        if not all(bool(torch.isfinite(t).all()) for t in (*model.parameters(), *model.buffers())):
            for layer in self.layers:
                with self.tolerate(f"norm/{layer.name}"):
                    weight = layer.map(torch.float32)
                    image = weight.apply(torch.ones(weight.domain_shape, device=weight.device))
                    if not bool(torch.isfinite(image).all()):
                        found[layer.name] = f"the weights of {layer.name}"
        for normalizer in self.normalizers:
            held = (("scale", (normalizer.site.gamma,)), ("running statistics", normalizer.site.running or ()))
            for what, tensors in held:
                if not all(t is None or bool(torch.isfinite(t).all()) for t in tensors):
                    found.setdefault(normalizer.name, f"the {what} of {normalizer.name}")
        return found

    @cached_property
    def norms(self) -> dict[str, float]:
        """Return a lower bound on the spectral norm of every layer, by name; layers that fail are left out."""
        found: dict[str, float] = {}
        for layer in self.layers:
            if layer.name in self.not_finite:
                continue
            with self.tolerate(f"norm/{layer.name}"):
                found[layer.name] = self._norm(layer.name, layer.map)
        return found

    @cached_property
    def folded_norms(self) -> dict[str, float]:
        """Return the same for every layer folded with the fixed normalization after it."""
        found: dict[str, float] = {}
        broken = {n.site.node for n in self.normalizers if n.name in self.not_finite}
        for layer in self.layers:
            if layer.folded is not None and layer.name not in self.not_finite and layer.normalizer not in broken:
                with self.tolerate(f"folded/{layer.name}"):
                    found[layer.name] = self._norm(f"{layer.name} folded", layer.folded)
        return found

    def _norm(self, name: str, map_of: MapOf) -> float:
        norm = self.warm_norms.measure(name, map_of)
        if not math.isfinite(norm):
            raise NonFiniteError("The norm of this layer is not finite.")
        return norm

    @cached_property
    def constants(self) -> dict[str, Constants]:
        """Return the constants of every normalizer, where the spread of its input is at least that of the probe."""
        found: dict[str, Constants] = {}
        for normalizer in self.normalizers:
            floor = self.probe_pass.floors.get(normalizer.name)
            if normalizer.name in self.not_finite or (floor is not None and not bool(torch.isfinite(floor).all())):
                continue
            with self.tolerate(f"constant/{normalizer.name}"):
                found[normalizer.name] = self.constants_of(normalizer)
        return found

    def constants_of(self, normalizer: MonitoredNormalizer, *, scaled: bool = True) -> Constants:
        """Return the constants of a normalizer, with or without its scale; they are computed on the CPU."""
        site, floor = normalizer.site, self.probe_pass.floors.get(normalizer.name)
        gamma = site.gamma.cpu() if scaled and site.gamma is not None else None
        running = None if site.running is None else (site.running[0].cpu(), site.running[1].cpu())
        site = replace(site, gamma=gamma, running=running)
        return site_constants(site, None if floor is None else floor.cpu(), "running")

    @cached_property
    def updates(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the weight of each layer before and after the last update, by name, where both have the same shape."""
        pairs = {x.name: (self.previous.get(x.parameter), self.parameters.get(x.parameter)) for x in self.layers}
        return {n: (a, b) for n, (a, b) in pairs.items() if a is not None and b is not None and a.shape == b.shape}
