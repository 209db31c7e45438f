"""Which rules run, what is suppressed, and when a check fails: arguments, ``[tool.normscope]`` and the baseline."""

from __future__ import annotations

import fnmatch
import json
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from normscope.core.errors import InputError, listed
from normscope.core.finding import Finding, Severity

#: Severities at which a check may fail, or never.
FAIL_ON = (*(s.value for s in Severity), "never")
TABLE = "tool.normscope"
_KEYS = ("select", "ignore", "per-place-ignores", "fail-on", "baseline")


@dataclass(frozen=True)
class Settings:
    """The settings of a check.

    >>> settings = Settings(select=("NS1",), ignore=("NS10",))
    >>> settings.runs("NS110"), settings.runs("NS101"), settings.runs("NS201")
    (True, False, False)
    """

    select: tuple[str, ...] = ()  #: prefixes of the codes that run; all if empty
    ignore: tuple[str, ...] = ()  #: prefixes of the codes that do not run; the longer of two matching prefixes wins
    #: prefixes of codes that are ignored at some places, by pattern
    per_place: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fail_on: str = "warning"  #: one of :data:`FAIL_ON`
    baseline: Path | None = None  #: file of known findings, which are suppressed
    known: frozenset[tuple[str, str]] = frozenset()  #: codes and places of these findings, once the file is read

    def runs(self, code: str) -> bool:
        """Return whether a rule runs."""
        wanted = _longest(code, self.select) if self.select else 0
        return wanted > _longest(code, self.ignore)

    def hides(self, finding: Finding) -> bool:
        """Return whether a finding is known, or ignored at its place."""
        return finding.key in self.known or any(
            fnmatch.fnmatchcase(finding.place, pattern) and _longest(finding.code, codes) >= 0
            for pattern, codes in self.per_place.items()
        )

    def fails(self, findings: Iterable[Finding]) -> bool:
        """Return whether these findings make a check fail."""
        if self.fail_on == "never":
            return False
        return any(f.severity.rank >= Severity(self.fail_on).rank for f in findings)

    def checked(self, codes: Iterable[str]) -> Settings:
        """Return the settings with the findings of the baseline, after validating them against the known codes.

        Raises:
            InputError: if a prefix matches no code, the severity is unknown, or the baseline cannot be read.
        """
        known = tuple(codes)
        given = (*self.select, *self.ignore, *(c for group in self.per_place.values() for c in group))
        for prefix in given:
            if not prefix or not any(code.startswith(prefix) for code in known):
                raise InputError(f"Unknown rule {prefix!r}. Use a code or a prefix of one: {', '.join(known)}.")
        if self.fail_on not in FAIL_ON:
            raise InputError(f"Unknown fail-on level {self.fail_on!r}. Choose from: {', '.join(FAIL_ON)}.")
        return self if self.baseline is None else replace(self, known=read_baseline(self.baseline))


def _longest(code: str, prefixes: Iterable[str]) -> int:
    """Return the length of the longest matching prefix of a code, or -1."""
    return max((len(p) for p in prefixes if code.startswith(p)), default=-1)


def read_settings(folder: str | os.PathLike[str] = ".") -> Settings:
    """Return the settings of the nearest ``pyproject.toml`` with a table ``[tool.normscope]``, or the defaults.

    Args:
        folder: where to start; its parents are searched, too.

    Raises:
        InputError: if the file is not TOML, or a key is unknown or of the wrong type.
    """
    here = Path(folder).resolve()
    for file in (place / "pyproject.toml" for place in (here, *here.parents)):
        table = _table(file) if file.is_file() else None
        if table is not None:
            return _from_table(table, file)
    return Settings()


def _table(file: Path) -> dict[str, Any] | None:
    """Return the table ``[tool.normscope]`` of a file, or ``None`` if it has none."""
    try:
        tools = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file.name} is not valid TOML: {error}.") from error
    found = tools.get("normscope")
    return found if isinstance(found, dict) else None


def _from_table(table: Mapping[str, Any], file: Path) -> Settings:
    unknown = sorted(set(table) - set(_KEYS))
    if unknown:
        raise InputError(
            f"Unknown keys in [{TABLE}] of {file.name}: {listed(unknown)}. Known keys: {', '.join(_KEYS)}."
        )
    places = table.get("per-place-ignores", {})
    if not isinstance(places, dict):
        raise InputError(f"Expected per-place-ignores in [{TABLE}] to map patterns to lists of codes, got {places!r}.")
    for key in ("fail-on", "baseline"):
        if not isinstance(table.get(key, ""), str):
            raise InputError(f"Expected {key} in [{TABLE}] to be a string, got {table[key]!r}.")
    return Settings(
        select=_codes(table, "select"),
        ignore=_codes(table, "ignore"),
        per_place={pattern: _codes(places, pattern) for pattern in places},
        fail_on=table.get("fail-on", Settings.fail_on),
        baseline=file.parent / table["baseline"] if "baseline" in table else None,
    )


def _codes(table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    found = table.get(key, [])
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise InputError(f"Expected {key} in [{TABLE}] to be a list of codes such as ['NS101'], got {found!r}.")
    return tuple(found)


def baseline_text(findings: Iterable[Finding]) -> str:
    """Return the text of a baseline with these findings, one entry per code and place."""
    entries = sorted({(f.code, place) for f in findings for place in f.everywhere})
    return json.dumps({"normscope_baseline": 1, "findings": [list(e) for e in entries]}, indent=1) + "\n"


def read_baseline(file: Path) -> frozenset[tuple[str, str]]:
    """Return the codes and places of a baseline.

    Raises:
        InputError: if the file does not exist or is not a baseline.
    """
    try:
        body = json.loads(file.read_text(encoding="utf-8"))
        if body["normscope_baseline"] != 1:
            raise ValueError("another version")
        return frozenset((str(code), str(place)) for code, place in body["findings"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"Cannot read the baseline {file} ({error}). Write it again with --write-baseline.") from error
