"""One moment of a training run, as quantities see it: everything is read from the live model when first asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from normscope.lipschitz.normalizers import Constants, site_constants
from normscope.monitor.view import Layer, Look, Normalizer, View
from normscope.monitor.warm import WarmNorms
from normscope.operators.site import Site


class Snapshot:
    """The model at one step.

    Args:
        view: the model and its probe.
        step: the number of updates so far.
        rates: learning rate of each parameter, by name; empty if unknown.
        previous: the weights of the layers one update before, if they were kept.
        gradient: whether the pass over the probe also differentiates.
        norms: what is remembered of the layers' norms from earlier moments.
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
    ) -> None:
        view.refresh()
        self.view, self.step = view, step
        self._norms = WarmNorms() if norms is None else norms
        self.rates, self.previous = dict(rates or {}), dict(previous or {})
        self._gradient = gradient

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
        """Return the spectral norm of every layer from below, by its name."""
        return {x.name: self._norms.measure(x.name, x.map) for x in self.layers}

    @cached_property
    def folded_norms(self) -> dict[str, float]:
        """Return the norm of every layer that fixed normalization follows, together with it, from below."""
        return {x.name: self._norms.measure(f"{x.name} folded", x.folded) for x in self.layers if x.folded is not None}

    @cached_property
    def constants(self) -> dict[str, Constants]:
        """Return the constants of every normalizer; with statistics of its input, where they stay above the probe's."""
        floors = {name: floor.cpu() for name, floor in self.look.floors.items()}
        return {n.name: site_constants(_on_cpu(n.site), floors.get(n.name), "running") for n in self.normalizers}


def _on_cpu(site: Site) -> Site:
    """Return a normalizer with its parameters on the CPU, where constants are computed."""
    gamma = None if site.gamma is None else site.gamma.cpu()
    running = None if site.running is None else (site.running[0].cpu(), site.running[1].cpu())
    return replace(site, gamma=gamma, running=running)
