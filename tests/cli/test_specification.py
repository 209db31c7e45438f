"""Texts of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from normscope.cli.specification import checked_folder, parse_shape, split_arguments, split_commas, writing
from normscope.core.errors import ModelNotFoundError


@pytest.mark.parametrize(
    ("text", "spec", "arguments"),
    [
        ("zoo:cnn", "zoo:cnn", {}),
        ("zoo:cnn[]", "zoo:cnn", {}),
        ("zoo:cnn[norm=ln]", "zoo:cnn", {"norm": "ln"}),
        (
            "a.b:c[x=1, y=-2.5, z='w', flag=True, none=None]",
            "a.b:c",
            {"x": 1, "y": -2.5, "z": "w", "flag": True, "none": None},
        ),
        ("net.py:f[hidden=(3, 4), table={'a': 1}]", "net.py:f", {"hidden": (3, 4), "table": {"a": 1}}),
        ("hf:dir[1]/model", "hf:dir[1]/model", {}),
    ],
)
def test_arguments(text: str, spec: str, arguments: dict[str, object]) -> None:
    """Literals and bare words are read."""
    assert split_arguments(text) == (spec, arguments)


@pytest.mark.parametrize("inside", ["3", "x=", "x=f(1)", "x=__import__('os')", "**{}", "x=1)(", "a.b=1"])
def test_what_is_no_argument(inside: str) -> None:
    """Anything else is refused, and never evaluated."""
    with pytest.raises(ModelNotFoundError, match="name=value"):
        split_arguments(f"zoo:cnn[{inside}]")


def test_shapes() -> None:
    """Shapes are read with commas or crosses."""
    assert (parse_shape("16"), parse_shape("3x32x32"), parse_shape(None)) == ((16,), (3, 32, 32), None)


@pytest.mark.parametrize("text", ["", "a", "3,0", "-1", "3,,3", "2.5"])
def test_what_is_no_shape(text: str) -> None:
    """Anything but positive integers is refused."""
    with pytest.raises(typer.BadParameter, match="positive integers"):
        parse_shape(text)


def test_folders_are_checked_and_not_made(tmp_path: Path) -> None:
    """A place that can be made is returned as it is."""
    assert checked_folder(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert not (tmp_path / "a").exists()


def test_folders_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that cannot be written to is refused before any work."""
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(typer.BadParameter, match="not writable"):
        checked_folder(tmp_path)


def test_what_cannot_be_written_is_said_with_its_option(tmp_path: Path) -> None:
    """A full disk at the end of long work is a message, not a traceback."""
    target = tmp_path / "result.json"
    with pytest.raises(typer.BadParameter, match="must be writable: No space left") as caught, writing(target, "--out"):
        raise OSError(28, "No space left on device")
    assert caught.value.param_hint == "--out"


def test_lists_with_commas() -> None:
    """Blanks and empty parts do not count."""
    assert split_commas(" NS101 ,,NS102,") == ["NS101", "NS102"]
    assert split_commas(None) == split_commas("") == []
