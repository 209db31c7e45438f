"""Questions about places are answered whatever the text is."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from normscope.core import paths
from normscope.core.errors import InputError

_STRANGE = ["a" * 400, "a/" * 4000, "a\0b", "", "no/such/file", "\udcff" * 300]


@pytest.mark.parametrize("text", _STRANGE)
def test_a_text_that_is_no_path_names_nothing(text: str, tmp_path: Path) -> None:
    """Too long, with a NUL byte, not of this world: neither a file nor a folder, and no exception."""
    for name in (text, f"{tmp_path}/x{text}"):
        assert not paths.exists(name)
        assert not paths.is_file(name)
        assert not paths.is_folder(name)
        with pytest.raises(InputError, match="Folder not found"):
            paths.entries(name)


def test_files_folders_and_links_are_told_apart(tmp_path: Path) -> None:
    """A link counts for what it leads to, a file is no way to anything, a loop and a pipe are no files."""
    (tmp_path / "b.txt").write_text("", encoding="utf-8")
    (tmp_path / "a").mkdir()
    (tmp_path / "to_file").symlink_to("b.txt")
    (tmp_path / "to_folder").symlink_to("a")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nothing")
    os.mkfifo(tmp_path / "pipe")
    names = [path.name for path in paths.entries(tmp_path)]
    assert names == sorted(["b.txt", "a", "to_file", "to_folder", "loop", "dangling", "pipe"])
    assert [name for name in names if paths.is_file(tmp_path / name)] == ["b.txt", "to_file"]
    assert [name for name in names if paths.is_folder(tmp_path / name)] == ["a", "to_folder"]
    assert [name for name in names if not paths.exists(tmp_path / name)] == ["dangling", "loop"]
    assert not paths.exists(tmp_path / "b.txt" / "below")
    assert paths.resolved(tmp_path / "to_file") == (tmp_path / "b.txt").resolve()


@pytest.mark.parametrize("ask", [paths.exists, paths.is_file, paths.is_folder, paths.entries])
def test_a_folder_that_may_not_be_entered_is_said(
    ask: Callable[[Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rights bind no superuser, so the system's answer is given here."""

    def denied(path: Any, **_: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(paths.os, "stat", denied)
    with pytest.raises(InputError, match=r"locked.* is not: Permission denied"):
        ask(tmp_path / "locked" / "m.pt")


def test_a_folder_that_may_not_be_listed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be entered, so it is known to be a folder, but what is in it is not."""

    def denied(self: Path) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(InputError, match="Permission denied"):
        paths.entries(tmp_path)


def test_a_home_is_found_or_said_to_be_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``~`` is the home of whoever asks; ``~nobody-of-this-name`` is an error that names it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert paths.expanded("~/a") == tmp_path / "a"
    assert paths.expanded("a/~") == Path("a/~")
    with pytest.raises(InputError, match="'~no such user'"):
        paths.expanded("~no such user/net.py")
    with pytest.raises(InputError, match="home folder"):
        paths.expanded("~\0/net.py")


def test_a_deleted_working_directory_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths have no absolute form there; absolute ones do."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert paths.working_folder() is None
    with pytest.raises(InputError, match="readable"):
        paths.resolved("net.py")
    assert paths.resolved(tmp_path) == tmp_path.resolve()
