"""The constant of each normalizer at its place: proved on several domains, and as the papers print it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from normscope.core.value import Kind, Value
from normscope.operators.normalization import Spread
from normscope.operators.normalizer import Constants, normalizers
from normscope.operators.normalizers.batch_norm import batch_norm_printed, batch_norm_running, batch_norm_slides
from normscope.operators.normalizers.group_norm import group_norm_printed
from normscope.operators.normalizers.layer_norm import layer_norm_printed
from normscope.operators.normalizers.response_norm import response_norm_global
from normscope.operators.site import Site
from normscope.operators.spread_constants import scaled_constant

#: Normalizers that act on weights: they change the effective weight and have no constant of their own in the input.
OF_WEIGHTS = ("weight_norm", "spectral_norm", "weight_standardization")


def site_constants(site: Site, floor: Tensor | None, mode: str) -> Constants:
    """Return the constants of a normalizer.

    Args:
        site: the normalizer.
        floor: least spread of each group seen before it, if data was given.
        mode: what BatchNorm does: ``running``, ``batch`` or ``frozen-batch``.
    """
    if site.kind in normalizers():
        return normalizers()[site.kind].constants(site, floor, mode)
    if site.kind in OF_WEIGHTS:
        one = Value(0.0, Kind.CERTIFIED, statement="acts on the weight: see the effective weight of its layer")
        return Constants(one, None, None, None)
    if site.running is not None:
        return _fixed(site, mode)
    if site.kind == "global_response_norm":
        channels = site.shape[-1] if site.gamma is None else site.gamma.numel()
        gamma = torch.ones(channels, dtype=torch.float64) if site.gamma is None else site.gamma.double().flatten()
        proved = Value.of(response_norm_global(gamma), Kind.CERTIFIED, statement="normscope GRN")
        return Constants(proved, None, None, None)
    if site.spread is None:
        return Constants(Value(math.inf, Kind.CERTIFIED), None, None, None)
    return _spread(site, site.spread, floor, "batch" if site.kind == "batch_norm" else mode)


def _fixed(site: Site, mode: str) -> Constants:
    """Fixed statistics (F1): ``max |gamma| / sqrt(var + eps)``; Lemma 1 prints the l2 norm of the vector."""
    variance = site.running[1].detach().double().flatten()  # type: ignore[index]
    gamma = None if site.gamma is None else site.gamma.detach().double().flatten()
    if bool((variance + site.eps == 0).any()):  # a division by zero: torch gives infinity and NaN
        none = Value(math.inf, Kind.CERTIFIED, mode=mode, statement="normscope F1")
        return Constants(none, None, None, None)
    proved = Value.of(
        batch_norm_running(gamma, variance, site.eps), Kind.CERTIFIED, mode=mode, statement="normscope F1"
    )
    printed = Value.of(batch_norm_printed(variance, site.eps), Kind.PRINTED, mode=mode, statement="than2025 Lemma 1")
    scale = torch.ones_like(variance) if gamma is None else gamma
    slides = Value.of(
        batch_norm_slides(scale, variance, site.eps), Kind.PRINTED, mode=mode, statement="than2025slides BN"
    )
    return Constants(proved, None, printed, printed.log >= proved.log, slides)


def _spread(site: Site, spread: Spread, floor: Tensor | None, mode: str) -> Constants:
    """Statistics of the input itself (F2-F6): ``||Gamma P|| / sqrt(s^2 + eps)`` with s = 0 on all inputs."""
    batch = mode if site.kind == "batch_norm" else None
    statement = {"rms_norm": "normscope F6", "instance_norm": "normscope F5"}.get(
        site.kind, "normscope F2" if site.kind == "batch_norm" else "normscope F3"
    )
    shape = [1 if i != spread.channel_axis else n for i, n in enumerate(spread.view)]
    zero = torch.zeros(shape, dtype=torch.float64)
    proved = Value.of(scaled_constant(site, spread, zero), Kind.CERTIFIED, mode=batch, statement=statement)
    on_floor = None
    if floor is not None:
        name = f"std before it >= {float(floor.min()):.6g}"
        if float(floor.max()) > float(floor.min()):
            name = f"stds before it above those seen, each channel's its own (the least is {float(floor.min()):.6g})"
        on_floor = Value.of(
            scaled_constant(site, spread, floor), Kind.CERTIFIED, domain=name, mode=batch, statement=statement
        )
    printed = _printed(site, zero if floor is None else floor, batch)
    against = proved if on_floor is None else on_floor
    bound = None if printed is None else printed.log >= against.log - 1e-12
    return Constants(proved, on_floor, printed, bound)


def _printed(site: Site, floor: Tensor, mode: str | None) -> Value | None:
    """Return Lemma 2 (one group) or Lemma 3 (several) at the least spreads; there is none for RMSNorm and l2."""
    if site.kind == "layer_norm":
        number, where = layer_norm_printed(float(floor.min()), site.eps), "Lemma 2"
    elif site.kind == "instance_norm":
        number, where = group_norm_printed(floor.flatten(), site.eps), "Lemma 3"
    elif site.kind == "batch_norm":
        number, where = batch_norm_printed(floor.flatten().square(), site.eps), "Lemma 1"
    else:
        return None
    return Value.of(number, Kind.PRINTED, mode=mode, statement=f"than2025 {where}")


def describe(site: Site) -> dict[str, Any]:
    """Return facts about a normalizer for the report."""
    details: dict[str, Any] = {"eps": site.eps, "module": site.owner, "written_out": site.written_out}
    if site.spread is not None:
        details["group_size"] = site.spread.size
    if site.running is not None:
        variance = site.running[1].detach().double()
        details["std_min"] = float(variance.min().clamp_min(0).sqrt())
        details["std_max"] = float(variance.max().clamp_min(0).sqrt())
        details["channels"] = variance.numel()
    if site.gamma is not None:
        details["gamma_max"] = float(site.gamma.detach().abs().max())
    return details
