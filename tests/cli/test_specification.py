"""Texts of the command line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from normscope.cli.specification import (
    checked_apart,
    checked_file,
    checked_folder,
    split_arguments,
    split_commas,
    writing,
)
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
        ("run[1]/net.py:build[width=5]", "run[1]/net.py:build", {"width": 5}),
        ("run[a=1]/net.py:f[x=[1, 2], y='a]b[c']", "run[a=1]/net.py:f", {"x": [1, 2], "y": "a]b[c"}),
        ("[1]/net.py:f[]", "[1]/net.py:f", {}),
    ],
)
def test_arguments(text: str, spec: str, arguments: dict[str, object]) -> None:
    """Literals and bare words are read."""
    assert split_arguments(text) == (spec, arguments)


@pytest.mark.parametrize(
    "inside",
    ["3", "x=", "x=f(1)", "x=__import__('os')", "**{}", "x=1)(", "a.b=1", "x={[1]: 2}", "x=1,x=2", "x=" + "(" * 999],
)
def test_what_is_no_argument(inside: str) -> None:
    """Anything else is refused, and never evaluated."""
    with pytest.raises(ModelNotFoundError, match="name=value"):
        split_arguments(f"zoo:cnn[{inside}]")


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
    with pytest.raises(typer.BadParameter, match=r"Cannot write .*: No space left") as caught, writing(target, "--out"):
        raise OSError(28, "No space left on device")
    assert caught.value.param_hint == "--out"


def test_lists_with_commas() -> None:
    """Blanks and empty parts do not count."""
    assert split_commas(" NS101 ,,NS102,") == ["NS101", "NS102"]
    assert split_commas(None) == split_commas("") == []


@pytest.mark.parametrize("check", [checked_folder, checked_file])
def test_places_that_cannot_be_are_said_with_their_option(check: Callable[..., Path], tmp_path: Path) -> None:
    """A file is no folder, whatever is named below it."""
    (tmp_path / "file").touch()
    with pytest.raises(typer.BadParameter, match="is a file") as caught:
        check(tmp_path / "file" / "below", "--there")
    assert caught.value.param_hint == "--there"
    assert sorted(os.listdir(tmp_path)) == ["file"]


def test_files_that_are_none_are_refused_before_any_work(tmp_path: Path) -> None:
    """A folder, a pipe and links to them; a file and a link to it may be replaced, whatever is not there made."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    for name in ("pipe", "folder", "file", "nothing"):
        (tmp_path / f"to_{name}").symlink_to(name)
    for name, said in (("pipe", "a device, a pipe or a socket"), ("folder", "a folder")):
        for place in (tmp_path / name, tmp_path / f"to_{name}"):
            with pytest.raises(typer.BadParameter, match=f"Expected a file, but .* is {said}"):
                checked_file(place)
    for name in ("file", "to_file", "to_nothing", "new", "deep/new"):
        assert checked_file(tmp_path / name) == tmp_path / name
    assert not (tmp_path / "nothing").exists()


def test_two_results_need_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However they are written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("a")
    for one, other in (("a", "a"), ("a", "x/../a"), ("link", "a"), (tmp_path / "a", "a")):
        with pytest.raises(typer.BadParameter, match="Two results would be written to the same file") as caught:
            checked_apart(Path(one), Path(other), "--report")
        assert caught.value.param_hint == "--report"
    checked_apart(Path("a"), Path("b"), "--report")
    checked_apart(None, Path("b"), "--report")
