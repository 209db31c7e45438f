"""Settings: selection, pyproject.toml, baselines."""

from __future__ import annotations

from pathlib import Path

import pytest

from normscope.core.errors import InputError
from normscope.core.finding import Finding, Severity
from normscope.doctor.settings import Settings, baseline_text, read_baseline, read_settings

CODES = ("NS101", "NS102", "NS201")


def _finding(code: str = "NS101", place: str = "a.b", severity: Severity = Severity.WARNING) -> Finding:
    return Finding(code, severity, place, "m")


@pytest.mark.parametrize(
    ("select", "ignore", "run"),
    [
        ((), (), CODES),
        (("NS1",), (), ("NS101", "NS102")),
        (("NS1",), ("NS101",), ("NS102",)),
        ((), ("NS1",), ("NS201",)),
        (("NS101",), ("NS1",), ("NS101",)),
        (("NS1",), ("NS1",), ()),
    ],
)
def test_the_longer_prefix_wins(select: tuple[str, ...], ignore: tuple[str, ...], run: tuple[str, ...]) -> None:
    """And a tie is ignored."""
    settings = Settings(select, ignore).checked(CODES)
    assert tuple(c for c in CODES if settings.runs(c)) == run


def test_unknown_codes_and_severities_are_refused() -> None:
    """With what is known."""
    for settings in (Settings(select=("X1",)), Settings(ignore=("NS9",)), Settings(per_place={"*": ("",)})):
        with pytest.raises(InputError, match="NS101, NS102, NS201"):
            settings.checked(CODES)
    with pytest.raises(InputError, match="never"):
        Settings(fail_on="sometimes").checked(CODES)


def test_places_are_patterns() -> None:
    """Of module paths."""
    settings = Settings(per_place={"backbone.*": ("NS1",)})
    assert settings.hides(_finding(place="backbone.0"))
    assert not settings.hides(_finding(place="head"))
    assert not settings.hides(_finding("NS201", "backbone.0"))


@pytest.mark.parametrize(
    ("fail_on", "severity", "fails"),
    [
        ("warning", Severity.WARNING, True),
        ("warning", Severity.INFO, False),
        ("error", Severity.WARNING, False),
        ("info", Severity.INFO, True),
        ("never", Severity.ERROR, False),
    ],
)
def test_when_a_check_fails(fail_on: str, severity: Severity, fails: bool) -> None:
    """At that severity or graver."""
    assert Settings(fail_on=fail_on).fails([_finding(severity=severity)]) is fails


def test_the_nearest_table_is_read(tmp_path: Path) -> None:
    """From a folder below; a file without the table is passed over."""
    (tmp_path / "pyproject.toml").write_text(
        '[tool.normscope]\nselect = ["NS1"]\nfail-on = "error"\nbaseline = "known.json"\n'
        '[tool.normscope.per-place-ignores]\n"a.*" = ["NS102"]\n'
    )
    inner = tmp_path / "one" / "two"
    inner.mkdir(parents=True)
    (tmp_path / "one" / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    settings = read_settings(inner)
    assert (settings.select, settings.fail_on) == (("NS1",), "error")
    assert settings.baseline == tmp_path / "known.json"
    assert settings.per_place == {"a.*": ("NS102",)}


@pytest.mark.parametrize(
    "text",
    [
        "[tool.normscope]\nselct = []",
        '[tool.normscope]\nselect = "NS1"',
        "[tool.normscope]\nfail-on = 1",
        "[tool.normscope]\nper-place-ignores = []",
        "[tool.normscope",
    ],
)
def test_mistakes_in_the_table_are_told(tmp_path: Path, text: str) -> None:
    """Unknown keys, wrong types, no TOML at all."""
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(InputError):
        read_settings(tmp_path)


def test_a_baseline_knows_code_and_place(tmp_path: Path) -> None:
    """Written and read back; anything else is refused."""
    file = tmp_path / "b.json"
    file.write_text(baseline_text([_finding(), _finding(), _finding("NS201", "c")]))
    assert read_baseline(file) == {("NS101", "a.b"), ("NS201", "c")}
    for text in ("{}", "[", '{"normscope_baseline": 2, "findings": []}'):
        file.write_text(text)
        with pytest.raises(InputError, match="--write-baseline"):
            read_baseline(file)
    with pytest.raises(InputError):
        read_baseline(tmp_path / "none.json")
