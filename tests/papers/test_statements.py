"""The whole registry of statements."""

from __future__ import annotations

import subprocess
import sys

from normscope.papers.statements import every_statement, statement_modules

PROGRAM = """
import importlib, pkgutil, sys
import normscope
from normscope.papers.statements import every_statement
first = every_statement()
for folder in ("operators", "linalg", "lipschitz", "papers", "geometry", "analysis"):
    package = importlib.import_module(f"normscope.{folder}")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
sys.exit(first != every_statement())
"""


def test_importing_everything_adds_no_statement() -> None:
    """What is found by looking at the sources is what is there once all is imported."""
    assert subprocess.run([sys.executable, "-c", PROGRAM], check=False).returncode == 0


def test_modules_are_named_as_they_are_imported() -> None:
    names = statement_modules()
    assert len(set(names)) == len(names)
    assert not any(name.endswith("__init__") for name in names)


def test_statements_are_ours_and_sorted() -> None:
    found = every_statement()
    assert all(s.function.startswith("normscope.") for s in found)
    assert list(found) == sorted(found, key=lambda s: (s.paper, s.number, s.function))
    assert len(set(found)) == len(found)
