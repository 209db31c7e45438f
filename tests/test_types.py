"""Types: mypy finds nothing wrong in the package, and those who use it see types behind its lazy names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import normscope

ROOT = Path(__file__).parents[1]


def test_type_checkers_see_what_is_there(tmp_path: Path) -> None:
    """With the settings and the cache of ``make lint``; behind every lazy name stands a type, not ``Any``."""
    program = tmp_path / "program.py"
    lines = [f"reveal_type(normscope.{name})" for name in normscope.__all__]
    program.write_text("\n".join(["import normscope", *lines]) + "\n")
    command = [sys.executable, "-m", "mypy", "src/normscope", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "normscope.core.result.Result" in done.stdout, done.stdout
    assert "-> torch.nn.modules.module.Module" in done.stdout, done.stdout
    assert 'Revealed type is "Any"' not in done.stdout, done.stdout
    assert done.stdout.count("Revealed type is") == len(lines)
