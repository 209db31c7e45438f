"""Curvature as tables and charts: eigenvalues, symmetries, layers, spectral density and sharpness."""

import itertools
import math
from typing import Any

import numpy as np

from normscope.core.number_text import digits
from normscope.curvature.result import CurvatureResult, Eigenvalue
from normscope.report.charts import Chart, ChartLine
from normscope.report.numbers import NOTHING, plural
from normscope.report.table import ROWS, Section, Table

_MATRICES = {
    "hessian": "Hessian",
    "ggn": "Gauss-Newton matrix",
    "fisher": "Fisher matrix",
    "empirical-fisher": "empirical Fisher matrix",
    "residual": "Hessian minus Gauss-Newton",
}
_WAYS = {"retained": "graph kept", "recompute": "graph rebuilt each time", "linearize": "linearized once"}

#: Intervals of the chart of the density.
BINS = 60
#: Words for the sharpness measures.
_SHARPNESS = {
    "raw": "largest eigenvalue of the Hessian, raw",
    "spherical": "largest eigenvalue on the spheres of scale groups",
    "sam": "largest increase of the loss within rho (SAM)",
    "sam_quadratic": "the same from gradient and curvature, rho |g| + rho^2/2 lambda",
    "adaptive": "largest increase within rho relative to each weight (adaptive SAM)",
    "average": "mean increase under Gaussian noise of length about rho",
    "average_quadratic": "the same from the trace, rho^2/2 tr H / D",
    "threshold": "eigenvalue above which steps of this size diverge",
    "fisher_rao": "Fisher-Rao norm w'Gw",
}


def curvature_sections(result: CurvatureResult, *, everything: bool = False) -> list[Section]:
    """Return the report on curvature as sections."""
    sections = [_model(result)]
    if result.messages:
        sections.append(Section("messages", lines=result.messages))
    sections.append(_eigenvalues(result))
    if result.symmetry.get("explained") or result.quotient:
        sections.append(_symmetry(result))
    if result.modes:
        sections.append(_modes(result))
    if result.trace:
        sections.append(_layers(result, everything))
    if result.density:
        sections.append(_density(result.density))
    if result.sharpness:
        sections.append(_sharpness(result.sharpness))
    return sections


def _model(result: CurvatureResult) -> Section:
    """Return the facts about the model, the data and the computation."""
    data = result.data
    masks = f", {data['dropout_masks']} fixed dropout masks" if data["dropout_masks"] else ", dropout off"
    lines = [
        f"{result.model['class']}, {int(result.model['parameters']):,} parameters",
        f"{plural(data['samples'], 'sample')} in {plural(data['batches'], 'batch', 'es')}, BatchNorm in {result.mode} "
        f"mode{masks}",
        f"loss {digits(result.loss)}, gradient norm {digits(result.gradient_norm)}",
    ]
    if result.cost:
        lines.append(f"{plural(result.cost['products'], 'product')} with the matrix, {_WAYS[result.cost['way']]}")
    if result.checks:
        words = [f"{name} {digits(value)}" for name, value in result.checks.items()]
        lines.append(f"self-tests, relative gap: {', '.join(words)}")
    return Section(f"curvature of {result.model['name']}", lines=tuple(lines))


def _eigenvalues(result: CurvatureResult) -> Section:
    """Return the eigenvalues with residuals; those that have not converged are marked."""
    rows = [("largest", *_cells(e)) for e in result.largest] + [("smallest", *_cells(e)) for e in result.smallest]
    after = []
    if result.trace:
        t = result.trace
        after.append(f"trace {digits(t['value'])} (95 %: {digits(t['low'])} to {digits(t['high'])})")
    if result.frobenius is not None and result.stable_rank is not None:
        after.append(f"Frobenius norm {digits(result.frobenius)}, stable rank {digits(result.stable_rank)}")
    columns = ("end", "eigenvalue", "residual", "error", "converged")
    return Section(
        f"eigenvalues of the {_MATRICES[result.matrix]}, {result.mode} mode",
        table=Table(columns, tuple(rows), ("end", "converged")),
        after=tuple(after),
    )


def _cells(row: Eigenvalue) -> tuple[str, ...]:
    mark = "yes" if row.converged else "NOT CONVERGED"
    return f"{row.value:.6g}", f"{row.residual:.1e}", f"{row.error:.1e}", mark


def _symmetry(result: CurvatureResult) -> Section:
    s = result.symmetry
    lines = [f"{s['explained']} flat directions are known, {s['scale_groups']} of them scalings of weights"]
    if s.get("left_out"):
        lines.append(f"{s['left_out']} more are known but left out: they do not fit into memory as vectors")
    if "spurious" in s:
        lines.append(
            f"the raw Hessian includes curvature of the parametrization, up to +-|g|/|w| = {digits(s['spurious'])}"
        )
    for end in ("largest", "smallest"):
        if f"{end}_on_sphere" in s:
            sure = "" if s[f"{end}_on_sphere_converged"] else " (NOT CONVERGED)"
            lines.append(
                f"{end} eigenvalue on the spheres, invariant under rescaling: {digits(s[f'{end}_on_sphere'])}{sure}"
            )
    if q := result.quotient:
        sure = "" if q["converged"] else " (NOT CONVERGED)"
        lines.append(
            f"largest {digits(q['largest'])}, smallest nonzero {_or_unknown(q['smallest'])}, condition number "
            f"{_or_unknown(q['condition'])}{sure} ({q['method']})"
        )
        if q["unexplained"] is not None:
            lines.append(f"{q['unexplained']} more zero eigenvalues are not explained by known symmetries")
    return Section("modulo symmetries", lines=tuple(lines))


def _or_unknown(x: float | None) -> str:
    """Return a number as text; one that is not known is NaN, or ``None`` where it was read back."""
    return "unknown" if x is None or math.isnan(x) else digits(x)


def _modes(result: CurvatureResult) -> Section:
    rows = tuple((mode, digits(v["largest"]), digits(v["loss"])) for mode, v in result.modes.items())
    return Section("modes of BatchNorm", table=Table(("mode", "largest", "loss"), rows, ("mode",)))


def _layers(result: CurvatureResult, everything: bool) -> Section:
    ordered = sorted(result.layers, key=lambda row: -abs(row.trace))
    shown = list(result.layers) if everything else ordered[:ROWS]
    rows = tuple((r.name, f"{r.parameters:,}", digits(r.trace), f"{digits(r.low)} to {digits(r.high)}") for r in shown)
    more = len(result.layers) - len(shown)
    after = (f"... {more} more rows (--all shows all)",) if more else ()
    return Section(
        "trace by parameter", table=Table(("parameter", "entries", "trace", "95 %"), rows, ("parameter",)),
        after=after, chart=_trace_chart(result),
    )  # fmt: skip


def _trace_chart(result: CurvatureResult) -> Chart | None:
    """Return the traces of the parameters along the network; negative ones by magnitude."""
    columns = {
        ("global", "positive trace"): [row.trace for row in result.layers],
        ("printed", "negative trace, magnitude"): [-row.trace for row in result.layers],
    }
    drawn = {key: tuple(math.log10(v) if v > 0 else None for v in values) for key, values in columns.items()}
    lines = tuple(
        ChartLine(style, label, "estimate", label, values, gaps=style == "global")
        for (style, label), values in drawn.items()
        if any(v is not None for v in values)
    )
    names = tuple(row.name for row in result.layers)
    if not lines:
        return None
    return Chart(
        "traces", "Trace by parameter", names, lines, ("parameter",) * len(names),
        x_title="parameters, from the input to the output", y_title="trace",
    )  # fmt: skip


def _density_chart(density: dict[str, Any]) -> Chart | None:
    """Return a histogram of the eigenvalues."""
    places, masses = density.get("places", []), density.get("masses", [])
    if not places or not min(places) < max(places):
        return None
    shares, edges = np.histogram(places, bins=BINS, weights=masses)
    names = tuple(f"{low:.2g} to {high:.2g}" for low, high in itertools.pairwise(edges))
    log10 = tuple(math.log10(s) if s > 0 else None for s in shares)
    line = ChartLine(
        "global", "share of the eigenvalues", "estimate", "by stochastic Lanczos quadrature", log10, gaps=True
    )
    return Chart(
        "density", "Spectral density", names, (line,), ("eigenvalues",) * len(names),
        x_title="eigenvalue", y_title="share of the eigenvalues",
    )  # fmt: skip


def _density(density: dict[str, Any]) -> Section:
    rows = tuple((f"{100 * float(q):g} %", digits(v)) for q, v in density["quantiles"].items())
    (negative, error), (flat, flat_error) = density["negative"], density["flat"]
    return Section(
        "density",
        lines=(
            f"below zero: {negative:.1%} of the eigenvalues (+- {error:.1%})",
            f"within 1e-6 of the largest around zero: {flat:.1%} (+- {flat_error:.1%}), {density['zeros']} known",
        ),
        table=Table(("share below", "eigenvalue"), rows, ("share below",)),
        chart=_density_chart(density),
    )


def _sharpness(measures: dict[str, Any]) -> Section:
    rows = []
    for name, value in measures.items():
        if isinstance(value, dict):
            rows += [(f"{_SHARPNESS.get(name, name)}, {key}", digits(v)) for key, v in value.items()]
        else:
            rows.append((_SHARPNESS.get(name, name), NOTHING if value is None else digits(value)))
    return Section("sharpness", table=Table(("measure", "value"), tuple(rows), ("measure",)))
