"""Unique names."""

from collections import Counter
from collections.abc import Iterable


def numbered(names: Iterable[str], form: str = "{}#{}", *, plain_first: bool = False) -> list[str]:
    """Return names made unique by numbers: repeated names are numbered in order of appearance.

    A number that would lead to an existing name is skipped.

    >>> numbered(["fc", "norm", "fc"])
    ['fc#1', 'norm', 'fc#2']
    >>> numbered(["a", "a", "a (2)"], "{} ({})", plain_first=True)
    ['a', 'a (3)', 'a (2)']
    """
    given = list(names)
    total, turn = Counter(given), Counter[str]()
    taken = {name for name in given if plain_first or total[name] == 1}
    made = []
    for name in given:
        turn[name] += 1
        if total[name] == 1 or (plain_first and turn[name] == 1):
            made.append(name)
            continue
        while (new := form.format(name, turn[name])) in taken:
            turn[name] += 1
        taken.add(new)
        made.append(new)
    return made
