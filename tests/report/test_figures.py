"""The paper's figures: lines are the series of the runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from normscope.core.errors import InputError
from normscope.monitor.run import Run
from normscope.monitor.sinks.folder import RunFolder
from normscope.report.figures import PANELS, draw


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


@pytest.mark.turns(3)
@pytest.mark.parametrize("figure", PANELS)
def test_each_figure_has_its_panels_for_each_network(run: Run, figure: str, tmp_path: Path) -> None:
    """A row for every three of them; it can be written."""
    drawn = draw(figure, {"relu10": run, "resnet18": run})
    scales = [ax for ax in drawn.axes if ax.get_ylabel() == "layer"]
    assert len(drawn.axes) - len(scales) == 2 * len(PANELS[figure])
    assert len(scales) == {"fig1": 2, "fig2": 2, "fig3": 4}[figure]
    assert all(scale.get_ylim() == (1, 14) for scale in scales)
    drawn.savefig(tmp_path / "figure.svg")


def test_figure_3_shows_norms_and_variances_with_their_products_and_the_accuracy(run: Run) -> None:
    """Five panels in two rows."""
    drawn = draw("fig3", {"efficientnet_b3": run})
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
    norms, product, accuracy, _scale = draw("fig1", {"relu10": run}).axes
    assert len(norms.get_lines()) == len({line.get_color() for line in norms.get_lines()}) == 14
    assert list(norms.get_lines()[1].get_ydata()) == [2.0, 3.0, 4.0]
    assert [list(line.get_ydata()) for line in product.get_lines()] == [[3.0, 4.0, 5.0], [2.0, 2.0, 2.0]]
    assert list(accuracy.get_lines()[0].get_ydata()) == pytest.approx([0.0, 0.1, 0.2])


def test_an_unknown_figure(run: Run) -> None:
    """With those there are."""
    with pytest.raises(InputError, match="fig1, fig2, fig3"):
        draw("fig7", {"relu10": run})
