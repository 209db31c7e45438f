"""Files that verbs write: refused before any work, told with their option."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from normscope.cli.output_files import checked_apart, checked_file, checked_folder, writing


def test_folders_are_checked_and_not_made(tmp_path: Path) -> None:
    """A place that can be made is returned as it is."""
    assert checked_folder(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert not (tmp_path / "a").exists()


def test_folders_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that cannot be written to is refused before any work."""

    def refused(**options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refused)
    with pytest.raises(typer.BadParameter, match="not writable"):
        checked_folder(tmp_path)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_folders_where_nobody_can_write() -> None:
    """In /proc even root, who has every permission, makes no files: that is said before any work, too."""
    with pytest.raises(typer.BadParameter, match="Folder is not writable: /proc"):
        checked_file(Path("/proc/x/result.json"), "--report")


def test_what_cannot_be_written_is_said_with_its_option(tmp_path: Path) -> None:
    """A full disk at the end of long work is a message, not a traceback."""
    target = tmp_path / "result.json"
    with pytest.raises(typer.BadParameter, match=r"Cannot write .*: No space left") as caught, writing(target, "--out"):
        raise OSError(28, "No space left on device")
    assert caught.value.param_hint == "--out"


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
