"""The pages of the rules in ``docs/checks``, generated from the rules; ``python tests/rule_pages.py`` writes them."""

import textwrap
from pathlib import Path

from normscope.doctor.catalogue import RULES
from normscope.doctor.rule import NEEDS, Rule

WIDTH = 120
INDEX = "README.md"
#: What the hundreds of a code stand for.
FAMILIES = {
    "NS0": "whether the model can be checked",
    "NS1": "parts that cancel or are misplaced",
    "NS2": "statistics",
    "NS3": "stabilizers",
    "NS4": "the optimizer",
    "NS5": "capacity",
    "NS6": "units, scales and vectors",
}


def page(rule: Rule) -> str:
    """Return the page of a rule as Markdown.

    >>> page(RULES["NS101"]).splitlines()[0]
    '# NS101: bias cancelled by a normalizer'
    """
    needs = ", ".join(NEEDS[need] for need in rule.needs) or "nothing but the model"
    facts = f"`{rule.name}`. Severity: {rule.severity.value}. Certainty: {rule.certainty.value}. Needs: {needs}."
    facts += " It also checks training runs." if rule.check_history is not None else ""
    parts = [f"# {rule.code}: {rule.title}", _wrapped(facts), "## Why", _wrapped(rule.why)]
    parts += ["## Effect", _wrapped(f"{rule.effect[0].upper()}{rule.effect[1:]}.")]
    if rule.statement:
        parts += ["## Statement", f"    {rule.statement}"]
    parts += [
        "## What to do",
        _wrapped(f"{rule.fix[0].upper()}{rule.fix[1:]}."),
        "## Example",
        "This code has the problem:",
        textwrap.indent(rule.example, "    "),
        "This code does not:",
        textwrap.indent(rule.good, "    "),
    ]
    if rule.threads:
        links = "\n".join(f"- <https://github.com/{thread}>" for thread in rule.threads)
        parts += ["## Reported by users", links]
    return "\n\n".join(parts) + "\n"


def index() -> str:
    """Return the page that lists every rule."""
    intro = (
        "What `normscope check` looks for. A finding is *proved* (it follows from graph and weights), *measured* (on "
        "the data) or *likely* (from experience). The table shows the severity of most findings of a rule; a single "
        "finding may be less or more severe. These pages are generated from the rules."
    )
    parts = ["# Rules of the doctor", _wrapped(intro)]
    for prefix, words in FAMILIES.items():
        table = ["| code | name | problem | severity | certainty |", "|---|---|---|---|---|"]
        for code, r in RULES.items():
            if code.startswith(prefix):
                table.append(
                    f"| [{code}]({code}.md) | {r.name} | {r.title} | {r.severity.value} | {r.certainty.value} |"
                )
        parts += [f"## {prefix}xx: {words}", "\n".join(table)]
    parts.append("```{toctree}\n:hidden:\n:glob:\n\nNS*\n```")
    return "\n\n".join(parts) + "\n"


def _wrapped(text: str) -> str:
    """Return a paragraph in lines."""
    return "\n".join(textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False))


def write_pages(folder: Path) -> None:
    """Write the page of every rule, and the index."""
    for code, rule in RULES.items():
        (folder / f"{code}.md").write_text(page(rule))
    (folder / INDEX).write_text(index())


if __name__ == "__main__":
    write_pages(Path(__file__).parents[1] / "docs" / "checks")
