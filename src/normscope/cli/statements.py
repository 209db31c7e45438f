"""``normscope statements``: which numbered statement is computed by which function, and when it holds."""

from __future__ import annotations

import importlib
import json as json_module
import pkgutil
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from normscope.cli.console import guarded, show

if TYPE_CHECKING:
    from normscope.core.statement import Statement

#: Folders whose functions implement statements.
FOLDERS = ("operators", "statistics", "lipschitz")


@guarded
def statements(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List every numbered statement that is implemented, where it comes from and when it holds."""
    found = every_statement()
    if json:
        print(json_module.dumps([asdict(s) for s in found], indent=1))
        return
    from normscope.core.statement import PAPERS
    from normscope.report.table import Section, Table

    columns = ("number", "holds", "function")
    sections = []
    for paper, title in PAPERS.items():
        rows = tuple((s.number, s.holds, s.function.removeprefix("normscope.")) for s in found if s.paper == paper)
        if rows:
            sections.append(Section(f"{paper}: {title}", table=Table(columns, rows, frozenset(columns))))
    show(sections)


def every_statement() -> tuple[Statement, ...]:
    """Return the whole registry: every module that may register a statement is imported first."""
    import normscope
    from normscope.core.statement import statements as registered

    for folder in FOLDERS:
        package = importlib.import_module(f"{normscope.__name__}.{folder}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    own = (s for s in registered() if s.function.startswith(f"{normscope.__name__}."))
    return tuple(sorted(set(own), key=lambda s: (s.paper, s.number, s.function)))
