"""``normscope explain``: what a claim, a theorem or a rule says, and where it is computed."""

from __future__ import annotations

from typing import Annotated

import typer

from normscope.cli.console import Stages, guarded, show
from normscope.cli.demo import one_thread


@guarded
def explain(
    name: Annotated[
        list[str],
        typer.Argument(
            help="'Theorem 13', 'than2025 Theorem 13', '001-T13(8)', a statement or rule.", show_default=False
        ),
    ],
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Explain a claim, a numbered statement or a rule: what it says, whether it holds, the numbers, and the code."""
    with Stages(lines=not json) as stages:
        stages("loading torch")
        from normscope.papers.explain import explain as look_up

        with one_thread():
            answer = look_up(" ".join(name))
    if json:
        print(answer.to_json())
        return
    from normscope.report.audit import explanation_sections

    show(explanation_sections(answer.parts))
