"""Names and tokens."""

from __future__ import annotations

import socket

import pytest

from normscope.monitor.live.access import host_allowed, new_token, token_fits


@pytest.mark.parametrize(
    "header", ["localhost", "LOCALHOST:1", "127.0.0.1:8080", "127.0.0.5", "[::1]:8080", "[::1]", " 127.0.0.1 "]
)
def test_names_of_this_machine(header: str) -> None:
    """With any port, for tunnels change it."""
    assert host_allowed([header], "127.0.0.1")


@pytest.mark.parametrize(
    "headers",
    [
        [], [""], ["evil.example"], ["127.0.0.1.evil.example"], ["localhost.evil.example:80"], ["192.168.0.7"],
        ["localhost", "localhost"], ["localhost:80:80"], ["[::1"], ["2130706433"], ["evil.example:127.0.0.1"],
    ],
)  # fmt: skip
def test_other_names(headers: list[str]) -> None:
    """A name that can be made to point here is not ours; neither are two of them."""
    assert not host_allowed(headers, "127.0.0.1")


def test_a_server_open_to_others_takes_addresses_and_its_own_name() -> None:
    """Names of others stay refused: only they can be pointed here."""
    for header in ("192.168.0.7:8000", "10.0.0.1", "[fe80::1]:80", socket.gethostname(), "localhost"):
        assert host_allowed([header], "0.0.0.0")
    assert host_allowed(["box.lan:8000"], "box.lan")
    assert not host_allowed(["evil.example"], "0.0.0.0")


def test_tokens() -> None:
    """Two are never alike; one fits only whole and only once, in whatever bytes it comes."""
    token = new_token()
    assert len(token) >= 43
    assert token != new_token()
    assert token_fits(f"a=b&token={token}", token)
    many = "&".join(f"a{i}=1" for i in range(100))
    for query in ("", "token=", f"token={token[:-1]}", f"token={token}x", f"token={token}&token={token}", token,
                  f"Token={token}", "token=%ff%00é", f"{many}&token={token}"):  # fmt: skip
        assert not token_fits(query, token)
