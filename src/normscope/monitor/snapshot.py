"""One moment of a training run, as quantities see it: read from the live model when first used."""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from normscope.core.errors import NonFiniteError
from normscope.monitor.view import Layer, Look, MapOf, Normalizer, View
from normscope.monitor.warm_norms import WarmNorms
from normscope.operators.normalizer import Constants, site_constants


class Snapshot:
    """The model at one step.

    Args:
        view: the model and its probe.
        step: the number of updates so far.
        rates: learning rate of each parameter, by name; empty if unknown.
        previous: the weights of the layers one update before, if they were kept.
        gradient: whether the pass over the probe also differentiates.
        norms: what is remembered of the layers' norms from earlier moments.
        survived: a context in which a layer or normalizer is measured, by the name of its metric; one that swallows
            what fails leaves that layer out, and no other. By default what fails is raised.

    Attributes:
        changed: what makes it another model than at the last moment; nothing if it is the same.
    """

    def __init__(
        self,
        view: View,
        step: int,
        *,
        rates: Mapping[str, float] | None = None,
        previous: Mapping[str, Tensor] | None = None,
        gradient: bool = False,
        norms: WarmNorms | None = None,
        survived: Callable[[str], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.changed = view.refresh()
        self.view, self.step = view, step
        self._norms = WarmNorms() if norms is None else norms
        self.rates, self.previous = dict(rates or {}), dict(previous or {})
        self._gradient, self._survived = gradient, survived

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """Return the linear layers."""
        return self.view.layers()

    @cached_property
    def normalizers(self) -> tuple[Normalizer, ...]:
        """Return the normalizers."""
        return self.view.normalizers()

    @cached_property
    def parameters(self) -> dict[str, Tensor]:
        """Return the live parameters, detached."""
        return self.view.parameters()

    @cached_property
    def look(self) -> Look:
        """Return the pass over the probe batch, made once for all quantities."""
        return self.view.look(gradient=self._gradient)

    @cached_property
    def loss(self) -> float | None:
        """Return the loss on the probe."""
        return None if self.look.loss is None else float(self.look.loss.detach())

    @cached_property
    def gradients(self) -> dict[str, Tensor]:
        """Return the gradient of the loss on the probe, by parameter."""
        if self._gradient:
            return self.look.gradients
        return self.view.look(gradient=True, statistics=False).gradients

    def moved(self, direction: Mapping[str, Tensor], by: float) -> tuple[float, dict[str, Tensor]]:
        """Return loss and gradient on the probe at ``w + by * direction``; the model itself stays where it is."""
        with torch.no_grad():
            point = {n: torch.add(self.parameters[n], d, alpha=by) for n, d in direction.items()}
        look = self.view.look(gradient=True, statistics=False, parameters=point)
        return (float("nan") if look.loss is None else float(look.loss.detach())), look.gradients

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """Return the parameter of each layer, by the layer's name."""
        return {x.name: self.parameters[x.parameter] for x in self.layers if x.parameter in self.parameters}

    @cached_property
    def norms(self) -> dict[str, float]:
        """Return the spectral norm of every layer from below, by its name; of those that have one now."""
        found: dict[str, float] = {}
        for layer in self.layers:
            with self._survived(f"norm/{layer.name}"):
                found[layer.name] = self._norm(layer.name, layer.map)
        return found

    @cached_property
    def folded_norms(self) -> dict[str, float]:
        """Return the norm of every layer that fixed normalization follows, together with it, from below."""
        found: dict[str, float] = {}
        for layer in self.layers:
            if layer.folded is not None:
                with self._survived(f"folded/{layer.name}"):
                    found[layer.name] = self._norm(f"{layer.name} folded", layer.folded)
        return found

    def _norm(self, name: str, map_of: MapOf) -> float:
        """Return the norm of a map from below."""
        norm = self._norms.measure(name, map_of)
        if not math.isfinite(norm):
            raise NonFiniteError("A layer with NaN or infinite weights has no norm.")
        return norm

    @cached_property
    def constants(self) -> dict[str, Constants]:
        """Return the constants of every normalizer; with statistics of its input, where they stay above the probe's."""
        found: dict[str, Constants] = {}
        for normalizer in self.normalizers:
            with self._survived(f"constant/{normalizer.name}"):
                found[normalizer.name] = self.constants_of(normalizer)
        return found

    def constants_of(self, normalizer: Normalizer, *, scaled: bool = True) -> Constants:
        """Return the constants of a normalizer, with or without its scale; they are computed on the CPU."""
        site, floor = normalizer.site, self.look.floors.get(normalizer.name)
        gamma = site.gamma.cpu() if scaled and site.gamma is not None else None
        running = None if site.running is None else (site.running[0].cpu(), site.running[1].cpu())
        site = replace(site, gamma=gamma, running=running)
        return site_constants(site, None if floor is None else floor.cpu(), "running")

    @cached_property
    def updates(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the weight of each layer one update before and now, by its name, where both are of one shape."""
        pairs = {x.name: (self.previous.get(x.parameter), self.parameters.get(x.parameter)) for x in self.layers}
        return {n: (a, b) for n, (a, b) in pairs.items() if a is not None and b is not None and a.shape == b.shape}
