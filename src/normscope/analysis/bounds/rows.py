"""The rows of the table, one function for each family of bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from normscope.analysis.bounds.chain import RefusedError, relu_units
from normscope.analysis.bounds.compressed import WIDTHS, quantized
from normscope.analysis.bounds.losses import BoundedLoss, bounded_losses
from normscope.analysis.bounds.measured import Cells, Network, gradient_norms
from normscope.analysis.bounds.noise import Posterior
from normscope.analysis.bounds.paths import log_path_norm
from normscope.analysis.bounds.result import BoundRow
from normscope.analysis.bounds.scores import Scores, class_scores, labelled
from normscope.core.value import Kind, Value, product, total
from normscope.generalization import (
    averaged_loss,
    bartlett_bound,
    by_surrogate,
    clopper_pearson,
    code_divergence,
    corollary_21,
    corollary_22,
    g_multinomial,
    g_paper,
    g_tight,
    g_total_variation,
    golowich_bound,
    hou_bound,
    lyu_bound,
    margin_loss,
    neyshabur_bound,
    occam,
    pac_bayes_bound,
    pac_bayes_kl,
    pac_bayes_lambda,
    pac_bayes_quadratic,
    path_norm_bound,
    row_norm_bound,
    theorem_20_printed,
    vc_dimension_network,
    vc_gap,
)
from normscope.lipschitz.printed import corollary_10, corollary_11, lemma_5

#: Shares of the training margins that are tried as gamma; each is allowed, since no bound here fixes gamma.
QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True)
class Setting:
    """What every row may use.

    Attributes:
        network: its norms and constants.
        train: scores on the training data.
        test: scores on the test data.
        delta: probability with which each certificate may fail.
        loss: name of the loss for Theorem 20.
        clip: of cross-entropy.
        box: least and largest inputs, fixed before the data.
        cells: how the data lies in the cells of the partition; raises why it cannot be used.
        posterior: the network with noise.
        data: training and test data themselves, for networks that are made from this one.
        tuned: whether the test data was used for tuning.
    """

    network: Network
    train: Scores
    test: Scores
    delta: float
    loss: str
    clip: float | None
    box: tuple[Tensor, Tensor] | None
    cells: Callable[[], Cells]
    posterior: Callable[[], Posterior]
    data: tuple[Any, Any]
    tuned: bool

    @property
    def gammas(self) -> list[float]:
        """Return the margins to try."""
        levels = torch.tensor(QUANTILES, dtype=torch.float64)
        found = torch.quantile(self.train.margins, levels) if self.train.samples < 1e7 else self.train.margins[:1]
        return sorted({float(g) for g in found if g > 0}) or [1.0]

    @property
    def error(self) -> Value:
        """Return the training error."""
        return Value.of(self.train.errors / self.train.samples, Kind.CERTIFIED)


def held_out(s: Setting) -> BoundRow:
    """The exact limit from test samples that were never used."""
    if s.tuned:
        raise RefusedError("the test data was used for tuning, so it is no longer independent of the network")
    value = clopper_pearson(s.test.errors, s.test.samples, s.delta)
    return _row("held-out", value, s, errors=s.test.errors, samples=s.test.samples)


def theorem_20(s: Setting) -> BoundRow:
    """Repaired: fixed cells with one label each, diameters, a certified constant, the least of three terms."""
    cells, m = s.cells(), s.train.samples
    part = s.delta / 3
    terms = {
        "g tight": g_tight(1.0, cells.occupied, cells.cells, m, part),
        "g total variation": g_total_variation(1.0, cells.cells, m, part),
        "g multinomial": g_multinomial(1.0, cells.cells, m, part),
    }
    least = min(terms.values(), key=lambda v: v.log)
    loss, value = _best_loss(s, s.network.constant, Value.of(cells.diameter, Kind.CERTIFIED), least)
    value = replace(value, statement="normscope Proposition GEN-4", kind=Kind.PROBABILISTIC, delta=s.delta)
    printed = g_paper(1.0, cells.occupied, cells.cells, m, s.delta)
    shown = {name: v.value for name, v in terms.items()} | {"g printed": printed.value, "loss": loss.name}
    shown |= {"diameter": cells.diameter, "cells": cells.cells, "occupied": cells.occupied}
    return _row("Theorem 20, repaired", value, s, of=loss.of, details=shown)


def theorem_20_as_printed(s: Setting) -> BoundRow:
    """With average distances, which test inputs show only roughly, and the printed term."""
    loss, value, cells = _printed(s, s.network.constant)
    return _row("Theorem 20, printed", value, s, of=loss.of, loss=loss.name, distance=cells.mean_distance)


def theorem_20_estimated(s: Setting) -> BoundRow:
    """With gradients at samples in place of constants of cells: no bound, but what the theorem could say at best."""
    cells, m = s.cells(), s.train.samples
    slopes = gradient_norms(s.network, s.train)[1]
    sampled = Value.of(float(slopes.mean()) / math.sqrt(2), Kind.ESTIMATE)  # of the scores, from that of the margin
    g = g_total_variation(1.0, cells.cells, m, s.delta)
    loss, value = _best_loss(s, sampled, Value.of(cells.mean_distance, Kind.ESTIMATE), g)
    value = replace(value, statement="than2025 Theorem 20")
    return _row("Theorem 20, sampled gradients", value, s, of=loss.of, loss=loss.name, gradient=float(slopes.mean()))


def corollary_21_row(s: Setting) -> BoundRow:
    """Discontinuities on a null set: the same number, if they were fixed before the data as the cells were."""
    loss, value, _ = _printed(s, s.network.constant)
    value = corollary_21(value)
    return _row("Corollary 21, printed", value, s, of=loss.of, note="a Lipschitz network: the same as Theorem 20")


def corollary_22_without(s: Setting) -> BoundRow:
    """The product of the weights' norms alone."""
    return _corollary(s, "Corollary 22, weights only", lemma_5(x.upper for x in s.network.layers))


def corollary_22_batch_norm(s: Setting) -> BoundRow:
    """Printed for BatchNorm: the product times ``sigma^-K``."""
    printed = [n.printed for n in s.network.normalizers if n.kind == "batch_norm" and n.printed is not None]
    if not printed:
        raise RefusedError("the network has no BatchNorm")
    return _corollary(
        s, "Corollary 22, BatchNorm printed", corollary_10([x.upper for x in s.network.layers], printed)[1]
    )


def corollary_22_layer_norm(s: Setting) -> BoundRow:
    """Printed for LayerNorm: the product times ``1/sigma_k``, which is ``1/sqrt(eps)`` on all inputs."""
    printed = [n.printed for n in s.network.normalizers if n.kind == "layer_norm" and n.printed is not None]
    if not printed:
        raise RefusedError("the network has no LayerNorm")
    return _corollary(s, "Corollary 22, LayerNorm printed", corollary_11([x.upper for x in s.network.layers], printed))


def corollary_22_folded(s: Setting) -> BoundRow:
    """The product of folded norms, which does not move when a weight before a normalizer is rescaled."""
    if any(n.kind != "batch_norm" for n in s.network.normalizers):
        raise RefusedError("only BatchNorm with running statistics can be folded")
    folded = product(x.folded or x.upper for x in s.network.layers)
    return _corollary(s, "Corollary 22, folded", folded)


def hou(s: Setting) -> BoundRow:
    """As paper 001 prints it; never below the mean distance."""
    cells = s.cells()
    loss = _losses(s)[-1]
    constant = s.network.constant.log + math.log(loss.constant)
    far = math.log(cells.diameter)
    value = hou_bound(math.log(cells.mean_distance), far, constant, cells.cells, s.train.samples, s.delta)
    return _row("Hou et al.", _plus(_risk(s, loss), value), s, of=loss.of)


def lyu(s: Setting) -> BoundRow:
    """With noise as large as the weights and no sharpness at all: what remains."""
    value = lyu_bound(s.network.parameters, 1.0, 0.0, s.train.samples, s.delta)
    note = "sharpness is set to zero: it only adds"
    return _row("Lyu et al.", _plus(s.error, value), s, of="the randomized network", note=note)


def vc(s: Setting) -> BoundRow:
    """Capacity by counting patterns, with the comparison of scores as one more layer."""
    units = relu_units(s.network.work.program)
    weights = s.network.parameters
    pairs = s.train.classes * (s.train.classes - 1) // 2
    dimension = vc_dimension_network([weights] * (len(units) + 1), [*units, pairs])
    return _row("VC dimension", _plus(s.error, vc_gap(dimension, s.train.samples, s.delta)), s, dimension=dimension)


def _margin_row(name: str, bound: Callable[..., Value], s: Setting, size: Callable[[], float]) -> BoundRow:
    """Return the best margin bound over gamma."""
    layers, scale, margins = s.network.chain, size(), s.train.margins
    found = []
    for gamma in s.gammas:
        gap = bound(layers, scale, gamma, s.train.samples, s.delta)
        found.append((_plus(Value.of(margin_loss(margins, gamma), Kind.CERTIFIED), gap), gamma))
    value, gamma = min(found, key=lambda pair: pair[0].log)
    return _row(name, value, s, gamma=gamma, margin_loss=margin_loss(margins, gamma), depth=len(layers))


def golowich(s: Setting) -> BoundRow:
    """Products of Frobenius norms."""
    return _margin_row("Golowich et al.", golowich_bound, s, lambda: s.network.inputs_norm(s.train))


def row_norms(s: Setting) -> BoundRow:
    """Row norms, as for weight-normalized networks."""
    return _margin_row("row norms (weight normalization)", row_norm_bound, s, lambda: s.network.inputs_norm(s.train))


def bartlett(s: Setting) -> BoundRow:
    """Spectral norms and sums of row norms."""
    return _margin_row("Bartlett et al.", bartlett_bound, s, lambda: s.network.inputs_norm(s.train))


def neyshabur(s: Setting) -> BoundRow:
    """Spectral norms and noise."""
    if s.box is None:
        raise RefusedError("it needs a bound on the norm of inputs, fixed before the data: give box=(low, high)")
    box = s.box
    return _margin_row("Neyshabur et al.", neyshabur_bound, s, lambda: s.network.radius(box))


def path_norm(s: Setting) -> BoundRow:
    """The L1 path norm."""
    log, program = log_path_norm(s.network.captured), s.network.work.program
    kernels = [math.prod(x.shape[2:]) for x in s.network.layers if x.kind == "convolution"]
    gamma = s.gammas[0]
    value = path_norm_bound(
        log,
        depth=len(relu_units(program)) + 1,
        kernel=max(kernels, default=1),
        inputs=program.atoms[0].numel,
        outputs=s.train.classes,
        largest=s.train.largest,
        samples=s.train.samples,
        lipschitz=math.sqrt(2) / gamma,
    )
    loss = Value.of(margin_loss(s.train.margins, gamma), Kind.CERTIFIED)
    return _row("path norm", _plus(loss, value), s, log10_path_norm=log / math.log(10), gamma=gamma)


def pac_bayes(s: Setting) -> list[BoundRow]:
    """Four forms with one posterior: noise in proportion to the folded weights."""
    p, m = s.posterior(), s.train.samples
    half = s.delta / 2
    loss = averaged_loss(p.loss, p.draws, half * math.exp(-math.log(6)))
    inside = half * math.exp(-p.price) if p.price < 600 else 0.0
    divergence = p.divergence if inside > 0 else p.divergence + p.price  # a tiny delta costs its logarithm
    delta = inside if inside > 0 else half
    forms: Sequence[tuple[str, Value]] = (
        ("PAC-Bayes, McAllester", _plus(Value.of(loss, Kind.CERTIFIED), pac_bayes_bound(divergence, m, delta))),
        ("PAC-Bayes, kl", pac_bayes_kl(loss, divergence, m, delta)),
        ("PAC-Bayes, quadratic", pac_bayes_quadratic(loss, divergence, m, delta)),
        ("PAC-Bayes, lambda", pac_bayes_lambda(loss, divergence, m, delta)),
    )
    facts = {"noise": p.level, "divergence": p.divergence, "loss": p.loss, "draws": p.draws}
    rows = []
    for name, value in forms:
        stated = replace(value, delta=s.delta, kind=Kind.PROBABILISTIC)
        rows.append(_row(name, stated, s, of="the randomized network", details=facts))
    return rows


def compression(s: Setting) -> list[BoundRow]:
    """The network rounded to few bits, and what it says about the network itself by unlabelled inputs."""
    m, k, captured = s.train.samples, s.train.classes, s.network.captured
    names = ("compression", "compression and disagreement")
    part = s.delta / (2 * len(WIDTHS))
    fewest = quantized(captured, WIDTHS[0])[1]
    if 1 - math.exp(-code_divergence(fewest) / m) >= 1 - 1 / k:
        reason = f"{fewest} bits at {WIDTHS[0]} a number: vacuous for {m} samples whatever the training error"
        one = Value.of(1.0, Kind.PROBABILISTIC, statement="normscope Proposition GEN-17", delta=s.delta)
        return [
            _row(n, one, s, of=of, note=reason)
            for n, of in zip(names, ("the compressed network", "this network"), strict=True)
        ]
    labels = s.train.labels[s.train.chosen]
    tried = []
    for width in WIDTHS:
        tensors, bits = quantized(captured, width)
        wrong = float((class_scores(captured, tensors, s.train.some).argmax(1) != labels).double().mean())
        tried.append((occam(round(wrong * m), m, bits, part).value, width))
    width = min(tried)[1]
    tensors, bits = quantized(captured, width)
    errors = sum(
        int((class_scores(captured, tensors, x).argmax(1) != y).sum()) for x, y in labelled(s.data[0], "train")
    )
    value = occam(errors, m, bits, part)
    apart, start = 0, 0
    for x, _ in labelled(s.data[1], "test"):
        ours = s.test.outputs[start : start + len(x)].argmax(1)
        apart += int((class_scores(captured, tensors, x).argmax(1) != ours).sum())
        start += len(x)
    whole = by_surrogate(value, apart, s.test.samples, s.delta / 2)
    facts = {"bits": bits, "bits a number": width, "training errors": errors, "disagreements": apart}
    rows = [_row(names[0], replace(value, delta=s.delta / 2), s, of="the compressed network", details=facts)]
    if s.tuned:
        return [*rows, BoundRow.refused(names[1], "the test inputs were used for tuning")]
    return [*rows, _row(names[1], replace(whole, delta=s.delta), s, details=facts)]


def _row(
    name: str,
    value: Value,
    s: Setting,
    *,
    of: str = "this network",
    note: str = "",
    details: Mapping[str, Any] | None = None,
    **more: Any,
) -> BoundRow:
    """Return a row."""
    return BoundRow.of_value(name, value, s.train.classes, of=of, reason=note, details={**(details or {}), **more})


def _plus(first: Value, second: Value) -> Value:
    """Add a loss on the data to a gap; the statement is that of the gap."""
    return replace(total((first, second)), statement=second.statement, delta=second.delta)


def _losses(s: Setting) -> list[BoundedLoss]:
    return bounded_losses(s.loss, s.gammas, s.clip)


def _risk(s: Setting, loss: BoundedLoss) -> Value:
    """Return the mean of a loss on the training data."""
    return Value.of(float(loss.values(s.train.outputs.double(), s.train.labels).mean()), Kind.CERTIFIED)


def _best_loss(s: Setting, constant: Value, distance: Value, g: Value) -> tuple[BoundedLoss, Value]:
    """Return the loss for which the training loss, local term and statistical term are least together."""
    if constant.log == math.inf:
        raise RefusedError("the network has no finite Lipschitz constant on all inputs")
    found = []
    for loss in _losses(s):
        local = product((Value.of(loss.constant, Kind.CERTIFIED), constant, distance))
        found.append((loss, total((_risk(s, loss), local, g))))
    return min(found, key=lambda pair: pair[1].log)


def _printed(s: Setting, constant: Value) -> tuple[BoundedLoss, Value, Cells]:
    """Return the printed Theorem 20 with a constant for all cells."""
    cells = s.cells()
    g = g_paper(1.0, cells.occupied, cells.cells, s.train.samples, s.delta)
    loss, _ = _best_loss(s, constant, Value.of(cells.mean_distance, Kind.PRINTED), g)
    local = product((Value.of(loss.constant, Kind.CERTIFIED), constant, Value.of(cells.mean_distance, Kind.ESTIMATE)))
    return loss, _plus(_risk(s, loss), theorem_20_printed(local, g)), cells


def _corollary(s: Setting, name: str, network: Value) -> BoundRow:
    """Return Corollary 22 with a constant of the network."""
    cells = s.cells()
    distance = Value.of(cells.mean_distance, Kind.ESTIMATE)
    g = g_paper(1.0, cells.occupied, cells.cells, s.train.samples, s.delta)
    loss, _ = _best_loss(s, network, distance, g)
    value = corollary_22(Value.of(loss.constant, Kind.CERTIFIED), network, distance, g)
    residual = "" if _is_plain(s.network) else "the network is no plain chain: the product is not a bound for it"
    return _row(name, _plus(_risk(s, loss), value), s, of=loss.of, note=residual, log10_network=network.log10)


def _is_plain(network: Network) -> bool:
    """Tell whether every layer has one layer before it."""
    try:
        return len(network.chain) == len(network.layers) and all(
            len(e.atoms) <= 1 for _, e in network.work.program.outputs
        )
    except RefusedError:
        return False


#: Rows in the order of the table.
ROWS: tuple[tuple[str, Callable[[Setting], BoundRow | list[BoundRow]]], ...] = (
    ("held-out", held_out),
    ("Theorem 20, repaired", theorem_20),
    ("Theorem 20, printed", theorem_20_as_printed),
    ("Theorem 20, sampled gradients", theorem_20_estimated),
    ("Corollary 21, printed", corollary_21_row),
    ("Corollary 22, weights only", corollary_22_without),
    ("Corollary 22, BatchNorm printed", corollary_22_batch_norm),
    ("Corollary 22, LayerNorm printed", corollary_22_layer_norm),
    ("Corollary 22, folded", corollary_22_folded),
    ("Hou et al.", hou),
    ("Lyu et al.", lyu),
    ("VC dimension", vc),
    ("Golowich et al.", golowich),
    ("Bartlett et al.", bartlett),
    ("Neyshabur et al.", neyshabur),
    ("row norms (weight normalization)", row_norms),
    ("path norm", path_norm),
    ("PAC-Bayes", pac_bayes),
    ("compression", compression),
)
