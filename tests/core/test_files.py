"""Files are written whole or not at all."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from normscope.core.files import Stored, replacing, write_text


def test_the_target_appears_at_the_end_of_the_block(tmp_path: Path) -> None:
    """Until then the old content stays; afterwards nothing else is left."""
    target = write_text(tmp_path / "deep" / "a.txt", "old")
    with replacing(target) as temporary:
        temporary.write_text("new", encoding="utf-8")
        assert target.read_text(encoding="utf-8") == "old"
    assert target.read_text(encoding="utf-8") == "new"
    assert os.listdir(target.parent) == ["a.txt"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_where_the_block_fails_nothing_changes(tmp_path: Path, error: type[BaseException]) -> None:
    """Also where it is stopped: the old file stays, and nothing beside it."""
    target = write_text(tmp_path / "a.txt", "old")

    def stopped_half_way() -> None:
        with replacing(target) as temporary:
            temporary.write_text("half", encoding="utf-8")
            raise error

    with pytest.raises(error):
        stopped_half_way()
    assert target.read_text(encoding="utf-8") == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_text_is_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    """A result written on one machine is read on any other."""
    command = f"from normscope.core.files import write_text; write_text({str(tmp_path / 'a.txt')!r}, '\\u03c3')"
    environment = {**os.environ, "LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", command], env=environment, check=True)
    assert (tmp_path / "a.txt").read_bytes() == "\u03c3".encode()


def test_a_place_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    """A file in the way of a folder."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(FileExistsError):
        write_text(tmp_path / "file" / "a.txt", "text")


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o600), (0o022, 0o644), (0o002, 0o664)])
def test_a_new_file_has_the_rights_the_user_wants(tmp_path: Path, mask: int, mode: int) -> None:
    """Those of any new file; one that was there keeps its own, be they narrower or wider."""
    before = os.umask(mask)
    try:
        new = write_text(tmp_path / "new.txt", "text")
        for kept in (0o600, 0o640, 0o666):
            new.chmod(kept)
            assert stat.S_IMODE(write_text(new, "again").stat().st_mode) == kept
        with replacing(tmp_path / "other.bin") as temporary:
            temporary.unlink()  # as safetensors does
            temporary.touch(0o600)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "other.bin").stat().st_mode) == mode


def test_a_link_is_written_through(tmp_path: Path) -> None:
    """It stays a link, also where what it leads to is in another folder or is not there yet."""
    (tmp_path / "far").mkdir()
    for name in ("old.txt", "new.txt"):
        (tmp_path / name).symlink_to(Path("far") / name)
    (tmp_path / "far" / "old.txt").write_text("old", encoding="utf-8")
    for name in ("old.txt", "new.txt"):
        assert write_text(tmp_path / name, "text") == tmp_path / name
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "far" / name).read_text(encoding="utf-8") == "text"
    assert sorted(os.listdir(tmp_path)) == ["far", "new.txt", "old.txt"]
    assert sorted(os.listdir(tmp_path / "far")) == ["new.txt", "old.txt"]


@pytest.mark.parametrize("linked", [False, True])
def test_what_is_no_regular_file_is_never_replaced(tmp_path: Path, linked: bool) -> None:
    """A pipe stays a pipe, a folder a folder, and the block is not even begun."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name, error in (("pipe", FileExistsError), ("folder", IsADirectoryError)):
        target = tmp_path / name
        if linked:
            target = tmp_path / f"to_{name}"
            target.symlink_to(name)
        before = sorted(os.listdir(tmp_path))
        with pytest.raises(error), replacing(target):
            pytest.fail("there is nothing to write to")
        assert sorted(os.listdir(tmp_path)) == before
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_long_names_can_be_written(tmp_path: Path) -> None:
    """The file beside the target has a name of its own length."""
    for name in ("a" * 255, "\u03c3" * 127):
        assert write_text(tmp_path / name, "text").read_text(encoding="utf-8") == "text"


def test_bytes_that_are_no_text_are_written_as_escapes(tmp_path: Path) -> None:
    """As names of files may hold them; JSON reads them back."""
    text = write_text(tmp_path / "a.json", '"m\udcff"').read_text(encoding="utf-8")
    assert json.loads(text) == "m\udcff"


@dataclass
class _One(Stored):
    """A result of one number."""

    _kind = "one"
    one: int


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    """Files of other kinds, and those that are no JSON, are refused with the kind or the file named."""
    file = _One(1).save(tmp_path / "one.json")
    assert _One.load(file) == _One(1)
    for text, words in (('{"kind": "two"}', "kind 'one', got 'two'"), ("[]", "got None"), ("{", "one.json is not a")):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=words):
            _One.load(file)
