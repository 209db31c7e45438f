"""The rows of the table of bounds, one function for each family."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from normscope.analysis.bounds import theorem_20_rows
from normscope.analysis.bounds.chain import relu_units
from normscope.analysis.bounds.context import BoundsContext, RowMaker, plus, row_of
from normscope.analysis.bounds.folded_network import FoldedNetwork, log_path_norm
from normscope.analysis.bounds.result import BoundRow, RefusedError
from normscope.analysis.bounds.scores import class_scores, labelled
from normscope.core.value import Kind, Value
from normscope.generalization import (
    averaged_loss,
    bartlett_bound,
    by_surrogate,
    clopper_pearson,
    code_divergence,
    golowich_bound,
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
    vc_dimension_network,
    vc_gap,
)

#: Numbers of bits per weight that are tried, and bits for the scale of a tensor.
WIDTHS, SCALE_BITS = (2, 3, 4, 6, 8), 32


def held_out(s: BoundsContext) -> BoundRow:
    """Return the exact (Clopper-Pearson) bound from test samples that were never used."""
    if s.not_fresh:
        raise RefusedError(s.not_fresh)
    value = clopper_pearson(s.test.errors, s.test.samples, s.delta)
    return row_of("held-out", value, s, errors=s.test.errors, samples=s.test.samples)


def lyu(s: BoundsContext) -> BoundRow:
    """Return the bound of Lyu et al. at its best: noise as large as the weights, and zero sharpness."""
    value = lyu_bound(s.network.parameters, 1.0, 0.0, s.train.samples, s.delta)
    note = "the sharpness term is left out; it could only increase the bound"
    return row_of("Lyu et al.", plus(s.error, value), s, of="the randomized network", note=note)


def vc(s: BoundsContext) -> BoundRow:
    """Return the VC bound, with the comparison of scores as one more layer."""
    units = relu_units(s.network.context.program)
    weights = s.network.parameters
    pairs = s.train.classes * (s.train.classes - 1) // 2
    dimension = vc_dimension_network([weights] * (len(units) + 1), [*units, pairs])
    return row_of("VC dimension", plus(s.error, vc_gap(dimension, s.train.samples, s.delta)), s, dimension=dimension)


def _radius(s: BoundsContext) -> float:
    if s.box is None:
        raise RefusedError(
            "it needs a bound on the norm of inputs, fixed before the data: pass box=(low, high) or --box LOW,HIGH"
        )
    return s.network.radius(s.box)


def margin_row(name: str, bound: Callable[..., Value], *, by_radius: bool = False) -> RowMaker:
    """Return the row of a margin bound at the best gamma; its scale is ``||X||_F``, or the radius of the box."""

    def make(s: BoundsContext) -> BoundRow:
        scale = _radius(s) if by_radius else s.network.inputs_norm(s.train)
        layers, margins = s.network.chain, s.train.margins
        found = []
        for gamma in s.gammas:
            gap = bound(layers, scale, gamma, s.train.samples, s.delta)
            found.append((plus(Value.of(margin_loss(margins, gamma), Kind.CERTIFIED), gap), gamma))
        value, gamma = min(found, key=lambda pair: pair[0].log)
        return row_of(name, value, s, gamma=gamma, margin_loss=margin_loss(margins, gamma), depth=len(layers))

    return name, make


def path_norm(s: BoundsContext) -> BoundRow:
    """Return the bound by the L1 path norm."""
    log, program = log_path_norm(s.network.folded), s.network.context.program
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
    return row_of("path norm", plus(loss, value), s, log10_path_norm=log / math.log(10), gamma=gamma)


def pac_bayes(s: BoundsContext) -> list[BoundRow]:
    """Return four PAC-Bayes bounds with one posterior: noise in proportion to the folded weights."""
    if s.train.samples < 8:
        raise RefusedError(f"it needs at least 8 training samples, got {s.train.samples}")
    p = s.noisy
    half = s.delta / 2
    loss = averaged_loss(p.loss, p.draws, half * math.exp(-math.log(6)))
    inside = half * math.exp(-p.price) if p.price < 600 else 0.0
    divergence = p.divergence if inside > 0 else p.divergence + p.price  # a tiny delta costs its logarithm
    facts = {"noise": p.level, "divergence": p.divergence, "loss": p.loss, "draws": p.draws}
    forms = _forms("PAC-Bayes", loss, divergence, s.train.samples, inside if inside > 0 else half)
    return [row_of(n, replace(v, delta=s.delta), s, of="the randomized network", details=facts) for n, v in forms]


def pac_bayes_trained(s: BoundsContext) -> list[BoundRow]:
    """Return four PAC-Bayes bounds with a trained posterior, and what it implies for this network by disagreement."""
    name, p = "PAC-Bayes, trained", s.trained
    facts = vars(p)
    half, third = s.delta / 2, s.delta / 3
    forms = _forms(name, averaged_loss(p.loss, p.draws, half), p.divergence, p.samples, half)
    other = "another randomized network"
    rows = [row_of(n, replace(v, delta=s.delta), s, of=other, details=facts) for n, v in forms]
    last = f"{name}, and disagreement"
    if s.not_fresh:
        return [*rows, BoundRow.refused(last, s.not_fresh)]
    risk = pac_bayes_kl(averaged_loss(p.loss, p.draws, third), p.divergence, p.samples, third)
    apart = Value.of(averaged_loss(p.apart, p.draws, third), Kind.PROBABILISTIC, delta=third)
    whole = replace(risk + apart, statement="normscope Proposition GEN-22", delta=s.delta)
    kept = tuple(a for a in whole.assumptions if a != "of the randomized network")
    return [*rows, row_of(last, replace(whole, assumptions=(*kept, *ANEW)), s, details=facts)]


#: Assumption of a prior that is trained on a part of the data.
ANEW = ("the architecture and the buffers other than running statistics were chosen before the data",)


def _forms(name: str, loss: float, divergence: float, samples: int, delta: float) -> list[tuple[str, Value]]:
    """Return four bounds on the risk of a randomized network, by name."""
    gap = pac_bayes_bound(divergence, samples, delta)
    return [
        (f"{name}, McAllester", plus(Value.of(loss, Kind.CERTIFIED), gap)),
        (f"{name}, kl", pac_bayes_kl(loss, divergence, samples, delta)),
        (f"{name}, quadratic", pac_bayes_quadratic(loss, divergence, samples, delta)),
        (f"{name}, lambda", pac_bayes_lambda(loss, divergence, samples, delta)),
    ]


def quantized(folded: FoldedNetwork, width: int) -> tuple[dict[str, Tensor], int]:
    """Return the folded tensors of a network, each rounded to ``2^width - 1`` levels, and the bits of their code."""
    top = 2 ** (width - 1) - 1
    tensors, bits = dict(folded.fixed), 0
    for name, tensor in folded.weights.items():
        scale = torch.tensor(float(tensor.abs().max()) / top or 1.0, dtype=torch.float32).double()
        tensors[name] = ((tensor / scale).round().clamp(-top, top) * scale).to(tensors[name].dtype)
        bits += tensor.numel() * width + SCALE_BITS
    return tensors, bits


def compression(s: BoundsContext) -> list[BoundRow]:
    """Return the bound of the network rounded to few bits, and what it implies for this network by disagreement."""
    m, k, captured, folded = s.train.samples, s.train.classes, s.network.captured, s.network.folded
    names = ("compression", "compression and disagreement")
    part = s.delta / (2 * len(WIDTHS))
    fewest = quantized(folded, WIDTHS[0])[1]
    if 1 - math.exp(-code_divergence(fewest) / m) >= 1 - 1 / k:
        reason = f"{fewest} bits at {WIDTHS[0]} per number: vacuous for {m} samples whatever the training error"
        one = Value.of(1.0, Kind.PROBABILISTIC, statement="normscope Proposition GEN-17", delta=s.delta)
        return [
            row_of(n, one, s, of=of, note=reason)
            for n, of in zip(names, ("the compressed network", "this network"), strict=True)
        ]
    labels = s.train.labels[s.train.chosen]
    tried = []
    for width in WIDTHS:
        tensors, bits = quantized(folded, width)
        wrong = float((class_scores(captured, tensors, s.train.some).argmax(1) != labels).double().mean())
        tried.append((occam(round(wrong * m), m, bits, part).value, width))
    width = min(tried)[1]
    tensors, bits = quantized(folded, width)
    errors = sum(
        int((class_scores(captured, tensors, x).argmax(1) != y).sum()) for x, y in labelled(s.data[0], "train")
    )
    value = occam(errors, m, bits, part)
    apart = 0
    for x, _ in labelled(s.data[1], "test"):  # both in one pass: a loader may shuffle
        ours, theirs = (class_scores(captured, t, x).argmax(1) for t in (captured.tensors, tensors))
        apart += int((ours != theirs).sum())
    whole = by_surrogate(value, apart, s.test.samples, s.delta / 2)
    facts = {"bits": bits, "bits a number": width, "training errors": errors, "disagreements": apart}
    rows = [row_of(names[0], replace(value, delta=s.delta / 2), s, of="the compressed network", details=facts)]
    if s.not_fresh:
        return [*rows, BoundRow.refused(names[1], s.not_fresh)]
    return [*rows, row_of(names[1], replace(whole, delta=s.delta), s, details=facts)]


#: Rows in the order of the table.
ROWS: tuple[RowMaker, ...] = (
    ("held-out", held_out),
    ("Theorem 20, repaired", theorem_20_rows.theorem_20),
    ("Theorem 20, held-out distances", theorem_20_rows.theorem_20_held_out),
    ("Theorem 20, printed", theorem_20_rows.theorem_20_as_printed),
    ("Theorem 20, sampled gradients", theorem_20_rows.theorem_20_estimated),
    ("Corollary 21, printed", theorem_20_rows.corollary_21_row),
    theorem_20_rows.corollary_22_row("weights only", theorem_20_rows.product_of_weights),
    theorem_20_rows.corollary_22_row("BatchNorm printed", theorem_20_rows.with_batch_norm),
    theorem_20_rows.corollary_22_row("LayerNorm printed", theorem_20_rows.with_layer_norm),
    theorem_20_rows.corollary_22_row("folded", theorem_20_rows.product_of_folded),
    ("Hou et al.", theorem_20_rows.hou),
    ("Lyu et al.", lyu),
    ("VC dimension", vc),
    margin_row("Golowich et al.", golowich_bound),
    margin_row("Bartlett et al.", bartlett_bound),
    margin_row("Neyshabur et al.", neyshabur_bound, by_radius=True),
    margin_row("row norms (weight normalization)", row_norm_bound),
    ("path norm", path_norm),
    ("PAC-Bayes", pac_bayes),
    ("PAC-Bayes, trained", pac_bayes_trained),
    ("compression", compression),
)
