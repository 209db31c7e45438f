"""``normscope demo``: both networks trained, analyzed, compared and written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from normscope.analysis import around_data
from normscope.cli.demo import one_thread
from normscope.cli.main import app
from normscope.core.result import Result
from normscope.report.embed import read_back

Run = Callable[..., Any]
QUICK = ("--width", 12, "--epochs", 3)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """Run a small demo once."""
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(around_data, "POINTS", 10)
        return CliRunner().invoke(app, ["demo", "--out", "there", *map(str, QUICK)]), folder


@pytest.fixture
def shown(demo: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what the demo printed, in the folder in which it ran."""
    monkeypatch.chdir(demo[1])
    return demo[0]


@pytest.mark.turns(6, together=True)
def test_writes_every_result_and_says_where(shown: Any) -> None:
    """Two results, the BatchNorm one again, and the summary; last comes the report to open."""
    assert shown.exit_code == 0
    expected = ["there/plain/result.json", "there/batchnorm/result.json", "there/result.json", "there/summary.txt"]
    lines = [line.strip() for line in shown.stdout.splitlines()]
    assert lines[-7:-3] == expected
    assert lines[-2:] == ["open in a browser:", "there/report.html"]
    assert all(Path(name).is_file() for name in expected)
    assert Path("there/result.json").read_text() == Path("there/batchnorm/result.json").read_text()
    assert Path("there/summary.txt").read_text().strip() in shown.stdout


@pytest.mark.turns(6, together=True)
def test_the_report_holds_both_results(shown: Any) -> None:
    """What is inside the page is what the files say, and the accuracies are on it."""
    text = Path("there/report.html").read_text()
    inside = read_back(text)
    assert list(inside) == ["plain", "batchnorm"]
    for name, data in inside.items():
        assert data == json.loads(Path(f"there/{name}/result.json").read_text())
    accuracy = next(line for line in shown.stdout.splitlines() if "accuracy" in line).split()
    assert all(f"{number} %" in text for number in accuracy if number.replace(".", "").isdigit())


@pytest.mark.turns(6, together=True)
def test_shows_what_was_promised_side_by_side(shown: Any) -> None:
    """Every row of the comparison is there, with the numbers of the results."""
    rows = {line.strip()[:30].strip(): line for line in shown.stdout.splitlines()}
    for start in (
        "accuracy on held-out digits",
        "certified, all inputs",
        "certified, variance floor",
        "certified, without normalizers",
        "attained",
    ):
        assert any(name.startswith(start) for name in rows), start
    plain, normalized = (
        Result.from_dict(json.loads(Path(f"there/{name}/result.json").read_text())) for name in ("plain", "batchnorm")
    )
    assert not plain.normalizers
    assert len(normalized.normalizers) == 9
    for result in (plain, normalized):
        lower, upper = result.end_to_end["lower"], result.end_to_end["global"]
        assert lower is not None
        assert upper is not None
        assert lower.log <= upper.log


@pytest.mark.slow
def test_same_seed_same_summary(run: Run) -> None:
    """The summary depends on the seed alone."""
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert run("demo", "--out", name, "--seed", seed, "--quiet", "--width", 6, "--epochs", 1).output == ""
    texts = [Path(name, "summary.txt").read_text() for name in "abc"]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


def test_threads_are_put_back() -> None:
    """The demo computes on one thread and leaves the setting as it was, also after an error."""
    before, inside = torch.get_num_threads(), []

    def fail() -> None:
        with one_thread():
            inside.append(torch.get_num_threads())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (inside, torch.get_num_threads()) == ([1], before)


def test_unwritable_place(run: Run) -> None:
    """A file in the way is wrong use, said before training."""
    Path("there").write_text("")
    result = run("demo", "--out", "there")
    assert result.exit_code == 2
    assert "is a file" in result.stderr


@pytest.mark.parametrize("file", ["result.json", "summary.txt", "report.html", "plain/result.json"])
def test_a_folder_in_the_way_is_said_before_the_work(run: Run, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    """Nothing is trained for nothing."""
    monkeypatch.setattr("normscope.cli.demo.compare", pytest.fail)
    Path("there", file).mkdir(parents=True)
    result = run("demo", "--out", "there", *QUICK)
    assert result.exit_code == 2
    assert "is a folder" in result.stderr
