"""``normscope analyze``: what it prints and writes, and one clear line for every mistake."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

from normscope.cli.main import app
from normscope.core.errors import STOPPED
from normscope.core.result import Result
from normscope.core.value import Kind
from normscope.report.embed import read_back

Run = Callable[..., Any]
SMALL = "zoo:relu10[width=6,depth=3,in_features=4,norm=bn]"
MODELS = """
import torch
from torch import nn

def good():
    print("printed by the user's code")
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))

def weight_normalized():
    hidden = nn.utils.parametrizations.weight_norm(nn.Linear(64, 5))
    return nn.Sequential(nn.Flatten(), hidden, nn.Tanh(), nn.Linear(5, 10))

def sized(width=5, name="x"):
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))

def convolution():
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU())

def tokens():
    return nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 2))

def raises():
    raise ValueError("the factory is out of order")

def broken():
    net = good()
    nn.init.constant_(net[0].weight, float("nan"))
    return net

def imaginary():
    net = nn.Linear(2, 2)
    net.weight = nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))
    return net

def meta():
    return nn.Linear(4, 2, device="meta")

class Silent(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)
    def forward(self, x):
        self.linear(x)
        return "no tensor"

class Exits(Silent):
    def forward(self, x):
        raise SystemExit(3)

class Bare(nn.Module):
    def __init__(self):
        self.scale = 3
    def forward(self, x):
        return self.scale * x
"""


class _Payload:
    """An object whose unpickling would make a folder."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("ran",))


@pytest.fixture
def files(run: Run) -> Path:
    """Write models, weights and data, good and bad, into the working directory."""
    here = Path.cwd()
    (here / "net.py").write_text(MODELS)
    good = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    torch.save(good.state_dict(), "good.pt")
    torch.save({"0.weight": torch.ones(5, 3), "other": torch.ones(1)}, "misfit.pt")
    torch.save({"0.weight": torch.ones(5, 4), "x": _Payload()}, "unsafe.pt")
    (here / "cut.safetensors").write_bytes(b"12345678")
    save_file({"a.weight": torch.full((2, 2), math.nan)}, "nan.safetensors")
    np.save("empty.npy", np.zeros((0, 4), dtype=np.float32))
    np.save("good.npy", np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32))
    np.save("nan.npy", np.full((3, 4), np.nan, dtype=np.float32))
    np.save("images.npy", np.ones((3, 3, 8, 8), dtype=np.int64))
    np.save("ids.npy", np.full((3, 5), 0.5, dtype=np.float32))
    (here / "a_file").write_text("")
    (here / "taken" / "result.json").mkdir(parents=True)
    (here / "paged" / "report.html").mkdir(parents=True)
    os.mkfifo(here / "pipe")
    return here


BAD: list[tuple[str, list[str], list[str]]] = [
    ("no such file", ["nothing.py:build"], ["File not found: nothing.py"]),
    ("no such factory", ["net.py:nothing"], ["has no 'nothing'", "Callables there", "good"]),
    ("no factory named", ["net.py"], ["Write net.py:NAME", "good"]),
    ("factory raises", ["net.py:raises"], ["ValueError: the factory is out of order", "net.py, line"]),
    ("factory refuses arguments", ["net.py:good[width=3]"], ["net.py:good", "width"]),
    ("arguments that are none", ["net.py:sized[3]"], ["name=value pairs", "Write e.g."]),
    ("wrong shape", ["net.py:good", "--input", "5"], ["(2, 5)", "Linear(in_features=4", "--input"]),
    ("shape that is none", ["net.py:good", "--input", "3,a"], ["--input", "positive integers", "3,224,224"]),
    ("floats for an embedding", ["net.py:tokens", "--data", "ids.npy"], ["integer ids", "Embedding(7, 4)"]),
    ("integers for a convolution", ["net.py:convolution", "--data", "images.npy"], ["int64", "x.float()"]),
    ("NaN weights", ["net.py:broken"], ["0.weight has 20 NaN", "Use an earlier checkpoint"]),
    (
        "misfit weights",
        ["net.py:good", "--weights", "misfit.pt"],
        ["missing: 0.bias", "unexpected: other", "model 5x4, file 5x3"],
    ),
    ("unsafe weights", ["net.py:good", "--weights", "unsafe.pt"], ["could run code", "state_dict()"]),
    ("no such weights", ["net.py:good", "--weights", "no.pt"], ["File not found: no.pt"]),
    ("empty data", ["net.py:good", "--data", "empty.npy"], ["empty"]),
    ("NaN data", ["net.py:good", "--data", "nan.npy"], ["contains NaN"]),
    ("complex weights", ["net.py:imaginary"], ["dense real weights", "weight (complex64)"]),
    ("meta weights", ["net.py:meta"], ["Expected weights in memory", "load the weights from a file"]),
    ("no tensors returned", ["net.py:Silent", "--input", "4"], ["returns no floating-point tensor"]),
    ("a forward that exits", ["net.py:Exits", "--input", "4"], ["does not run", "it called sys.exit(3)"]),
    ("an ONNX file", ["net.onnx"], ["ONNX files are not supported", "Pass the PyTorch model"]),
    ("unknown zoo name", ["zoo:resnet81"], ["No network 'resnet81'", "Did you mean"]),
    ("unknown zoo argument", ["zoo:relu10[wide=3]"], ["wide", "width"]),
    ("unknown data", ["net.py:good", "--data", "cifar100"], ["cifar10", "got 'cifar100'"]),
    (
        "data root without data",
        ["net.py:good", "--data", "mnist", "--data-root", "."],
        ["mnist not found", "Looked in"],
    ),
    ("unknown split", ["net.py:good", "--data", "digits", "--split", "half"], ["train, test", "'half'"]),
    ("data of another shape", ["net.py:good", "--data", "digits"], ["(128, 1, 8, 8)"]),
    ("out is a file", ["net.py:good", "--out", "a_file"], ["--out", "Expected a folder", "is a file"]),
    ("out below a file", ["net.py:good", "--out", "a_file/deeper"], ["--out", "is a file"]),
    ("unknown mode", ["net.py:good", "--mode", "train"], ["one of 'running', 'batch', 'frozen-batch'", "'train'"]),
    ("unknown device", ["net.py:good", "--device", "abacus"], ["--device", "'abacus'"]),
    ("delta out of range", ["net.py:good", "--delta", "1.5"], ["delta", "between 0 and 1"]),
    ("tolerance out of range", ["net.py:good", "--tolerance", "0"], ["tolerance", "between 0 and 1"]),
    ("no sample wanted", ["net.py:good", "--data", "good.npy", "--limit", "0"], ["--limit"]),
    ("no such hub directory", ["hf:nowhere"], ["Directory not found: nowhere"]),
    ("cut checkpoint", ["cut.safetensors"], ["cut.safetensors", "copy it again"]),
    ("no such checkpoint", ["no.safetensors"], ["File not found: no.safetensors"]),
    ("NaN checkpoint", ["nan.safetensors"], ["a.weight has 4 NaN"]),
    ("unsafe checkpoint", ["unsafe.pt"], ["could run code"]),
    (
        "checkpoint beside weights",
        ["good.pt", "--weights", "good.pt"],
        ["cannot be used with a checkpoint", "--weights"],
    ),
    *(
        (
            f"checkpoint beside {given[0]}",
            ["good.pt", *given],
            ["cannot be used with a checkpoint", given[0]],
        )
        for given in (
            ["--data", "good.npy"],
            ["--data-root", "."],
            ["--split", "train"],
            ["--limit", "3"],
            ["--normalize", "imagenet"],
            ["--device", "abacus"],
            ["--mode", "nonsense"],
            ["--points", "3"],
            ["--ascent", "0"],
            ["--tolerance", "0.1"],
            ["--delta", "0.1"],
            ["--seed", "1"],
            ["--no-without"],
        )
    ),
    ("checkpoint beside --stacked", ["good.pt", "--stacked"], ["--stacked/--no-stacked cannot be used"]),
    (
        "report and none",
        ["net.py:good", "--report", "a.html", "--no-report"],
        ["--report and --no-report", "cannot be used together"],
    ),
    ("large seed", ["net.py:good", "--seed", str(2**64)], ["--seed"]),
    ("large shape", ["net.py:good", "--input", "999999,999999,999999"], ["--input", "at most"]),
    ("argument that cannot be", ["net.py:sized[width={[1]:2}]"], ["name=value pairs"]),
    ("no super()", ["net.py:Bare", "--input", "4"], ["super().__init__()", "'Bare'"]),
    ("result is a folder", ["net.py:good", "--out", "taken"], ["--out", "result.json is a folder"]),
    ("page is a folder", ["net.py:good", "--out", "paged"], ["--out", "report.html is a folder"]),
    ("page is a pipe", ["net.py:good", "--report", "pipe"], ["--report", "a device, a pipe or a socket"]),
    ("page is the result", ["net.py:good", "--report", "./result.json"], ["--report", "same file"]),
]


@pytest.mark.parametrize(("arguments", "said"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_mistakes(run: Run, files: Path, arguments: list[str], said: list[str]) -> None:
    """Each mistake: exit code 2, what holds and what to do on stderr, no traceback, nothing written."""
    before = {p.name for p in files.iterdir()}
    result = run("analyze", *arguments)
    assert result.exit_code == 2, result.output
    message = " ".join(result.stderr.split())
    assert all(part in message for part in said), message
    assert "Traceback" not in result.output
    assert result.stdout == ""
    assert {p.name for p in files.iterdir()} == before


def test_tables_on_stdout_and_a_file(run: Run, files: Path) -> None:
    """The verdict first, then coverage; plain text on stdout, result.json in the working directory."""
    result = run("analyze", "net.py:good", "--data", "good.npy")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "net.py:good"
    assert lines[1].startswith("  ")
    assert "3 of 3 operations understood, 100 % of 37 parameters" in result.stdout
    assert lines.index("coverage") < lines.index("end to end") < lines.index("layers")
    assert lines[-2:] == ["written: result.json", "open: report.html"]
    assert "printed by the user's code" not in result.stdout
    assert result.stdout.isascii()
    found = Result.from_dict(json.loads((files / "result.json").read_text()))
    assert found.statistics["samples"] == 20
    assert found.input["source"] == {"name": "good.npy", "split": "test", "samples": 20}


def test_json_is_alone_on_stdout(run: Run, files: Path) -> None:
    """With --json stdout is the result, whatever the user's code prints."""
    result = run("analyze", "net.py:good", "--json", "--out", "deep/er")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == json.loads((files / "deep" / "er" / "result.json").read_text())


def test_quiet_prints_nothing(run: Run, files: Path) -> None:
    """With --quiet the file alone is the answer."""
    result = run("analyze", "net.py:sized", "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert (files / "result.json").exists()


def test_the_numbers_are_those_of_the_weights_given(run: Run, files: Path) -> None:
    """--weights is what is measured: the last layer's norm is that of the file, by dense singular values."""
    assert run("analyze", "net.py:good", "--weights", "good.pt", "--quiet").exit_code == 0
    found = json.loads(Path("result.json").read_text())
    truth = float(torch.linalg.matrix_norm(torch.load("good.pt", weights_only=True)["2.weight"].double(), ord=2))
    assert math.isclose(10 ** found["layers"][1]["upper"]["log10"], truth, rel_tol=1e-8)
    assert found["model"]["origin"]["initialization"] == "checkpoint"


def test_random_weights_are_told(run: Run) -> None:
    """A zoo network with random weights says so, takes its arguments, and knows its own input shape."""
    result = run("analyze", SMALL)
    assert result.exit_code == 0
    assert "The weights are random (seed 0)" in result.stdout
    found = json.loads(Path("result.json").read_text())
    assert [x["shape"] for x in found["layers"]] == [[6, 4], [6, 6], [10, 6]]
    assert found["normalizers"][0]["kind"] == "batch_norm"


def test_same_seed_same_numbers(run: Run) -> None:
    """The result depends on the seed and nothing else."""
    texts = [run("analyze", SMALL, "--seed", seed, "--json").stdout for seed in (3, 3, 4)]
    assert texts[0] == texts[1]
    assert json.loads(texts[0])["end_to_end"]["global"] != json.loads(texts[2])["end_to_end"]["global"]


def test_options_reach_the_analysis(run: Run, files: Path) -> None:
    """Options change what is computed: no bound without normalizers, a stacked batch, fewer samples, batch mode."""
    data = ["--data", "good.npy"]
    plain = json.loads(run("analyze", SMALL, *data, "--json", "--no-stacked", "--no-without", "--limit", 7).stdout)
    assert plain["end_to_end"]["without_normalizers"] is None
    assert plain["end_to_end"]["stacked_batch"] is None
    assert plain["statistics"]["samples"] == 7
    stacked = json.loads(run("analyze", SMALL, *data, "--json", "--stacked", "--points", 2, "--ascent", 0).stdout)
    assert stacked["end_to_end"]["stacked_batch"]["mode"] == "batch"
    batch = json.loads(run("analyze", SMALL, *data, "--json", "--mode", "batch", "--tolerance", 0.1).stdout)
    assert batch["model"]["mode"] == "batch"
    assert batch["model"]["options"]["tolerance"] == 0.1


def test_text_is_full_width_whatever_the_terminal(run: Run, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """COLUMNS does not wrap what is piped."""
    monkeypatch.setenv("COLUMNS", "20")
    lines = run("analyze", "net.py:good", "--data", "good.npy").stdout.splitlines()
    row = next(line for line in lines if line.startswith("  certified, all inputs"))
    assert row.endswith("all inputs")
    assert len(row) > 60


@pytest.mark.turns(5)
def test_all_shows_every_row(run: Run) -> None:
    """Long tables are folded, and whole with --all."""
    deep = "zoo:relu10[width=3,depth=34,in_features=4]"
    folded, whole = run("analyze", deep, "--ascent", 0).stdout, run("analyze", deep, "--ascent", 0, "--all").stdout
    assert "rows into" in folded
    assert "hidden.17.0" not in folded
    assert "hidden.17.0" in whole


def test_weights_alone(run: Run, files: Path) -> None:
    """A checkpoint is measured without its model."""
    result = run("analyze", "good.pt")
    assert result.exit_code == 0
    assert result.stdout.startswith("weights: good.pt")
    found = json.loads((files / "result.json").read_text())
    assert found["kind"] == "weights"
    assert [t["name"] for t in found["tensors"]] == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_nothing_is_written_where_writing_fails(run: Run, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is said in one line, and no half file is left."""

    def full(self: Result, path: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Result, "save", full)
    result = run("analyze", "net.py:sized")
    assert result.exit_code == 2
    assert "No space left on device" in result.stderr
    assert not (files / "result.json").exists()


def test_the_report_is_written_where_it_should(run: Run, files: Path) -> None:
    """Beside the result, or where --report says, or not at all; it holds the result."""
    assert run("analyze", SMALL, "--out", "a", "-q").exit_code == 0
    assert read_back(Path("a/report.html").read_text())[SMALL] == json.loads(Path("a/result.json").read_text())
    assert run("analyze", SMALL, "--out", "b", "--report", "c/page.html", "-q").exit_code == 0
    assert Path("c/page.html").is_file()
    assert not Path("b/report.html").exists()
    assert run("analyze", SMALL, "--out", "d", "--no-report", "-q").exit_code == 0
    assert sorted(p.name for p in Path("d").iterdir()) == ["result.json"]


def test_a_report_that_cannot_be_written_is_said_before_the_work(run: Run, files: Path) -> None:
    """A folder in its place, or a file in the way, is wrong use."""
    for place, said in ((".", "is a folder"), ("a_file/page.html", "is a file")):
        result = run("analyze", SMALL, "--report", place)
        assert result.exit_code == 2
        assert "--report" in result.stderr
        assert said in result.stderr
    assert not Path("result.json").exists()


def test_the_doctor_is_asked_where_that_is_wanted(run: Run, files: Path) -> None:
    """The findings are printed, on the page and in the result, here a bias before BatchNorm; --no-check leaves it."""
    done = run("analyze", SMALL, "--points", 1, "--ascent", 0)
    assert done.exit_code == 0
    assert "Next: NS101," in done.stdout
    assert "\nfindings\n  NS101 warning" in done.stdout
    text = Path("report.html").read_text()
    assert "NS101" in text
    assert "No checks were run" not in text
    assert json.loads(Path("result.json").read_text())["findings"][0]["code"] == "NS101"
    assert run("analyze", SMALL, "--no-check", "-q", "--points", 1, "--ascent", 0).exit_code == 0
    assert "No checks were run" in Path("report.html").read_text()


def test_the_theory_of_weight_normalization_is_a_panel(run: Run, files: Path) -> None:
    """Where it covers the model and the data have labels; other models have none."""
    quick = ("--data", "digits", "--limit", 20, "--points", 2, "--time", 0)
    assert run("analyze", "net.py:weight_normalized", *quick, "--out", "a").exit_code == 0
    assert "<h2>weight normalization: bounds and" in Path("a/report.html").read_text()
    rows = json.loads(Path("a/weight_normalization.json").read_text())["rows"]
    assert "Hessian of the predictor" in [row["name"] for row in rows]
    assert run("analyze", "zoo:relu10[in_features=64,width=6,depth=2]", *quick, "--out", "b").exit_code == 0
    assert not Path("b/weight_normalization.json").exists()


def test_a_run_gets_a_folder_of_its_own(files: Path) -> None:
    """Nothing is overwritten: the second run goes to the next folder."""
    for number in (1, 2):
        done = CliRunner().invoke(app, ["analyze", "net.py:good", "--fast", "--no-check"])
        assert done.exit_code == 0, done.stderr
        assert f"written: normscope-runs/good-{number}/result.json" in done.stdout
        assert Path(f"normscope-runs/good-{number}/report.html").is_file()


def test_a_file_that_is_replaced_is_named(run: Run, files: Path) -> None:
    """Before the work is done; a new one is not."""
    command = ("analyze", "net.py:good", "--fast", "--no-check", "--no-report", "-q")
    assert "replacing" not in run(*command).stderr
    assert "normscope: replacing result.json" in run(*command).stderr


def test_the_first_look_is_there_when_the_work_is_stopped(
    run: Run, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C during the analysis of a large network keeps what the first look found, and says so."""

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("normscope.analysis.capacity.BIG_PARAMETERS", 1)
    monkeypatch.setattr("normscope.analysis.capacity._analyze", stopped)
    done = run("analyze", "net.py:good")
    assert done.exit_code == 0, done.stderr
    assert "normscope: first look:" in done.stderr
    found = Result.from_dict(json.loads(Path("result.json").read_text()))
    assert found.upper is not None
    assert found.upper.kind is Kind.CERTIFIED
    assert found.lower is not None
    assert found.lower.value <= found.upper.value < math.inf
    assert STOPPED in found.messages


def test_a_checkpoint_has_a_report_too(run: Run, files: Path) -> None:
    """Every tensor is on the page."""
    assert run("analyze", "good.pt", "-q").exit_code == 0
    text = Path("report.html").read_text()
    assert all(name in text for name in ("0.weight", "2.bias"))
    assert read_back(text)["good.pt"] == json.loads(Path("result.json").read_text())


@pytest.mark.parametrize("arguments", [["net.py:raises", "--mode", "nonsense"], ["net.py:raises", "--seed", 2**63]])
def test_options_are_checked_before_the_model_is_built(run: Run, files: Path, arguments: list[object]) -> None:
    """A wrong one is what is told."""
    result = run("analyze", *arguments)
    assert result.exit_code == 2
    assert str(arguments[1])[2:] in result.stderr
    assert "out of order" not in result.stderr


def test_arguments_may_have_the_names_of_our_own(run: Run, files: Path) -> None:
    """They reach the factory, and nothing else."""
    (files / "names.py").write_text(
        "from torch import nn\n"
        "def build(seed=0, weights=None, name='', spec=1):\n"
        "    return nn.Linear(4, seed + spec, bias=weights is None)\n"
    )
    result = run("analyze", "names.py:build[seed=3,weights=None,name=x,spec=2]", "--input", 4, "--json", "--seed", 9)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["layers"][0]["shape"] == [5, 4]
    assert found["model"]["origin"]["seed"] == 9
    assert run("analyze", "zoo:relu10[name=x]").exit_code == 2


def test_long_arguments_are_no_path(run: Run, files: Path) -> None:
    """Longer than any name of a file."""
    numbers = ",".join(["3"] * 200)
    result = run("analyze", f"net.py:sized[name=[{numbers}]]", "--input", 4, "--quiet")
    assert result.exit_code == 0, result.stderr


def test_a_folder_with_brackets(run: Run, files: Path) -> None:
    """Only the last brackets hold arguments."""
    folder = files / "run[1]"
    folder.mkdir()
    (files / "net.py").rename(folder / "net.py")
    assert run("analyze", "run[1]/net.py:sized[width=7]", "--input", 4, "--quiet").exit_code == 0
    assert json.loads((files / "result.json").read_text())["layers"][0]["shape"] == [7, 4]


def test_what_the_home_folder_holds_is_found(run: Run, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By model, weights, data and places to write to alike."""
    monkeypatch.setenv("HOME", str(files))
    paths = ["~/net.py:good", "--weights", "~/good.pt", "--data", "~/good.npy", "--out", "~/o", "--report", "~/r.html"]
    result = run("analyze", *paths, "--quiet")
    assert result.exit_code == 0, result.stderr
    assert (files / "o" / "result.json").is_file()
    assert (files / "r.html").is_file()


def test_links_are_written_through(run: Run, files: Path) -> None:
    """The link stays, what it leads to is replaced."""
    (files / "real.html").write_text("old")
    (files / "link.html").symlink_to("real.html")
    assert run("analyze", SMALL, "--report", "link.html", "-q").exit_code == 0
    assert (files / "link.html").is_symlink()
    assert len((files / "real.html").read_text()) > 1000


def test_the_folder_one_is_in_has_a_name(run: Run, files: Path) -> None:
    """Also where it is called by a dot."""
    (files / "run7").mkdir()
    (files / "good.pt").rename(files / "run7" / "good.pt")
    os.chdir(files / "run7")
    assert run("analyze", ".", "--no-report", "-q").exit_code == 0
    assert json.loads(Path("result.json").read_text())["checkpoint"]["name"] == "run7"


def test_names_of_tensors_give_no_orders(run: Run, files: Path) -> None:
    """Whoever wrote the file."""
    torch.save({"a\x1b[2J.weight": torch.eye(2), "b\nfake  row": torch.eye(2)}, "m.pt")
    result = run("analyze", "m.pt", "--no-report")
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert r"a\x1b[2J.weight" in result.stdout
    assert r"b\nfake  row" in result.stdout


@pytest.mark.parts_may_fail
def test_the_result_is_kept_where_the_report_or_the_doctor_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both come after the work: the result is written, the failure named in one line, and the code is not zero."""

    def fail(*_: object, **__: object) -> None:
        raise TypeError("must be real number, not str")

    monkeypatch.setattr("normscope.doctor.check", fail)
    done = run("analyze", SMALL, "--check", "--points", 1, "--ascent", 0)
    assert done.exit_code == 2
    assert "the doctor is left out (TypeError: must be real number, not str)" in done.stderr
    assert Path("report.html").is_file()
    Path("result.json").unlink()
    monkeypatch.setattr("normscope.report.html.report_html", fail)
    done = run("analyze", SMALL, "--points", 1, "--ascent", 0)
    assert done.exit_code == 2
    assert "the report is left out (TypeError" in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(Path("result.json").read_text(encoding="utf-8"))["kind"] == "capacity"
