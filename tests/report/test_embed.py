"""Results inside a page: nothing leaves its place, everything comes back bit for bit."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.core.errors import InputError
from normscope.report.embed import COMPRESS, ELEMENT, FORMAT, VERSION, digest, packed, read_back, script_json, unpacked

JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def _page(data: Any) -> str:
    text, encoding = packed(data)
    return f'<!doctype html><p>x</p><script id="{ELEMENT}" data-encoding="{encoding}">{text}</script><script>1</script>'


@given(JSON)
def test_json_comes_back_and_cannot_end_its_element(data: Any) -> None:
    """Whatever is in it, there is no angle bracket, and it reads the same."""
    text = script_json(data)
    assert not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text) == data


@given(st.text(alphabet="</scriptSCRIPT!-> x"), JSON)
def test_a_page_gives_back_its_results(name: str, data: Any) -> None:
    """Names that look like markup included."""
    page = _page({"format": FORMAT, "version": VERSION, "results": [{"name": name, "result": {"data": data}}]})
    assert read_back(page) == {name: {"data": data}}


def test_large_results_are_packed() -> None:
    """Smaller by much, and the same when unpacked."""
    data = {"x": ["all inputs"] * COMPRESS}
    text, encoding = packed(data)
    assert encoding == "gzip+base64"
    assert len(text) < COMPRESS / 10
    assert unpacked(text, encoding) == data
    assert packed(data) == (text, encoding)


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("", "No results found in this file"),
        ("<script>1</script>", "No results found in this file"),
        (f'<script id="{ELEMENT}">{{', "damaged"),
        (f'<script id="{ELEMENT}">[]</script>', "damaged"),
        (f'<script id="{ELEMENT}">{{"format":"x"}}</script>', "damaged"),
        (f'<script id="{ELEMENT}" data-encoding="gzip+base64">QUJD</script>', "damaged"),
        (f'<script id="{ELEMENT}" data-encoding="zip">QUJD</script>', "got 'zip'"),
        (_page({"format": FORMAT, "version": 99, "results": []}), "got 99"),
        (_page({"format": FORMAT, "version": VERSION, "results": [{"name": "a"}]}), "damaged"),
    ],
)
def test_what_is_no_report_is_refused(page: str, said: str) -> None:
    """With a sentence, not with an error of a parser."""
    with pytest.raises(InputError, match=said):
        read_back(page)


def test_the_digest_is_that_of_the_policy() -> None:
    """As a browser computes it."""
    expected = base64.b64encode(hashlib.sha256(b"alert(1)").digest()).decode()
    assert digest("alert(1)") == f"'sha256-{expected}'"


def test_names_that_are_no_text_are_packed_too() -> None:
    """A file name may hold bytes of any kind; Python reads them as lone surrogates."""
    data = {"name": "m\udcff.pt", "rest": ["x" * 100] * (COMPRESS // 100 + 1)}
    text, encoding = packed(data)
    assert encoding
    assert unpacked(text, encoding) == data
