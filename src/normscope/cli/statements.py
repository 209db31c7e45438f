"""``normscope statements``: which numbered statement is computed by which function, and when it holds."""

import json as json_module
from dataclasses import asdict
from typing import Annotated

import typer

from normscope.cli.console import guarded, show


@guarded
def statements(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List every implemented statement of the papers, its source and when it holds."""
    from normscope.papers.explain import every_statement

    found = every_statement()
    if json:
        print(json_module.dumps([asdict(s) for s in found], indent=1))
        return
    from normscope.report.audit import statement_sections

    show(statement_sections(found))
