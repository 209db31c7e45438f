"""The symmetries of a model as tables and charts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from normscope.geometry.discover import Symmetries
from normscope.geometry.orbits import Orbit
from normscope.report.charts import RUNS, Chart, ChartLine, log10_of
from normscope.report.plot import figure_class
from normscope.report.table import Section, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: How many groups are listed.
LISTED = 40


def symmetry_sections(found: Symmetries, *, everything: bool = False) -> list[Section]:
    """Return the report: the dimension, then one row per group."""
    statistics = "batch statistics, as in training" if found.mode == "batch" else "running statistics, as in evaluation"
    loss = "cross-entropy of the outputs" if found.loss == "cross_entropy" else "the outputs themselves"
    whole = all(group.certificate is None or group.certificate.exact for group in found.groups)
    eps = "eps = 0" if whole else "the model's own eps (a channel is constant, so scales are not searched)"
    lines = (
        f"{found.dimension} of {found.parameters} directions leave the outputs unchanged ({statistics}; {loss})",
        f"every group was verified in float64 with {eps}: derivative, finite orbit",
    )
    head = Section(f"symmetries of {found.model}", (*lines, *_identities(found), *found.messages))
    if not found.parameters:
        return [Section(head.title, ("No parameter is trainable: requires_grad is off everywhere.",))]
    if not found.groups:
        return [Section(head.title, ("No symmetry found.", *found.messages))]
    shown = found.groups if everything else found.groups[:LISTED]
    cells = tuple(
        (
            group.kind,
            str(group.dimension) if group.kind != "permutation" else "discrete",
            "" if group.certificate is None else f"{group.certificate.derivative:.0e}",
            "" if group.certificate is None else f"{group.certificate.orbit:.0e}",
            group.statement,
        )
        for group in shown
    )
    more = () if len(shown) == len(found.groups) else (f"and {len(found.groups) - len(shown)} more (--all)",)
    columns = ("kind", "dimension", "derivative", "orbit", "what")
    listed = Section("groups", table=Table(columns, cells, ("kind", "what")), after=more)
    return [head, listed, *([_orbits(found.orbits)] if found.orbits else ())]


def _identities(found: Symmetries) -> tuple[str, ...]:
    """Return the errors of the gradient and Hessian identities of a loss, if they were computed."""
    proofs = [g.certificate for g in found.groups if g.certificate is not None and g.certificate.hessian is not None]
    if not proofs:
        return ()
    first = proofs[0]
    lines = [
        f"of a loss: gradient along the groups {first.gradient:.0e} of its length, H X = -(DX)' gradient to "
        f"{first.hessian:.0e}, both relative"
    ]
    scales = [g.certificate for g in found.scale_invariant if g.certificate in proofs and g.certificate.predicted]
    if scales:
        most = max(scales, key=lambda p: abs(p.broken or 0.0))
        lines.append(f"eps leaves a gradient of {most.broken:.2e} along a scale; predicted: {most.predicted:.2e}")
    return tuple(lines)


def _orbits(orbits: tuple[Orbit, ...]) -> Section:
    """Return the change of the outputs along and across orbits, relative to the largest output."""
    rows = tuple(
        (o.kind, f"{o.times[-1]:g}", f"{o.along[-1]:.0e}", f"{o.stabilized[-1]:.0e}", f"{o.across[-1]:.0e}")
        for o in orbits
    )
    columns = ("kind", "moved by", "along, eps = 0", "along, with eps", "random direction")
    lines = ("largest change of an output, relative to the largest output, in float64; one orbit of each kind",)
    table = Table(columns, rows, ("kind",))
    return Section("along orbits and across them", lines, table, chart=_chart(orbits))


def _chart(orbits: tuple[Orbit, ...]) -> Chart:
    """Return the change of the outputs against the distance moved."""
    lines = tuple(
        ChartLine(
            f"run{k % RUNS}{end}", f"{o.kind}, {what}", "measured", o.statement, tuple(map(log10_of, by)), gaps=True
        )
        for k, o in enumerate(orbits)
        for end, what, by in (("-lower", "along its orbit", o.stabilized), ("", "random direction", o.across))
    )
    times = tuple(f"{t:g}" for t in orbits[0].times)
    return Chart(
        "orbits", "What moving the parameters does to the outputs", times, lines, ("length",) * len(times),
        x_title="how far the parameters are moved", y_title="outputs change by, relative",
    )  # fmt: skip


def plot_orbits(found: Symmetries) -> Figure:
    """Draw the change of the outputs along each orbit and in a random direction.

    The orbits are found by ``symmetry(model, data, follow_orbits=True)``.

    Raises:
        MissingDependencyError: if matplotlib is not installed.
    """
    figure = figure_class()(figsize=(6.4, 4.0), layout="constrained")
    ax = figure.subplots()
    for k, orbit in enumerate(found.orbits):
        color = f"C{k}"
        ax.loglog(orbit.times, orbit.across, color=color, marker="o", markersize=3, label=f"{orbit.kind}, random")
        ax.loglog(orbit.times, orbit.stabilized, color=color, linestyle="--", label=f"{orbit.kind}, orbit")
        ax.loglog(orbit.times, orbit.along, color=color, linestyle=":", label=f"{orbit.kind}, orbit, eps = 0")
    ax.set(xlabel="how far the parameters are moved", ylabel="largest change of an output, relative")
    ax.legend(fontsize="small", ncols=2)
    return figure
