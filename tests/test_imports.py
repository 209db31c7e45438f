"""The shape of the code: who may import whom, and what stays out of the way until it is needed."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import normscope

ROOT = Path(normscope.__file__).parent
#: A folder imports only from those before it, and from itself.
ORDER = (
    "core",
    "graph",
    "operators",
    "linalg",
    "lipschitz",
    "geometry",
    "curvature",
    "generalization",
    "weight_normalization",
    "analysis",
    "doctor",
    "monitor",
    "papers",
    "report",
    "cli",
)
LAST = ORDER[ORDER.index("analysis") :]
#: Folders outside that line, and what they may import.
ALLOWED = {
    "zoo": {"core", "graph"},
    "testing": {"core", "graph", "operators", "linalg", "lipschitz", "analysis"},
}
FILES = sorted(ROOT.rglob("*.py"))
LONGEST = 500
#: Modules without a test file of their own, and why.
UNMIRRORED = {
    "__main__.py": "it calls the command line, which is tested as a whole",
}
#: Lines a function may have, its docstring and its signature not counted.
LONGEST_FUNCTION = 60


@functools.cache
def _tree(file: Path) -> ast.Module:
    """Return a file as a tree."""
    return ast.parse(file.read_text())


def _name(file: Path) -> str:
    """Return the dotted name of a module of the package."""
    parts = ("normscope", *file.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def _folder(name: str) -> str:
    """Return the folder of a module; modules at the top are in none."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and (ROOT / parts[1]).is_dir() else ""


def _statements(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield statements and those inside them, not their expressions."""
    for node in body:
        yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            inside = getattr(node, field, ())
            if isinstance(inside, list):
                yield from _statements(inside)


@functools.cache
def _imports(file: Path, *, late: bool = True) -> list[tuple[str, tuple[str, ...]]]:
    """Return what a file imports: modules and the names taken from them; with ``late`` also inside functions.

    Imports that only type checkers see are left out.
    """
    left_out: set[int] = set()
    imports: list[ast.Import | ast.ImportFrom] = []
    for node in _statements(_tree(file).body):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.append(node)
        elif (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)) or (
            not late and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    found: list[tuple[str, tuple[str, ...]]] = []
    for node in imports:
        if node.lineno in left_out:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, ()) for alias in node.names]
        else:
            assert node.level == 0, f"{file} imports relatively in line {node.lineno}"
            found.append((node.module or "", tuple(alias.name for alias in node.names)))
    return found


#: Every module of the package.
MODULES = {_name(file) for file in FILES}


def _targets(file: Path, *, late: bool = True) -> set[str]:
    """Return the modules of this package that a file imports."""
    found: set[str] = set()
    for module, names in _imports(file, late=late):
        if module.split(".")[0] == "normscope":
            found |= {f"{module}.{name}" for name in names if f"{module}.{name}" in MODULES} or {module}
    return found


def test_a_folder_imports_only_from_those_before_it() -> None:
    """Data flows one way."""
    for file in FILES:
        here = _folder(_name(file))
        if not here:
            continue  # the modules at the top tie the folders together
        allowed = ALLOWED.get(here)
        if allowed is None:
            allowed = set(ORDER[: ORDER.index(here)])
            if here in LAST:
                allowed |= {"zoo", ""}  # and the package itself: its version and what it offers
        for target in _targets(file):
            assert _folder(target) in allowed | {here}, f"{_name(file)} imports {target}"


def test_there_are_no_cycles() -> None:
    """Not even between modules of one folder."""
    graph = {_name(file): _targets(file, late=False) - {_name(file)} for file in FILES}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in done:
            for target in sorted(graph.get(name, ())):
                visit(target, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_each_file_is_short_and_names_what_it_imports() -> None:
    """No star imports, no file that nobody can hold in mind."""
    for file in FILES:
        lines = file.read_text().count("\n")
        assert lines <= LONGEST, f"{file} has {lines} lines"
        for module, names in _imports(file, late=True):
            assert "*" not in names, f"{file} imports everything from {module}"


def test_functions_are_short_enough_to_read() -> None:
    """A function does one thing."""
    for file in FILES:
        for node in ast.walk(_tree(file)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) is not None else node.body
                lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
                assert lines <= LONGEST_FUNCTION, f"{file}: {node.name} has {lines} lines"


def test_tracing_stays_in_the_graph_folder() -> None:
    """After capture nothing knows how a graph was captured."""
    for file in FILES:
        if _folder(_name(file)) == "graph":
            continue
        for module, names in _imports(file, late=True):
            full = {module, *(f"{module}.{name}" for name in names)}
            used = {
                name for name in full if name.startswith(("torch.fx", "torch.export", "torch._export", "torch._dynamo"))
            }
            assert not used, f"{_name(file)} imports {used}"
        for node in ast.walk(_tree(file)):
            if isinstance(node, ast.Attribute) and node.attr in ("fx", "export"):
                assert ast.unparse(node.value) != "torch", f"{_name(file)} uses torch.{node.attr}"


def test_every_file_says_what_it_is() -> None:
    """One sentence at the top."""
    for file in FILES:
        assert ast.get_docstring(_tree(file)), f"{file} has no description"


def test_every_module_has_its_test_file() -> None:
    """At the same place, so that one knows where to look, and sees what has no test."""
    modules = {file.relative_to(ROOT) for file in FILES if file.name != "__init__.py"}
    tests = Path(__file__).parent
    missing = {m.as_posix() for m in modules if not (tests / m.parent / f"test_{m.name}").is_file()}
    assert missing == set(UNMIRRORED)


def _loaded_by(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after running some code."""
    program = f"{code}\nimport sys\nprint('loaded:', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.rpartition("loaded:")[2].split()}


def test_importing_the_package_is_cheap() -> None:
    """It loads neither torch nor anything else that takes long."""
    loaded = _loaded_by("import normscope")
    assert "normscope" in loaded
    assert not loaded & {"torch", "numpy", "scipy", "transformers", "rich", "typer"}


def test_asking_for_help_does_not_load_torch() -> None:
    """The command line answers at once."""
    loaded = _loaded_by(
        "import contextlib, sys\n"
        "sys.argv = ['normscope', '--help']\n"
        "from normscope.cli.main import main\n"
        "with contextlib.suppress(SystemExit):\n"
        "    main()\n"
    )
    assert "normscope" in loaded
    assert not loaded & {"torch", "numpy", "scipy", "transformers"}


def test_contributing_lists_every_folder() -> None:
    """The layout in CONTRIBUTING.md has every folder, in the order of the imports."""
    text = (ROOT.parents[1] / "CONTRIBUTING.md").read_text()
    listed = [line.split("/")[0].strip() for line in text.splitlines() if re.match(r"  [a-z_]+/ ", line)]
    assert listed[: len(ORDER)] == list(ORDER)
    assert set(listed) == {p.name for p in ROOT.iterdir() if (p / "__init__.py").exists()}
