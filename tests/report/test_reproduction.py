"""A study is done, drawn and written, its claims beside the measurements; what is unknown is refused at once."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from normscope.core.errors import InputError
from normscope.monitor.run import Run
from normscope.monitor.sinks.folder import RunFolder
from normscope.papers.study import STUDIES, Evidence
from normscope.report.reproduction import PANELS, draw_figure, evidence_section, reproduce
from normscope.report.table import plain_text


@pytest.mark.turns(10)
@pytest.mark.parametrize("name", [name for name in STUDIES if name.startswith("wn-")])
def test_a_study_at_the_smallest_scale(name: str, tmp_path: Path) -> None:
    done = reproduce(name, "smoke", out=tmp_path)
    assert [file.name for file in done.files] == [f"{name}.png", f"{name}.svg", f"{name}.json"]
    stored = json.loads((tmp_path / "smoke-0" / f"{name}.json").read_text())
    assert stored["claims"] == [found.to_dict() for found in done.evidence]
    assert all(line["y"] for panel in stored["panels"] for line in panel["lines"])
    # bounds and laws that are proved are borne out at any scale
    proved = [e for e in done.evidence if "bound holds" in e.claim or "never" in e.claim or "certified" in e.claim]
    assert all(e.agrees for e in proved)
    assert proved or name == "wn-activation"


def test_what_is_unknown_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Unknown figure or study 'wn'. Choose from: fig1, .*wn-depth"):
        reproduce("wn", out=tmp_path)
    with pytest.raises(InputError, match="Unknown scale 'paper'"):
        reproduce("wn-depth", "paper", out=tmp_path)


@pytest.mark.parametrize(("agrees", "word"), [(True, "agrees"), (False, "disagrees"), (None, "not claimed")])
def test_each_verdict_has_its_word(agrees: bool | None, word: str) -> None:
    """What the paper does not say is told as such."""
    section = evidence_section("fig1", "smoke", [Evidence("norms grow", "net", {"share": 1 / 3, "least": 2.0}, agrees)])
    assert section.table is not None
    assert section.table.rows == (("norms grow", "net", "share 0.3333, least 2", word),)


def test_the_section_names_the_figure_and_keeps_the_order() -> None:
    """One row for each claim and network, in the order they came; an empty table has none."""
    claims = [Evidence(claim, net, {}, True) for net in ("a", "b") for claim in ("one", "two")]
    section = evidence_section("fig2", "laptop", claims)
    assert section.title == "fig2, laptop scale"
    assert section.table is not None
    assert [row[:2] for row in section.table.rows] == [("one", "a"), ("two", "a"), ("one", "b"), ("two", "b")]
    empty = evidence_section("fig1", "smoke", []).table
    assert empty is not None
    assert empty.rows == ()


def test_numbers_past_all_bounds_are_shown() -> None:
    """An infinite bound is no reason to fail."""
    text = plain_text([evidence_section("fig1", "smoke", [Evidence("c", "net", {"x": math.inf}, None)])])
    assert "x inf" in text


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a run of fourteen layers with normalizers."""
    sink = RunFolder(tmp_path)
    sink.begin({"model": "net"}, None)
    for step in range(3):
        point = {f"norm/{i}": 1.0 + i + step for i in range(14)} | {f"variance/{i}": 2.0 + i for i in range(14)}
        point |= {"product/norms_log10": 3.0 + step, "product/folded_log10": 2.0, "probe/accuracy": 0.1 * step}
        point |= {"product/inverse_sigma_printed_log10": 1.0, "product/inverse_sigma_proved_log10": -1.0}
        sink.log(point, step=step)
    sink.close()
    return Run.open(tmp_path)


@pytest.mark.turns(6)
@pytest.mark.parametrize("figure", PANELS)
def test_each_figure_has_its_panels_for_each_network(run: Run, figure: str, tmp_path: Path) -> None:
    """A row for every three of them; it can be written."""
    drawn = draw_figure(figure, {"relu10": run, "resnet18": run})
    scales = [ax for ax in drawn.axes if ax.get_ylabel() == "layer"]
    assert len(drawn.axes) - len(scales) == 2 * len(PANELS[figure])
    assert len(scales) == {"fig1": 2, "fig2": 2, "fig3": 4}[figure]
    assert all(scale.get_ylim() == (1, 14) for scale in scales)
    drawn.savefig(tmp_path / "figure.svg")


def test_figure_3_shows_norms_and_variances_with_their_products_and_the_accuracy(run: Run) -> None:
    """Five panels in two rows."""
    drawn = draw_figure("fig3", {"efficientnet_b3": run})
    panels = [ax for ax in drawn.axes if ax.get_ylabel() != "layer"]
    labels = [ax.get_ylabel() for ax in panels]
    assert labels[0] == "norm of the layer"
    assert labels[1] == labels[4] == "log10 of the product"
    assert labels[2].startswith("accuracy")
    assert labels[3].startswith("variance")
    assert [list(line.get_ydata()) for line in panels[1].get_lines()] == [[3.0, 4.0, 5.0], [2.0, 2.0, 2.0]]
    assert [ax.get_subplotspec().rowspan.start for ax in panels] == [0, 0, 0, 1, 1]


def test_lines_are_the_series(run: Run) -> None:
    """Every layer, in colours of its own, and the product with its folded form."""
    norms, product, accuracy, _scale = draw_figure("fig1", {"relu10": run}).axes
    assert len(norms.get_lines()) == len({line.get_color() for line in norms.get_lines()}) == 14
    assert list(norms.get_lines()[1].get_ydata()) == [2.0, 3.0, 4.0]
    assert [list(line.get_ydata()) for line in product.get_lines()] == [[3.0, 4.0, 5.0], [2.0, 2.0, 2.0]]
    assert list(accuracy.get_lines()[0].get_ydata()) == pytest.approx([0.0, 0.1, 0.2])


def test_an_unknown_figure(run: Run) -> None:
    """With those there are."""
    with pytest.raises(InputError, match="fig1, fig2, fig3"):
        draw_figure("fig7", {"relu10": run})
