"""``normscope watch``: a live page of training runs, and a static copy of it."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, BadParameter, Option

from normscope.cli.console import Stages, guarded
from normscope.cli.output_files import checked_file, writing
from normscope.core.files import user_path

if TYPE_CHECKING:
    from normscope.monitor.live.feed import LiveFeed
    from normscope.monitor.live.server import WatchServer


@guarded
def watch(
    runs: Annotated[
        list[Path],
        Argument(
            metavar="RUN", help="Folders that monitors write to, or folders that contain them.", show_default=False
        ),
    ],
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 0,
    host: Annotated[
        str, Option(help="Address to listen on; any address other than 127.0.0.1 can be reached from other machines.")
    ] = "127.0.0.1",
    wait: Annotated[bool, Option("--wait", help="Wait for runs that have not started.")] = False,
    open_browser: Annotated[bool, Option("--open", help="Open the page in a browser.")] = False,
    export: Annotated[
        Path | None, Option(help="Write a self-contained page to this file and exit.", show_default=False)
    ] = None,
    title: Annotated[str, Option(help="Title of an exported page.", show_default="the runs' names")] = "",
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print only the address and errors.")] = False,
) -> None:
    """Follow RUNS in a browser during training or afterwards; several runs share the same charts.

    The page is served to this machine only, under an address that cannot be guessed; nothing is written. Ctrl-C
    stops the server; training is not affected.
    """
    if wait and export is not None:
        raise BadParameter("A page of a run that has not started would be empty. Leave out --wait or --export.")
    target = None if export is None else checked_file(export, "--export")
    with Stages(quiet=quiet) as stages:
        stages("reading")
        feed = opened(runs, wait=wait)
    if target is not None:
        from normscope.monitor.live.export import export as write

        with writing(target, "--export"):
            write(feed, target, title)
        if not quiet:
            print(f"written: {target}")
        return
    from normscope.monitor.live.server import WatchServer

    serve(WatchServer(feed, host, port), open_browser=open_browser, quiet=quiet)


def opened(paths: list[Path], *, wait: bool) -> LiveFeed:
    """Return the feed of some runs, read as far as they were written.

    A run that cannot be read is left out, with a line on stderr, if it lies in a folder of several; one that was named
    is an error. With ``wait``, runs that have not begun are accepted.
    """
    from normscope.monitor.live.feed import LiveFeed, run_folders

    places = [user_path(path) for path in paths]
    feed = LiveFeed(run_folders(places, wait=wait))
    if wait:
        feed.poll()
        return feed
    for error in feed.open(asked=places):
        print(f"normscope: skipped: {error}", file=sys.stderr)
    return feed


def serve(server: WatchServer, *, open_browser: bool, quiet: bool) -> None:
    """Serve until Ctrl-C; the port is free afterwards."""
    server.start()
    try:
        if not server.is_private:
            print(
                (
                    f"normscope: {server.host} can be reached from other machines: anyone who has the address "
                    "below can read these runs, over an unencrypted connection"
                ),
                file=sys.stderr,
            )
        print(server.url, flush=True)
        if not quiet:
            print("Press Ctrl-C to stop.", file=sys.stderr, flush=True)
        if open_browser:
            import webbrowser

            webbrowser.open(server.url)
        until_stopped()
    except KeyboardInterrupt:
        if not quiet:
            print("\nstopped", file=sys.stderr)
    finally:
        server.close()


def until_stopped() -> None:
    """Wait for Ctrl-C."""
    threading.Event().wait()
