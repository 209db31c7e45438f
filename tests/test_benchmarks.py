"""The benchmarks run on tiny shapes, say which peers are missing, and their arithmetic is right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from benchmarks import report
from benchmarks.__main__ import CHOICES
from benchmarks.convolutions import faster, one_sided
from benchmarks.peers import ONE_SIDED

from rotation import todays

ROOT = Path(__file__).parents[1]
#: Runs the benchmarks as if no peer were installed, with short searches.
WITHOUT_PEERS = """
import sys
from normscope.lipschitz import climb
from normscope.lipschitz.chains import join
climb.CLIMB_WORK, join.SECONDS = 1e9, 0.05
from normscope.analysis import around_data
around_data.USUAL_SECONDS, around_data.BALL_WORK = 0.2, 5e9
import benchmarks.machine as machine
real = machine.version
machine.version = lambda name: None if name in ("orthogonium", "deel-torchlip", "eclipse-nn") else real(name)
from benchmarks.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", WITHOUT_PEERS, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    out = tmp_path_factory.mktemp("bench")
    return _run("--quick", "--out", str(out)), out


@pytest.mark.turns(5)
@pytest.mark.parametrize("name", todays(CHOICES, 2))
def test_a_benchmark_runs(name: str, tmp_path: Path) -> None:
    """Others every day; `make test-all` runs all of them and looks at their numbers."""
    done = _run(name, "--quick", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert list(json.loads((tmp_path / "results.json").read_text())) == [name]


@pytest.mark.slow
def test_quick_run_needs_no_peer(quick: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    done, out = quick
    assert done.returncode == 0, done.stderr
    results = json.loads((out / "results.json").read_text())
    others = {
        "bounds",
        "normalization",
        "front",
        "analyze",
        "growth",
        "large",
        "monitor",
        "curvature",
        "generalization",
        "symmetries",
    }
    assert set(results) == {"convolutions", "certificates", *others}
    versions = {p["name"]: p["version"] for p in results["convolutions"]["peers"]}
    assert versions["orthogonium"] == versions["torchlip"] == "not installed"
    assert versions["torch spectral_norm"] == torch.__version__
    assert {r["eclipse"] for r in results["certificates"]["rows"]} == {"not installed"}


@pytest.mark.slow
def test_tables_on_the_terminal_are_those_of_the_file(quick: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    done, out = quick
    written = (out / "RESULTS.md").read_text()
    tables = [line for line in written.splitlines() if line.startswith("|")]
    assert len(tables) > 20
    assert set(tables) <= set(done.stdout.splitlines())


@pytest.mark.slow
def test_every_method_speaks_of_the_same_norm(quick: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    rows = json.loads((quick[1] / "results.json").read_text())["convolutions"]["rows"]
    assert rows
    for row in rows:
        truth, ours, peers = row["truth"], row["normscope"], row["peers"]
        assert ours["lower"] <= truth["upper"]
        assert ours["upper"] >= truth["lower"]
        assert -0.1 < peers["power"]["usual"]["error"] < 1e-5  # attained in float32
        assert -0.01 < peers["ARPACK"]["usual"]["error"] < 1e-9
        assert -0.01 < peers["normscope lower"]["usual"]["error"] <= 1e-12  # attained, recomputed in float64
        assert 0 < peers["fantastic four"]["usual"]["error"] < 3  # an upper bound, at most three times the norm
        circular, gram = peers["circular"]["usual"]["error"], peers["Gram circular"]["usual"]["error"]
        assert circular - 1e-5 <= gram <= circular + 0.1  # one bounds the other from above


@pytest.mark.slow
def test_methods_from_below_are_compared_at_equal_work(
    quick: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    """Each of the three appears with the CPU time of the first value within the width; ours is not its own rival."""
    done, out = quick
    rows = json.loads((out / "results.json").read_text())["convolutions"]["rows"]
    compared = one_sided(rows)
    assert [entry["layer"] for entry in compared] == [row["name"] for row in rows if not row["is_matrix"]]
    for entry in compared:
        assert set(entry["methods"]) == set(ONE_SIDED)
        point = entry["methods"]["normscope lower"].get("equal")
        assert point is None or abs(point["error"]) <= max(entry["width"], 1e-6)
    assert "normscope lower" not in {entry["peer"] for entry in faster(rows)}
    assert "Equal work: values from below alone" in done.stdout


def test_peers_are_compared_with_our_value_of_their_kind() -> None:
    """An upper bound with both our sides; a value from below, or no bound, with our quickest of that accuracy."""
    equal = {"effort": "1", "error": 0.0, "cpu": 3.0, "wall": 3.0, "cpu_ratio": 0.5}
    peers = {
        "normscope lower": {"claim": "lower", "equal": {**equal, "cpu": 2.0}},
        "above": {"claim": "upper", "equal": equal},
        "below": {"claim": "lower", "equal": equal},
        "slow": {"claim": "lower", "equal": {**equal, "cpu_ratio": 1.5}},
    }
    found = faster([{"name": "layer", "normscope": {"cpu": 6.0}, "peers": peers}])
    assert {(f["peer"], f["kind_ratio"]) for f in found} == {("above", 0.5), ("below", 1.5)}


def test_curvature_is_reported_while_products_alone_are_measured() -> None:
    section = json.loads((ROOT / "benchmarks" / "results.json").read_text())["curvature"]
    found = report.curvature({key: section[key] for key in section if key != "top"})
    assert "product, gradients" in found
    assert "network, evaluation mode" not in found


@pytest.mark.slow
def test_exponents_are_fitted_to_finite_costs(quick: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    series = json.loads((quick[1] / "results.json").read_text())["growth"]["series"]
    assert [s["axis"] for s in series] == ["depth", "width"] * 2
    assert all(-5 < s["exponent"] < 5 for s in series)


@pytest.mark.slow
def test_training_beside_the_monitor_is_identical(quick: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    rows = json.loads((quick[1] / "results.json").read_text())["monitor"]["rows"]
    assert rows
    for row in rows:
        assert row["identical"]
        assert row["probes"] <= 1 or row["share"] <= 2 * row["budget"]


@pytest.mark.turns(2)
def test_unknown_benchmark_is_refused() -> None:
    done = _run("speed")
    assert done.returncode == 2
    assert "convolutions" in done.stderr
    assert "speed" in done.stderr
