"""Results embedded in a page: escaped safely, and read back bit for bit."""

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from normscope.core.errors import InputError

#: Id of the element that holds the results, and what its content is.
ELEMENT, FORMAT, VERSION = "normscope-data", "normscope report", 1
#: Characters of JSON beyond which it is compressed.
COMPRESS = 400_000
_PACKED = "gzip+base64"
#: The element: its content holds no ``<``.
_RESULTS = re.compile(rf'<script (?P<attributes>[^>]*\bid="{ELEMENT}"[^>]*)>(?P<content>[^<]*)')
#: Characters that could end a script element, or its line, early.
_ESCAPED = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def script_json(data: Any) -> str:
    """Return JSON that is safe inside a script element.

    >>> text = script_json({"name": "</script>"})
    >>> "<" in text, json.loads(text)
    (False, {'name': '</script>'})
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.translate(_ESCAPED)


def packed(content: Any) -> tuple[str, str]:
    """Return data as the text of a script element and the name of its encoding, empty for plain JSON.

    >>> packed({"a": 1}), packed("x" * 1_000_000)[1]
    (('{"a":1}', ''), 'gzip+base64')
    """
    text = script_json(content)
    if len(text) <= COMPRESS:
        return text, ""
    data = text.encode(errors="backslashreplace")  # bytes of a file name that are not text become escapes of JSON
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode(), _PACKED


def unpacked(text: str, encoding: str) -> Any:
    """Return what :func:`packed` was given."""
    if encoding == _PACKED:
        text = gzip.decompress(base64.b64decode(text.strip(), validate=True)).decode()
    elif encoding:
        raise InputError(f"Expected results as plain JSON or {_PACKED}, got {encoding!r}.")
    return json.loads(text)


def digest(text: str) -> str:
    """Return the source expression by which a content security policy allows one inline script or style.

    >>> digest("")
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
    """
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def read_back(html: str) -> dict[str, dict[str, Any]]:
    """Return the results inside a page, in their JSON form, by name.

    Raises:
        InputError: if it is no such page.
    """
    found = _RESULTS.search(html)
    if found is None:
        raise InputError(
            "No results found in this file. Pass a report.html written by normscope analyze, demo or report."
        )
    try:
        encoding = re.search(r'data-encoding="([^"]*)"', found["attributes"])
        data = unpacked(found["content"], encoding[1] if encoding else "")
        if not isinstance(data, Mapping) or data["format"] != FORMAT:
            raise ValueError("another format")
        if data["version"] != VERSION:
            raise InputError(f"Expected page version {VERSION}, got {data['version']!r}.")
        return {str(item["name"]): dict(item["result"]) for item in data["results"]}
    except (ValueError, KeyError, TypeError, OSError, EOFError) as error:
        raise InputError(
            f"The results inside the page are damaged ({type(error).__name__}). Write the report again "
            "from result.json."
        ) from error
