"""A local web server for a built site. The site also works without one, opened as a file."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from bilevelbench.errors import InvalidInput


def server(site: Path, port: int = 8000) -> ThreadingHTTPServer:
    """A server on this machine alone; port 0 takes a free one. `serve_forever()` starts it."""
    if not (site / "index.html").is_file():
        raise InvalidInput(
            f"{str(site)!r} holds no site (there is no index.html); build one: "
            f"bilevelbench leaderboard build results -o {site}"
        )
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), partial(_Quiet, directory=str(site)))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidInput(f"cannot listen on port {port}: {reason}; choose another with --port") from None


class _Quiet(SimpleHTTPRequestHandler):
    """Without a line for each request, and without a cache that would show yesterday's board."""

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass
