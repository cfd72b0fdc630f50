"""An HTTP server on 127.0.0.1 for one browser.

It answers with what its user may see, and every process of the machine reaches its port. So it
answers a browser that has opened a link of `LocalServer.link`: whoever else reaches the port,
another user of this machine or a page of another site, is refused. Nor is a name answered that
somebody has made lead to 127.0.0.1 (DNS rebinding): a request names the address that was printed.

It takes GET and HEAD alone.
"""

import contextlib
import hmac
import secrets
import sys
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .errors import CliError

_ADDRESS = "127.0.0.1"
_LINK = "/trainingrun/"
# Not a redirect: a strict cookie is not sent where another site has begun a chain of them.
_OPENED = (
    '<!doctype html><meta http-equiv="refresh" content="0; url=/"><title>Opened</title>'
    '<link rel="icon" href="data:,">'
)


class LocalServer(ThreadingHTTPServer):
    """Listens on 127.0.0.1."""

    daemon_threads = True
    command = ""
    """Which prints the links."""
    same_site = "Strict"
    """Whether a link on another site opens a page here: with Lax it does."""

    def __init__(self, port: int, handler: "type[LocalHandler]") -> None:
        """Begin to listen; `serving` answers.

        Args:
            port: Where to listen; 0: any free port.
            handler: Of the requests.

        Raises:
            CliError: The port is taken.
        """
        try:
            super().__init__((_ADDRESS, port), handler)
        except OSError as error:
            raise CliError(
                f"port {port} of this machine cannot be used ({error.strerror}); name another "
                "--port"
            ) from None
        self.host = f"{_ADDRESS}:{self.server_port}"
        # Cookies of 127.0.0.1 are the same on all its ports.
        self.cookie = f"trainingrun-{self.server_port}={secrets.token_urlsafe(32)}"
        self._keys: set[str] = set()

    def link(self) -> str:
        """A URL that one browser may open, once: it may be seen among the browser's arguments."""
        key = secrets.token_urlsafe(32)
        self._keys.add(key)
        return f"http://{self.host}{_LINK}{key}"

    def opens(self, path: str) -> bool:
        """Whether it is the path of a link that nobody has opened; it is opened then."""
        with contextlib.suppress(KeyError):
            self._keys.remove(path.removeprefix(_LINK))
            return True
        return False

    def admits(self, cookies: str) -> bool:
        """Whether a browser with these cookies has opened a link."""
        given = (cookie.strip().encode() for cookie in cookies.split(";"))
        return any(hmac.compare_digest(cookie, self.cookie.encode()) for cookie in given)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that has gone is none."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextlib.contextmanager
def serving(server: LocalServer) -> Iterator[None]:
    """Answer until the context is left."""
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


class LocalHandler(BaseHTTPRequestHandler):
    """Refuses whom the server does not admit."""

    server: LocalServer
    protocol_version = "HTTP/1.1"

    def admitted(self) -> None:
        """Answer a request of the browser."""
        raise NotImplementedError

    def do_GET(self) -> None:
        """Open a link, or answer the browser that has opened one."""
        own = f"http://{self.server.host}"
        if self.headers.get("Host") != self.server.host:
            said = f"This server is {own} and answers to no other name.\n"
            self.answer(HTTPStatus.MISDIRECTED_REQUEST, said)
        elif self.path.startswith(_LINK) and self.server.opens(self.path):
            cookie = f"{self.server.cookie}; Path=/; HttpOnly; SameSite={self.server.same_site}"
            self.answer(HTTPStatus.OK, _OPENED, "text/html", {"Set-Cookie": cookie})
        elif self.path.startswith(_LINK) or not self.server.admits(self.headers.get("Cookie", "")):
            said = f"Open the address that `{self.server.command}` prints; each one opens once.\n"
            self.answer(HTTPStatus.FORBIDDEN, said)
        else:
            self.admitted()

    def do_HEAD(self) -> None:
        """The same without content."""
        self.do_GET()

    def answer(
        self,
        status: HTTPStatus,
        text: str,
        kind: str = "text/plain",
        headers: dict[str, str] | None = None,
    ) -> None:
        """Send a whole answer."""
        body = text.encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: the address has a key."""
