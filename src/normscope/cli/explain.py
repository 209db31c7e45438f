"""``normscope explain``: what a claim, a theorem or a rule says, and where it is computed."""

from typing import Annotated

from typer import Argument

from normscope.cli import options
from normscope.cli.console import Stages, finish, guarded
from normscope.cli.demo import one_thread
from normscope.core.errors import InputError
from normscope.core.words import WORDS


@guarded
def explain(
    name: Annotated[
        list[str],
        Argument(
            metavar="WORD",
            help="A word from a report (certified), a code (NS101), a theorem ('Theorem 13') or a claim "
            "('001-T13(8)').",
            show_default=False,
        ),
    ],
    json: options.PlainJson = False,
) -> None:
    """Explain a word from a report, a rule of the doctor, a theorem or a claim."""
    known = _word(" ".join(name)) if not json else None
    if known is not None:
        print(known)
        return
    with Stages(lines=not json):
        from normscope.papers.explain import Answer
        from normscope.papers.explain import explain as look_up

        with one_thread():
            try:
                answer = look_up(" ".join(name))
            except InputError as unknown:  # several names, if each of them has an explanation
                try:
                    parts = tuple(part for one in name for part in look_up(one).parts)
                except InputError:
                    raise unknown from None
                answer = Answer(" ".join(name), parts)
    finish(answer, json=json)


def _word(name: str) -> str | None:
    """Return what a word means, without loading torch; ``None`` if the word is not known.

    >>> _word("Attained")
    'attained: a lower bound: an input, or a pair of inputs, that reaches it was found'
    """
    asked = name.casefold().replace("-", " ")
    found = next((w for w in WORDS if w.casefold().replace("-", " ") == asked), None)
    return None if found is None else f"{found}: {WORDS[found]}"
