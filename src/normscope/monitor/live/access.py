"""Who may ask: a token that cannot be guessed, and names of this machine alone."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Sequence
from urllib.parse import parse_qsl

#: Names of this machine that no one else can take.
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def new_token() -> str:
    """Return a token of 256 random bits."""
    return secrets.token_urlsafe(32)


def host_of(header: str) -> str:
    """Return the name in a Host header, without its port.

    >>> host_of("LocalHost:8000"), host_of("[::1]:8000"), host_of("evil.example")
    ('localhost', '::1', 'evil.example')
    """
    if header.startswith("["):
        name, closed, _ = header[1:].partition("]")
        return name.lower() if closed else ""
    return header.rpartition(":")[0].lower() if header.count(":") == 1 else header.lower()


def is_loopback(host: str) -> bool:
    """Tell whether a name is one of this machine that no other machine can reach.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0"), is_loopback("example.org")
    (True, False, False)
    """
    if host.lower() in LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_allowed(headers: Sequence[str], bound: str) -> bool:
    """Tell whether a request came under a name that is ours.

    A page of another site can have its own name point to 127.0.0.1 and then read what is served there; its requests
    carry that name. Addresses cannot be pointed elsewhere: they are taken where the server is open to others.

    Args:
        headers: all Host headers of the request.
        bound: the name or address the server was told to listen on.

    >>> host_allowed(["127.0.0.1:80"], "127.0.0.1"), host_allowed(["evil.example"], "127.0.0.1")
    (True, False)
    """
    if len(headers) != 1:
        return False
    host = host_of(headers[0].strip())
    if is_loopback(host):
        return True
    if is_loopback(bound):
        return False
    if host in (bound.lower(), socket.gethostname().lower()):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def token_fits(query: str, token: str) -> bool:
    """Tell whether a query holds the token, once, in a time that does not tell where it differs.

    >>> token_fits("token=abc&name=x", "abc"), token_fits("token=ab", "abc"), token_fits("", "abc")
    (True, False, False)
    """
    try:
        given = [value for key, value in parse_qsl(query, max_num_fields=20) if key == "token"]
    except ValueError:
        return False
    return len(given) == 1 and hmac.compare_digest(given[0].encode(errors="replace"), token.encode())
