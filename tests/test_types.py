"""Types: mypy finds nothing wrong in the package, and those who use it see types behind its lazy names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_type_checkers_see_what_is_there(tmp_path: Path) -> None:
    """With the settings and the cache of ``make lint``; behind lazy names stand types, not ``Any``."""
    program = tmp_path / "program.py"
    program.write_text("import normscope\nreveal_type(normscope.analyze)\nreveal_type(normscope.load_model)\n")
    command = [sys.executable, "-m", "mypy", "src/normscope", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "normscope.core.result.Result" in done.stdout, done.stdout
    assert "-> torch.nn.modules.module.Module" in done.stdout, done.stdout
