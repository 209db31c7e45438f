"""``normscope report``: from results to a page and back, and one clear line for every mistake."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from normscope.analysis.bounds.result import BoundsResult
from normscope.analysis.stored_results import PanelResult
from normscope.cli.main import app
from normscope.core.result import Rows
from normscope.core.value import Kind, Value
from normscope.curvature.result import CurvatureResult
from normscope.geometry.discover import Symmetries
from normscope.geometry.groups import SymmetryGroup
from normscope.geometry.orbits import Orbit
from normscope.report.embed import read_back
from normscope.weight_normalization.certified_step import Moment, StepCertificate
from normscope.weight_normalization.guarantees import Guarantee, Guarantees

Run = Callable[..., Any]
SMALL = "zoo:relu10[width=6,depth=3,in_features=4,norm={}]"


@pytest.fixture(scope="module")
def analyzed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two results."""
    folder = tmp_path_factory.mktemp("results")
    for norm in ("bn", "ln"):
        words = ["analyze", SMALL.format(norm), "--out", str(folder / norm), "--no-report", "-q"]
        assert CliRunner().invoke(app, words).exit_code == 0
    return folder


@pytest.fixture
def results(run: Run, analyzed: Path) -> list[str]:
    """Return two results, copied to where the command runs."""
    shutil.copytree(analyzed, ".", dirs_exist_ok=True)
    return ["bn/result.json", "ln/result.json"]


def test_there_and_back(run: Run, results: list[str]) -> None:
    """A page of one result gives back the very bytes of its file."""
    assert run("report", results[0]).stdout == "written: report.html\n"
    assert run("report", "--from-html", "report.html", "--out", "again.json").stdout == "written: again.json\n"
    assert Path("again.json").read_bytes() == Path(results[0]).read_bytes()


def test_several_side_by_side_and_back(run: Run, results: list[str]) -> None:
    """Named by their folders, and written back into folders of those names."""
    assert run("report", *results, "--out", "both.html", "--title", "a < b", "-q").stdout == ""
    text = Path("both.html").read_text()
    assert "<h1>a &lt; b</h1>" in text
    assert list(read_back(text)) == ["bn", "ln"]
    result = run("report", "--from-html", "both.html", "--out", "back")
    assert result.stdout == "written: back/bn/result.json\nwritten: back/ln/result.json\n"
    for name in results:
        assert Path("back", name).read_bytes() == Path(name).read_bytes()
    assert run("report", "bn", "ln", "--out", "folders.html", "--title", "a < b", "-q").exit_code == 0
    assert read_back(Path("folders.html").read_text()) == read_back(text)


def test_a_name_in_a_page_cannot_leave_the_folder(run: Run, results: list[str]) -> None:
    """Names come from a file anyone may have edited: a path in one stays below --out."""
    assert run("report", *results, "-q").exit_code == 0
    text = Path("report.html").read_text().replace('"name":"bn"', '"name":"../../outside"')
    Path("report.html").write_text(text)
    assert run("report", "--from-html", "report.html", "--out", "back").exit_code == 0
    assert sorted(p.name for p in Path("back").iterdir()) == ["ln", "outside"]
    assert not Path("../outside").exists()


def test_no_result_of_a_page_is_written_over_another(run: Run, results: list[str]) -> None:
    """Names that differ only in what a folder cannot be called, beside one that looks like a numbered folder."""
    assert run("report", *results, results[0], "-q").exit_code == 0
    names = list(read_back(Path("report.html").read_text()))
    assert names == ["bn 1", "ln", "bn 2"]
    text = Path("report.html").read_text().replace('"name":"ln"', '"name":"x:y"')
    text = text.replace('"name":"bn 1"', '"name":"x_y-2"').replace('"name":"bn 2"', '"name":"x?y"')
    Path("report.html").write_text(text)
    assert run("report", "--from-html", "report.html", "--out", "back").exit_code == 0
    assert sorted(p.name for p in Path("back").iterdir()) == ["x_y-1", "x_y-2", "x_y-3"]


def test_panels_beside_a_result(run: Run, results: list[str]) -> None:
    """What curvature wrote becomes part of the page of the result, whose bytes still come back."""
    small = ("curvature", SMALL.format("bn").replace("in_features=4", "in_features=64"), "--data", "digits")
    assert run(*small, "--limit", 32, "--top", 1, "--probes", 2, "--out", "there", "-q").exit_code == 0
    assert "<h2>eigenvalues of the Hessian" in Path("there/curvature.html").read_text()
    assert run("report", results[0], "there/curvature.json").exit_code == 0
    text = Path("report.html").read_text()
    assert "<h2>eigenvalues of the Hessian" in text
    assert list(read_back(text)) == [SMALL.format("bn")]
    assert run("report", "there/curvature.json", "--out", "panel.html").exit_code == 0
    alone = run("report", "--from-html", "panel.html", "--out", "again.json")
    assert alone.exit_code == 2
    assert "No result in this page: panel.html" in alone.stderr
    assert not Path("again.json").exists()
    assert run("report", *results, "there/curvature.json").exit_code == 0
    assert list(read_back(Path("report.html").read_text())) == ["bn", "ln"]


def test_a_page_is_said_to_be_replaced_only_if_there_is_something_to_write(run: Run, results: list[str]) -> None:
    """A wrong input leaves it as it is."""
    assert "replacing" not in run("report", results[0]).stderr
    wrong = run("report", "nope.json")
    assert wrong.exit_code == 2
    assert "replacing" not in wrong.stderr
    assert "replacing report.html" in run("report", results[0]).stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "at least one"),
        (["nothing.json"], "File not found: nothing.json"),
        (["."], "is a directory"),
        (["bad.json"], "bad.json is not"),
        (["other.json"], "other.json is not a result of normscope analyze, curvature, bounds, symmetry or"),
        (["bn/result.json", "--from-html", "x.html"], "cannot be used together"),
        (["--from-html", "nothing.html"], "nothing.html"),
        (["broken.json"], "result in broken.json cannot be read"),
        (["--from-html", "bad.json"], "No results found in this file"),
        (["--from-html", "cut.html"], "damaged"),
        (["bn/result.json", "--out", "bn"], "is a folder"),
        (["bn/result.json", "--out", "bad.json/x.html"], "is a file"),
    ],
)
def test_mistakes(run: Run, results: list[str], arguments: list[str], said: str) -> None:
    """Exit code 2, what is wrong on stderr, and nothing written."""
    Path("bad.json").write_text("{")
    Path("other.json").write_text(json.dumps({"kind": "recipe"}))
    Path("broken.json").write_text(json.dumps({"kind": "curvature"}))
    Path("cut.html").write_text('<script type="application/json" id="normscope-data">{"format":')
    before = sorted(Path().rglob("*"))
    result = run("report", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("model", "parameters"), []),
        (("model", "options", "seed"), None),
        (("effect", "printed_product", "kind"), -1),
        (("depth", "curves", "printed", "log10", 2), "NaN"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else None,
)
def test_a_damaged_result_is_told_in_one_line(run: Run, results: list[str], place: Any, value: Any) -> None:
    """Whatever part of it was changed: nothing is written."""
    data = json.loads(Path(results[0]).read_text())
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    if value is None:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    Path("damaged.json").write_text(json.dumps(data))
    for arguments in (["report", "damaged.json", "--out", "page.html"], ["compare", "damaged.json", results[0]]):
        done = run(*arguments)
        assert done.exit_code == 2
        assert "damaged" in done.stderr
        assert "Traceback" not in done.stderr
    assert not Path("page.html").exists()


ONE = Value.of(1.0, Kind.CERTIFIED)
TRUTH = {"train_error": 0.1, "test_error": 0.2, "gap": 0.1, "train_samples": 9, "test_samples": 9, "delta": 0.05}
#: Results that become panels, and a change of their JSON that reading does not see.
PANELS: dict[str, tuple[PanelResult, Callable[[Any], Any]]] = {
    "curvature": (
        CurvatureResult(
            {"name": "net", "class": "Net", "parameters": 3},
            {"samples": 1, "batches": 1, "dropout_masks": 0},
            *("batch", "hessian", 1.0, 0.5),
        ),
        lambda data: data["data"].pop("samples"),
    ),
    "bounds": (BoundsResult("net", TRUTH, Rows(())), lambda data: data["truth"].pop("delta")),
    "symmetry": (
        Symmetries(
            *("net", "batch", "none", 3, (SymmetryGroup("scale", ("w",), 1, "w times c"),)),
            orbits=(Orbit("scale", "w times c", (1.0,), (0.0,), (0.0,), (1.0,)),),
        ),
        lambda data: data["orbits"][0]["times"].clear(),
    ),
    "weight_normalization": (
        Guarantees(
            (Guarantee("smoothness", ONE, ONE, None),),
            Moment(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, StepCertificate(1.0, 1.0, 0.9, 0.1), 1.0, 1.0),
            paper_form=True,
        ),
        lambda data: data["rows"].clear(),
    ),
}


@pytest.mark.parametrize("name", PANELS)
def test_a_damaged_panel_is_told_in_one_line(run: Run, name: str) -> None:
    """The whole one makes a page; of the damaged one nothing is written."""
    whole, damage = PANELS[name]
    file = whole.save(f"{name}.json")
    assert run("report", file, "--out", "whole.html", "-q").exit_code == 0
    data = json.loads(file.read_text())
    damage(data)
    file.write_text(json.dumps(data))
    done = run("report", file, "--out", "page.html")
    assert done.exit_code == 2
    assert f"{name}.json is damaged" in done.stderr
    assert "Traceback" not in done.stderr
    assert not Path("page.html").exists()
