"""Where data are looked for, and what is said if they are not there."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from normscope.core.errors import InputError
from normscope.zoo.data.locate import checked_split, first_files, roots


def test_a_given_root_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the variable comes before the usual places."""
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("NORMSCOPE_DATA", raising=False)
    assert roots("here") == [Path("here")]
    assert roots("~/here") == [Path("/home/someone/here")]
    assert roots(None) == [Path("data"), Path("/home/someone/.cache/normscope")]
    monkeypatch.setenv("NORMSCOPE_DATA", "/sets")
    assert roots(None)[0] == Path("/sets")


def test_the_first_complete_folder_is_taken(tmp_path: Path) -> None:
    """A folder with some of the files is passed over, and named if there is none."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "one").touch()
    folders = [tmp_path / "none", tmp_path / "a", tmp_path / "b"]
    with pytest.raises(InputError) as caught:
        first_files("set", folders, [["one", "two"]], "get it")
    assert f"Looked in {folders[0]}, {folders[1]}, {folders[2]}. Incomplete: {folders[1]} lacks two; " in str(
        caught.value
    )
    assert "get it, then pass its folder (--data-root, root=) or set NORMSCOPE_DATA" in str(caught.value)
    (tmp_path / "b" / "two").touch()
    assert first_files("set", folders, [["one", "two"]], "get it") == [tmp_path / "b" / name for name in ("one", "two")]
    assert first_files("set", folders, [["three"], ["one"]], "get it") == [tmp_path / "a" / "one"]


def test_folders_that_may_not_be_entered_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And named if the files are nowhere else."""
    (tmp_path / "one").touch()
    locked = tmp_path / "locked"
    plain = os.stat

    def stat(path: object, *args: object, **kwargs: object) -> os.stat_result:
        if str(path).startswith(str(locked)):
            raise PermissionError(13, "Permission denied")
        return plain(path, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", stat)
    assert first_files("set", [locked, tmp_path], [["one"]], "get it") == [tmp_path / "one"]
    with pytest.raises(InputError, match=rf"Looked in {locked}. Incomplete: {locked} cannot be read. get it"):
        first_files("set", [locked], [["one"]], "get it")


def test_a_user_without_a_home_has_the_other_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in a home that is not there is told."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("NORMSCOPE_DATA", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {}[uid])
    assert roots(None) == [Path("data")]
    with pytest.raises(InputError, match="No home folder"):
        roots("~/sets")


def test_splits_are_known() -> None:
    """The message lists them."""
    assert checked_split("train", ("train", "test")) == "train"
    with pytest.raises(InputError, match="train, test, got 'valid'"):
        checked_split("valid", ("train", "test"))
