"""Small texts of the command line: a model with arguments, a shape, a place to write to."""

from __future__ import annotations

import ast
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from normscope.core.errors import ModelNotFoundError


def split_arguments(text: str) -> tuple[str, dict[str, Any]]:
    """Return a model specification and the arguments in brackets after it.

    Args:
        text: e.g. ``zoo:resnet18[norm=ln, classes=10]``; values are Python literals or bare words.

    Returns:
        The specification without brackets, and the arguments by name.

    Raises:
        ModelNotFoundError: if the brackets do not hold ``name=value`` pairs.

    >>> split_arguments("zoo:relu10[norm=ln,width=32]")
    ('zoo:relu10', {'norm': 'ln', 'width': 32})
    >>> split_arguments("net.py:build")
    ('net.py:build', {})
    """
    if not text.endswith("]") or "[" not in text:
        return text, {}
    spec, _, inside = text[:-1].partition("[")
    try:
        call = ast.parse(f"f({inside})", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError("not name=value pairs")
        arguments = {str(k.arg): _literal(k.value) for k in call.keywords if k.arg is not None}
        if len(arguments) != len(call.keywords):
            raise ValueError("unpacking")
    except (SyntaxError, ValueError):
        raise ModelNotFoundError(
            f"the arguments of a model are name=value pairs in brackets; got [{inside}]; "
            "write e.g. 'zoo:resnet18[norm=ln,classes=10]'"
        ) from None
    return spec, arguments


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal, or a bare word as text."""
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)


def parse_shape(text: str | None) -> tuple[int, ...] | None:
    """Return a shape written as ``3,224,224`` (without the batch axis).

    Raises:
        typer.BadParameter: if it is not a list of positive integers.

    >>> parse_shape("3,224,224")
    (3, 224, 224)
    """
    if text is None:
        return None
    try:
        shape = tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise typer.BadParameter(
            f"a shape is positive integers without the batch axis; got {text!r}; write e.g. 3,224,224",
            param_hint="--input",
        )
    return shape


@contextlib.contextmanager
def writing(target: Path, option: str = "--out") -> Iterator[None]:
    """Turn what keeps a file from being written, a full disk or a lost right, into a message about its option.

    Args:
        target: the file.
        option: the option that named it.

    Raises:
        typer.BadParameter: instead of an :class:`OSError`.
    """
    try:
        yield
    except OSError as error:
        raise typer.BadParameter(
            f"{target} must be writable: {error.strerror or error}; name another place", param_hint=option
        ) from error


def split_commas(text: str | None) -> list[str]:
    """Return the parts of a list written with commas; blanks and empty parts do not count.

    >>> split_commas("a, b,,c"), split_commas(None)
    (['a', 'b', 'c'], [])
    """
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def checked_folder(folder: Path, option: str = "--out") -> Path:
    """Return a folder results can be written to, before any work is done; it is not made yet.

    Args:
        folder: what the user named; it need not exist.
        option: the option that named it.

    Raises:
        typer.BadParameter: if it is a file, or cannot be made or written to.
    """
    place = folder.expanduser()
    nearest = place
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        raise typer.BadParameter(
            f"results are written to a folder; {nearest} is a file; name another place", param_hint=option
        )
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise typer.BadParameter(
            f"results are written to a folder; {nearest} is not writable; name another place", param_hint=option
        )
    return place


def checked_file(file: Path, option: str = "--out") -> Path:
    """Return a file that can be written, before any work is done; nothing is made yet.

    Args:
        file: what the user named; neither it nor its folder need exist.
        option: the option that named it.

    Raises:
        typer.BadParameter: if it is a folder, or cannot be made or written to.
    """
    place = file.expanduser()
    if place.is_dir():
        raise typer.BadParameter(f"a file is written; {place} is a folder; name a file in it", param_hint=option)
    return checked_folder(place.parent, option) / place.name
