"""Rows of the bounds by cells of inputs: Theorem 20 of than2025, its corollaries, and Hou et al."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from normscope.analysis.bounds.cells import BoundedLoss, bounded_losses
from normscope.analysis.bounds.context import BoundsContext, RowMaker, plus, row_of
from normscope.analysis.bounds.measured_network import MeasuredNetwork, gradient_norms
from normscope.analysis.bounds.result import BoundRow, RefusedError
from normscope.core.rounding import up
from normscope.core.value import Kind, Value, product, total
from normscope.generalization import (
    corollary_21,
    corollary_22,
    g_multinomial,
    g_paper,
    g_tight,
    g_total_variation,
    held_out_local_term,
    hou_bound,
    theorem_20_printed,
)
from normscope.lipschitz.theorem_9 import corollary_10, corollary_11, lemma_5

#: The most that a cell can add: a loss between 0 and 1 changes by no more.
_LARGEST = 1.0


def theorem_20(s: BoundsContext) -> BoundRow:
    """Return Theorem 20, repaired: one label per cell, diameters, certified constants, the least of three terms."""
    cells, local, terms = s.cells, s.local, _terms(s, s.delta)

    def within(loss: BoundedLoss) -> Value:
        moves = (local.of_loss(loss) * cells.diameters).clamp_max(_LARGEST)
        return Value.of(up(cells.mean(moves), 16.0), Kind.CERTIFIED)

    least = _least_term(terms)
    value, loss, term = _best(s, within, least)
    value = replace(value, statement="normscope Proposition GEN-4", kind=Kind.PROBABILISTIC, delta=s.delta)
    whole = total((_risk(s, loss), term))
    shown: dict[str, Any] = {"local term": term.value, "loss": loss.name}
    shown |= {name: g.value for name, g in terms.items()}
    for name, g in _terms(s, s.delta, parts=1).items():
        shown[f"error with {name} alone"] = total((whole, g)).value
    shown |= {"flat cells": int(((local.of_loss(loss) == 0) & (cells.counts > 0)).sum()), "balls": local.balls}
    shown |= {"diameter": cells.diameter, "cells": cells.cells, "occupied": cells.occupied}
    if s.network.constant.log < math.inf:
        far = Value.of(cells.mean(cells.diameters), Kind.CERTIFIED)
        uncut = _with_constant(s, s.network.constant, far, least)[0]
        shown["log10 with one constant for all inputs, uncut"] = uncut.log10
    return row_of("Theorem 20, repaired", value, s, of=loss.of, note=local.note, details=shown)


def theorem_20_held_out(s: BoundsContext) -> BoundRow:
    """Return Theorem 20, repaired, with distances bounded by test samples for half of delta, split among the losses."""
    if s.not_fresh:
        raise RefusedError(s.not_fresh)
    cells, local = s.cells, s.local
    least = _least_term(_terms(s, s.delta / 2))
    ours, theirs = cells.places
    part = s.delta / (2 * len(_losses(s)))

    def within(loss: BoundedLoss) -> Value:
        steep = local.of_loss(loss)
        most = (steep * cells.diameters).clamp_max(_LARGEST)
        moves = torch.minimum((steep[ours][:, None] * cells.distances).nan_to_num(_LARGEST), most[ours][:, None])
        return held_out_local_term(moves, ours, theirs, cells.counts, most, part)

    value, loss, term = _best(s, within, least)
    value = replace(value, statement="normscope Proposition GEN-21", kind=Kind.PROBABILISTIC, delta=s.delta)
    shown = {"local term": term.value, "g": least.value, "loss": loss.name, "mean distance": cells.mean_distance}
    return row_of("Theorem 20, held-out distances", value, s, of=loss.of, note=local.note, details=shown)


#: Valid bounds on the deviation of the counts; the least may be used if each has a part of delta.
_VALID = ("g tight", "g total variation", "g multinomial")


def _terms(s: BoundsContext, delta: float, parts: int = len(_VALID)) -> dict[str, Value]:
    """Return bounds on the deviation of the counts, each with a part of delta; the printed one with all of it."""
    cells, m, part = s.cells, s.train.samples, delta / parts
    return {
        "g printed": g_paper(1.0, cells.occupied, cells.cells, m, delta),
        "g tight": g_tight(1.0, cells.occupied, cells.cells, m, part),
        "g total variation": g_total_variation(1.0, cells.cells, m, part),
        "g multinomial": g_multinomial(1.0, cells.cells, m, part),
    }


def _least_term(terms: Mapping[str, Value]) -> Value:
    return min((terms[name] for name in _VALID), key=lambda v: v.log)


def theorem_20_as_printed(s: BoundsContext) -> BoundRow:
    """Return Theorem 20 as printed, with mean distances that are estimated from test inputs."""
    loss, value = _printed(s)
    return row_of("Theorem 20, printed", value, s, of=loss.of, loss=loss.name, distance=s.cells.mean_distance)


def theorem_20_estimated(s: BoundsContext) -> BoundRow:
    """Return Theorem 20 with gradients at samples as constants: no bound, but the best that the theorem could give."""
    slopes = gradient_norms(s.network, s.train)[1]
    sampled = Value.of(float(slopes.mean()) / math.sqrt(2), Kind.ESTIMATE)  # of the scores, from that of the margin
    g = g_total_variation(1.0, s.cells.cells, s.train.samples, s.delta)
    value, loss, _ = _with_constant(s, sampled, _distance(s), g)
    value = replace(value, statement="than2025 Theorem 20")
    return row_of("Theorem 20, sampled gradients", value, s, of=loss.of, loss=loss.name, gradient=float(slopes.mean()))


def corollary_21_row(s: BoundsContext) -> BoundRow:
    """Return Corollary 21: with discontinuities on a null set that is fixed before the data, the same number."""
    loss, value = _printed(s)
    note = "a Lipschitz network: the same as Theorem 20"
    return row_of("Corollary 21, printed", corollary_21(value), s, of=loss.of, note=note)


def product_of_weights(s: BoundsContext) -> Value:
    """Return the product of the weights' norms alone."""
    return lemma_5(x.upper for x in s.network.layers)


def with_batch_norm(s: BoundsContext) -> Value:
    """Return the product times ``sigma^-K``, printed for BatchNorm."""
    return corollary_10([x.upper for x in s.network.layers], _printed_constants(s, "batch_norm", "BatchNorm"))[1]


def with_layer_norm(s: BoundsContext) -> Value:
    """Return the product times ``1/sigma_k``, printed for LayerNorm: ``1/sqrt(eps)`` on all inputs."""
    return corollary_11([x.upper for x in s.network.layers], _printed_constants(s, "layer_norm", "LayerNorm"))


def _printed_constants(s: BoundsContext, kind: str, name: str) -> list[Value]:
    printed = [n.printed for n in s.network.normalizers if n.kind == kind and n.printed is not None]
    if not printed:
        raise RefusedError(f"the network has no {name}")
    return printed


def product_of_folded(s: BoundsContext) -> Value:
    """Return the product of folded norms, which does not move when a weight before a normalizer is rescaled."""
    if any(n.kind != "batch_norm" for n in s.network.normalizers):
        raise RefusedError("only BatchNorm with running statistics can be folded")
    return product(x.folded or x.upper for x in s.network.layers)


def hou(s: BoundsContext) -> BoundRow:
    """Return the bound of Hou et al. as printed, which is never below the mean distance."""
    cells = s.cells
    loss = _losses(s)[-1]
    constant = s.network.constant.log + math.log(loss.constant)
    far = math.log(cells.diameter)
    value = hou_bound(math.log(cells.mean_distance), far, constant, cells.cells, s.train.samples, s.delta)
    return row_of("Hou et al.", plus(_risk(s, loss), value), s, of=loss.of)


def _losses(s: BoundsContext) -> list[BoundedLoss]:
    return bounded_losses(s.loss, s.gammas, s.clip)


def _risk(s: BoundsContext, loss: BoundedLoss) -> Value:
    """Return the mean of a loss on the training data."""
    return Value.of(float(loss.values(s.train.outputs.double(), s.train.labels).mean()), Kind.CERTIFIED)


def _best(s: BoundsContext, local: Callable[[BoundedLoss], Value], g: Value) -> tuple[Value, BoundedLoss, Value]:
    """Return the least sum of training loss, local term and statistical term, its loss, and its local term."""
    found = []
    for loss in _losses(s):
        term = local(loss)
        found.append((total((_risk(s, loss), term, g)), loss, term))
    return min(found, key=lambda each: each[0].log)


def _with_constant(s: BoundsContext, constant: Value, distance: Value, g: Value) -> tuple[Value, BoundedLoss, Value]:
    """Return the same as :func:`_best` with one constant of the network for all cells, times a distance."""
    if constant.log == math.inf:
        raise RefusedError("the network has no finite Lipschitz constant on all inputs")
    return _best(s, lambda loss: product((Value.of(loss.constant, Kind.CERTIFIED), constant, distance)), g)


def _distance(s: BoundsContext) -> Value:
    """Return the mean distance of a training sample from test inputs in its cell."""
    return Value.of(s.cells.mean_distance, Kind.ESTIMATE)


def _g_printed(s: BoundsContext) -> Value:
    return g_paper(1.0, s.cells.occupied, s.cells.cells, s.train.samples, s.delta)


def _printed(s: BoundsContext) -> tuple[BoundedLoss, Value]:
    """Return the printed Theorem 20 with one constant for all cells, and the loss for which it is least."""
    g = _g_printed(s)
    _, loss, local = _with_constant(s, s.network.constant, _distance(s), g)
    return loss, plus(_risk(s, loss), theorem_20_printed(local, g))


def corollary_22_row(of: str, constant: Callable[[BoundsContext], Value]) -> RowMaker:
    """Return the row of Corollary 22 with a constant of the network."""
    name = f"Corollary 22, {of}"

    def make(s: BoundsContext) -> BoundRow:
        network, g = constant(s), _g_printed(s)
        _, loss, _ = _with_constant(s, network, _distance(s), g)
        value = corollary_22(Value.of(loss.constant, Kind.CERTIFIED), network, _distance(s), g)
        residual = "" if _is_plain(s.network) else "the network is no plain chain: the product is not a bound for it"
        return row_of(name, plus(_risk(s, loss), value), s, of=loss.of, note=residual, log10_network=network.log10)

    return name, make


def _is_plain(network: MeasuredNetwork) -> bool:
    """Return whether every layer has one layer before it."""
    try:
        return len(network.chain) == len(network.layers) and all(
            len(e.atoms) <= 1 for _, e in network.context.program.outputs
        )
    except RefusedError:
        return False
