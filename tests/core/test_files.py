"""Files are written whole or not at all."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from normscope.core.files import replacing, write_text


def test_the_target_appears_at_the_end_of_the_block(tmp_path: Path) -> None:
    """Until then the old content stays; afterwards nothing else is left, and others may read it."""
    target = write_text(tmp_path / "deep" / "a.txt", "old")
    with replacing(target, durable=True) as temporary:
        temporary.write_text("new", encoding="utf-8")
        assert target.read_text(encoding="utf-8") == "old"
    assert target.read_text(encoding="utf-8") == "new"
    assert os.listdir(target.parent) == ["a.txt"]
    assert stat.S_IMODE(target.stat().st_mode) == 0o644


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
    with pytest.raises(NotADirectoryError):
        write_text(tmp_path / "file" / "a.txt", "text")
