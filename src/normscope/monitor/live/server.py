"""The server of the live page: three read-only routes, which serve nothing from disk but the runs."""

import contextlib
import hmac
import ipaddress
import json
import math
import secrets
import socket
import threading
import webbrowser
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from normscope.core.errors import InputError
from normscope.core.files import user_path
from normscope.core.lazy import late
from normscope.monitor.live.feed import LiveFeed, run_folders

#: Seconds between heartbeats of a stream, and milliseconds until a browser reconnects.
HEARTBEAT, RETRY = 5.0, 1500
#: Most simultaneous connections, and seconds within which a new one must send a request.
CONNECTIONS, IDLE = 64, 10
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class WatchServer(ThreadingHTTPServer):
    """Serves a feed, which it owns, on a host and port; port 0 means any free one.

    Raises:
        InputError: if it cannot listen there.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = CONNECTIONS  # with the default of five, a page that makes more requests waits for seconds

    def __init__(self, feed: LiveFeed, host: str = "127.0.0.1", port: int = 0) -> None:
        self.feed, self.host, self.token = feed, host, secrets.token_urlsafe(32)
        self.connections = threading.BoundedSemaphore(CONNECTIONS)
        self._thread: threading.Thread | None = None
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(f"Cannot listen on {host}:{port}: {reason}. Choose another --port or --host.") from error

    def server_bind(self) -> None:
        """Bind without looking up this machine's name, which can take long."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.host, int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a new thread, or hang up if there are too many."""
        if not self.connections.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.connections.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and release the connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore broken connections."""

    @property
    def url(self) -> str:
        """Return the URL of the page, including its token."""
        name = self.host if self.host not in ("0.0.0.0", "::") else socket.gethostname()
        return f"http://{f'[{name}]' if ':' in name else name}:{self.server_port}/?token={self.token}"

    @property
    def is_private(self) -> bool:
        """Return whether only this machine can reach it."""
        return is_loopback(self.host)

    def start(self) -> None:
        """Read the runs and answer requests in the background."""
        self.feed.start()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all streams and free the port."""
        self.feed.close()
        if self._thread is not None:
            self.shutdown()
            self._thread.join()
        self.server_close()


def watch(
    *runs: str | Path, host: str = "127.0.0.1", port: int = 0, wait: bool = False, open_browser: bool = False
) -> WatchServer:
    """Serve the live page of some runs in the background; ``close()`` stops it.

    Args:
        *runs: folders that monitors write to, or folders of such folders.
        host: the address to listen on.
        port: the port; 0 for any free one.
        wait: accept runs that have not started.
        open_browser: open the page in a browser.

    Returns:
        The server; ``server.url`` is the URL of the page.

    Raises:
        InputError: if a folder has no run and ``wait`` is not set, or the port is taken.
    """
    feed = LiveFeed(run_folders([user_path(run) for run in runs], wait=wait))
    feed.poll()
    server = WatchServer(feed, host, port)
    server.start()
    if open_browser:
        webbrowser.open(server.url)
    return server


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: WatchServer
    protocol_version = "HTTP/1.1"
    timeout = IDLE

    def version_string(self) -> str:
        """Return the name of the server."""
        return "normscope"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: URLs contain the token."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an error as one line of text, and close the connection."""
        status = HTTPStatus(code)
        self.close_connection = True
        body = f"{status.value} {status.phrase}\n".encode()
        with contextlib.suppress(OSError):
            self._answer(body, "text/plain; charset=utf-8", status, {"Connection": "close"})

    def do_HEAD(self) -> None:
        """Answer without a body."""
        self.do_GET()

    def do_GET(self) -> None:
        """Answer, if the request has a valid host and the token."""
        try:
            target = urlsplit(self.path)
        except ValueError:
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        if not host_allowed(self.headers.get_all("Host", []), self.server.host) or not token_fits(
            target.query, self.server.token
        ):
            self.send_error(HTTPStatus.FORBIDDEN)
            return
        if self.headers.get("Transfer-Encoding") or self.headers.get("Content-Length", "0") != "0":
            self.send_error(HTTPStatus.BAD_REQUEST)  # a body would be read as the next request
            return
        query = dict(parse_qsl(target.query, max_num_fields=20))
        if target.path == "/":
            self._page()
        elif target.path == "/series":
            self._series(query)
        elif target.path == "/events":
            self._events(query)
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _head(self, status: HTTPStatus, kind: str, more: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": kind} | _HEADERS | more).items():
            self.send_header(name, value)
        self.end_headers()

    def _answer(
        self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK, more: dict[str, str] | None = None
    ) -> None:
        policy = {"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'"}
        self._head(status, kind, policy | {"Content-Length": str(len(body))} | (more or {}))
        if self.command != "HEAD":
            self.wfile.write(body)

    def _page(self) -> None:
        policy = f"{late('normscope.report.live', 'policy_of')(live=True)}; frame-ancestors 'none'"
        page = late("normscope.report.live", "render_live")(self.server.feed.state())
        self._answer(page.encode(), "text/html; charset=utf-8", more={"Content-Security-Policy": policy})

    def _series(self, query: dict[str, str]) -> None:
        try:
            low, high = float(query.get("from", "-inf")), float(query.get("to", "inf"))
        except ValueError:
            low = high = math.nan
        if math.isnan(low) or math.isnan(high):
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        found = self.server.feed.series(query.get("name", ""), low, high)
        if found is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        body = json.dumps(found, separators=(",", ":"), allow_nan=False).encode()
        self._answer(body, "application/json")

    def _events(self, query: dict[str, str]) -> None:
        """Send events as long as the browser is connected."""
        self.close_connection = True
        self._head(HTTPStatus.OK, "text/event-stream", {"Connection": "close"})
        if self.command != "HEAD":
            with contextlib.suppress(OSError):  # the browser went away
                self._stream(self.headers.get("Last-Event-ID") or query.get("after", ""))

    def _stream(self, position: str) -> None:
        """Send events after a position until the feed is closed."""
        feed, version, shape = self.server.feed, -1, ""
        self.wfile.write(f"retry: {RETRY}\n\n".encode())
        while not feed.closed:
            version = feed.wait(version, HEARTBEAT)
            events, position = feed.since(position)
            for name, data in events:
                self._event(name, data)
            if feed.shape() != shape:
                shape = feed.shape()
                self._event("shape", {"shape": shape})
            self._event("status", {"runs": feed.status()}, position)
            self.wfile.flush()

    def _event(self, name: str, data: dict[str, Any], position: str = "") -> None:
        """Write one event; a browser that reconnects asks for events after the last position."""
        number = f"id: {position}\n" if position else ""
        body = json.dumps(data, separators=(",", ":"), allow_nan=False)
        self.wfile.write(f"{number}event: {name}\ndata: {body}\n\n".encode())


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
    """Return whether a host name is a loopback address, which no other machine can reach.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0"), is_loopback("example.org")
    (True, False, False)
    """
    address = _address(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def host_allowed(headers: Sequence[str], bound: str) -> bool:
    """Return whether the Host header of a request is valid.

    A web site can make its own name resolve to 127.0.0.1 and then read what is served there (DNS rebinding), but its
    requests carry that name. IP addresses are accepted if the server is open to other machines.

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
    return host in (bound.lower(), socket.gethostname().lower()) or _address(host) is not None


def token_fits(query: str, token: str) -> bool:
    """Return whether a query contains the token exactly once, compared in constant time.

    >>> token_fits("token=abc&name=x", "abc"), token_fits("token=ab", "abc"), token_fits("", "abc")
    (True, False, False)
    """
    try:
        given = [value for key, value in parse_qsl(query, max_num_fields=20) if key == "token"]
    except ValueError:
        return False
    return len(given) == 1 and hmac.compare_digest(given[0].encode(errors="replace"), token.encode())
