"""The server, asked through plain sockets: who is let in, what is served, and how a stream goes on."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from monitor.live.runs import begin, written
from normscope.core.errors import InputError
from normscope.monitor.live.feed import LiveFeed
from normscope.monitor.live.server import CONNECTIONS, WatchServer, host_allowed, token_fits


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WatchServer]:
    """Serve a run of five points, read often."""
    feed = LiveFeed([written(tmp_path / "run", {s: {"norm/a": float(s)} for s in range(5)})])
    feed.poll()
    server = WatchServer(feed)
    monkeypatch.setattr("normscope.monitor.live.feed.INTERVAL", 0.02)
    server.start()
    yield server
    server.close()


def ask(
    server: WatchServer, target: str, *, method: str = "GET", host: str | None = "127.0.0.1", more: str = ""
) -> str:
    """Send a request as it stands and return the whole answer."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as connection:
        name = "" if host is None else f"Host: {host}\r\n"
        connection.sendall(f"{method} {target} HTTP/1.1\r\n{name}Connection: close\r\n{more}\r\n".encode())
        answer = b""
        while part := connection.recv(65536):
            answer += part
    return answer.decode()


def code(answer: str) -> int:
    """Return the status of an answer."""
    return int(answer.split(" ", 2)[1])


def test_the_page(server: WatchServer) -> None:
    """Under its address; strict about what it may load, kept nowhere, never in a frame."""
    address = urlsplit(server.url)
    answer = ask(server, f"{address.path}?{address.query}")
    head, _, body = answer.partition("\r\n\r\n")
    assert code(answer) == 200
    assert "Spectral norm of each layer" in body
    assert server.token not in body
    for line in (
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Referrer-Policy: no-referrer",
        "default-src 'none'",
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "Server: normscope",
    ):
        assert line in head
    assert "Python" not in head
    assert "unsafe" not in head
    assert "Access-Control" not in head


@pytest.mark.parametrize("path", ["/", "/events", "/series?name=norm", "/favicon.ico", "/../etc/passwd"])
def test_without_the_token_nothing_is_said(server: WatchServer, path: str) -> None:
    """Missing, wrong, cut, twice or in other clothes: 403, whatever is asked for."""
    sign = "&" if "?" in path else "?"
    wrong = ["", f"{sign}token=", f"{sign}token={server.token[:-1]}", f"{sign}token={server.token}&token=x",
             f"{sign}TOKEN={server.token}", f"{sign}token=%ff%fe"]  # fmt: skip
    for query in wrong:
        answer = ask(server, path + query)
        assert code(answer) == 403
        assert answer.endswith("\r\n\r\n403 Forbidden\n")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.1.2.3", "", None])
def test_other_names_are_refused_even_with_the_token(server: WatchServer, host: str | None) -> None:
    """A site whose name points here does not get in; neither does a request that says no name."""
    assert code(ask(server, f"/?token={server.token}", host=host)) == 403


def test_two_names_are_refused(server: WatchServer) -> None:
    """No one can tell which of them counts."""
    assert code(ask(server, f"/?token={server.token}", more="Host: localhost\r\n")) == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"])
def test_it_is_read_only(server: WatchServer, method: str) -> None:
    """Anything but GET and HEAD is refused."""
    assert code(ask(server, f"/?token={server.token}", method=method)) == 501


@pytest.mark.parametrize(
    "path",
    [
        "/../../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/run/config.json", "/config.json",
        "/metrics.jsonl", "/page/watch.js", "/.", "/events/", "/series/..", "/\\..\\x",
    ],
)  # fmt: skip
def test_no_file_of_the_disk_is_served(server: WatchServer, path: str) -> None:
    """There are three addresses and no others."""
    answer = ask(server, f"{path}?token={server.token}")
    assert code(answer) == 404
    assert "root:" not in answer


def test_an_address_that_is_none(server: WatchServer) -> None:
    """It gets an answer too."""
    assert code(ask(server, f"http://[x?token={server.token}")) == 400
    assert code(ask(server, "x" * 70_000)) == 414


def test_head_has_no_body_and_a_body_is_refused(server: WatchServer) -> None:
    """A body would be taken for the next request."""
    answer = ask(server, f"/?token={server.token}", method="HEAD")
    assert code(answer) == 200
    assert answer.endswith("\r\n\r\n")
    assert int(answer.split("Content-Length: ")[1].split("\r\n")[0]) > 10_000
    assert code(ask(server, f"/?token={server.token}", more="Content-Length: 5\r\n")) == 400
    assert code(ask(server, f"/?token={server.token}", more="Transfer-Encoding: chunked\r\n")) == 400


def test_lines(server: WatchServer) -> None:
    """The lines of a chart, of all steps or of some; mistakes are told apart."""
    answer = ask(server, f"/series?token={server.token}&name=norm&from=2&to=3")
    found = json.loads(answer.partition("\r\n\r\n")[2])
    assert found["runs"][0]["x"] == [1, 2, 3, 4]
    assert code(ask(server, f"/series?token={server.token}&name=none")) == 404
    assert code(ask(server, f"/series?token={server.token}")) == 404
    for number in ("nan", "x", ""):
        assert code(ask(server, f"/series?token={server.token}&name=norm&from={number or 'e'}")) == 400


class Stream:
    """A stream of events."""

    def __init__(self, server: WatchServer, query: str = "", more: str = "") -> None:
        self.connection = socket.create_connection(("127.0.0.1", server.server_port), timeout=10)
        request = f"GET /events?token={server.token}{query} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n"
        self.connection.sendall(request.encode())
        self.file = self.connection.makefile()
        self.head = ""
        while (line := self.file.readline()) != "\n":
            self.head += line

    def next(self, wanted: str) -> tuple[str, dict]:
        """Return the position and the data of the next event of a name."""
        fields: dict[str, str] = {}
        while line := self.file.readline():
            if line == "\n":
                if fields.get("event") == wanted:
                    return fields.get("id", ""), json.loads(fields["data"])
                fields = {}
            else:
                name, _, rest = line.rstrip("\n").partition(": ")
                fields[name] = rest
        raise EOFError

    def close(self) -> None:
        """Go away."""
        self.file.close()
        self.connection.close()


def test_events_come_as_the_run_grows_and_go_on_where_they_stopped(server: WatchServer, tmp_path: Path) -> None:
    """A browser that comes back says what it has; nothing is sent twice and nothing is lost."""
    stream = Stream(server, "&after=0.5")
    assert "text/event-stream" in stream.head
    run = begin(tmp_path / "run")
    run.log({"norm/a": 7.0}, step=5)
    _, event = stream.next("points")
    assert event == {"run": 0, "generation": 0, "first": 5, "points": [[5, {"norm/a": 7.0}]]}
    position, status = stream.next("status")
    assert position == "0.6"
    assert status["runs"][0]["step"] == 5
    stream.close()
    run.log({"norm/a": 8.0}, step=6)
    run.log({"norm/a": 9.0}, step=7)
    while server.feed.position() != "0.8":
        time.sleep(0.01)
    again = Stream(server, "&after=0.5", f"Last-Event-ID: {position}\r\n")
    _, event = again.next("points")
    assert (event["first"], [p[0] for p in event["points"]]) == (6, [6, 7])
    again.close()


def test_a_resumed_run_resets_the_stream(server: WatchServer, tmp_path: Path) -> None:
    """The points sent before are no longer those of the run."""
    stream = Stream(server, "&after=0.5")
    stream.next("status")
    begin(tmp_path / "run", step=2)
    assert stream.next("reset")[1] == {"run": 0, "generation": 1, "count": 3}
    assert stream.next("shape")[1]["shape"] == server.feed.shape()
    assert stream.next("status")[0] == "1.3"
    stream.close()


def test_a_position_of_nonsense_begins_anew(server: WatchServer) -> None:
    """Whatever a client says it has."""
    stream = Stream(server, "&after=%0d%0aevil")
    assert stream.next("reset")[1]["count"] == 5
    stream.close()


def test_closing_ends_streams_and_frees_the_port(tmp_path: Path) -> None:
    """At once, and for the next one."""
    feed = LiveFeed([written(tmp_path / "run", {1: {"norm/a": 1.0}})])
    feed.poll()
    first = WatchServer(feed)
    first.start()
    stream = Stream(first, "&after=0.1")
    stream.next("status")
    begun = time.monotonic()
    first.close()
    assert time.monotonic() - begun < 5
    with pytest.raises((EOFError, ConnectionError)):
        stream.next("never")
    stream.close()
    second = WatchServer(LiveFeed([tmp_path / "run"]), port=first.server_port)
    with pytest.raises(InputError, match="already in use"):
        WatchServer(LiveFeed([tmp_path / "run"]), port=first.server_port)
    assert second.token != first.token
    second.close()


def test_where_it_listens(tmp_path: Path) -> None:
    """This machine alone unless told; an address that is not ours is a mistake."""
    feed = LiveFeed([written(tmp_path / "run", {1: {}})])
    server = WatchServer(feed)
    assert server.is_private
    assert server.socket.getsockname()[0] == "127.0.0.1"
    server.close()
    for host, port in (("203.0.113.7", 0), ("no-such-name.invalid", 0)):
        with pytest.raises(InputError, match="Choose another"):
            WatchServer(feed, host, port)
    wide = WatchServer(feed, "0.0.0.0")
    assert not wide.is_private
    assert "0.0.0.0" not in wide.url
    wide.close()


def test_idle_connections_are_few(server: WatchServer) -> None:
    """Beyond a number the server hangs up at once, and once they are gone it answers again."""
    before = threading.active_count()
    idle = [socket.create_connection(("127.0.0.1", server.server_port), timeout=10) for _ in range(CONNECTIONS + 40)]
    closed = 0
    for connection in idle[CONNECTIONS:]:
        closed += connection.recv(1) == b""
    assert closed == 40
    assert threading.active_count() - before <= CONNECTIONS + 1
    for connection in idle:
        connection.close()
    address = urlsplit(server.url)
    for _ in range(200):
        try:
            if code(ask(server, f"{address.path}?{address.query}")) == 200:
                return
        except (OSError, IndexError):
            time.sleep(0.05)
    raise AssertionError("the server does not answer again")


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


def test_tokens(server: WatchServer) -> None:
    """Two are never alike; one fits only whole and only once, in whatever bytes it comes."""
    token = server.token
    assert len(token) >= 43
    other = WatchServer(LiveFeed([]))
    assert token != other.token
    other.server_close()
    assert token_fits(f"a=b&token={token}", token)
    many = "&".join(f"a{i}=1" for i in range(100))
    for query in ("", "token=", f"token={token[:-1]}", f"token={token}x", f"token={token}&token={token}", token,
                  f"Token={token}", "token=%ff%00é", f"{many}&token={token}"):  # fmt: skip
        assert not token_fits(query, token)
