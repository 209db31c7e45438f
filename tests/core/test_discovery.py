"""Modules that register themselves by lying in a folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from normscope.core.discovery import modules_in


def test_every_module_of_a_package_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "a_folder_of_rules"
    (package / "inner").mkdir(parents=True)
    for name in ("__init__", "second", "first", "inner/__init__"):
        (package / f"{name}.py").write_text(f"NAME = {name!r}\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert [module.NAME for module in modules_in(package.name)] == ["first", "second"]
    finally:
        for name in [name for name in sys.modules if name.startswith(package.name)]:
            del sys.modules[name]
