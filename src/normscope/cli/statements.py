"""``normscope statements``: which numbered statement is computed by which function, and when it holds."""

from dataclasses import asdict

from normscope.cli import options
from normscope.cli.console import finish, guarded


@guarded
def statements(json: options.PlainJson = False) -> None:
    """List every implemented statement of the papers, its source and when it holds."""
    from normscope.papers.explain import every_statement

    found = every_statement()
    finish(found, json=json, document=[asdict(s) for s in found])
