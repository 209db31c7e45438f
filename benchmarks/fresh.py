"""Start one measurement in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def fresh(task: str, **arguments: Any) -> dict[str, Any]:
    """Return what ``benchmarks.one`` measures in a process of its own.

    Raises:
        RuntimeError: if it fails, with the last lines it wrote.
    """
    command = [sys.executable, "-m", "benchmarks.one", json.dumps({"task": task, **arguments})]
    one_thread = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # NumPy's; torch is told in the process itself
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, env=one_thread, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{task} {arguments} failed: {done.stderr[-600:]}")
    return json.loads(done.stdout.splitlines()[-1])


def here(task: str, **arguments: Any) -> dict[str, Any]:
    """Return the same, measured in this process: quicker to start, and its memory is not its own."""
    from benchmarks.one import TASKS

    return TASKS[task](**arguments)
