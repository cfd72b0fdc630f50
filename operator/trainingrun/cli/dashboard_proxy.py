"""Ray's dashboard on 127.0.0.1 for one browser, with the token of the run's Ray.

Ray's dashboard takes its token from a header or from a cookie. The cookie would be sent to whatever
else listens on 127.0.0.1, and a person would have to paste the token. So this process keeps the
token, and adds the header to the requests of the browser that has opened a link of `Proxy.link`:
whoever else reaches the port, another user of this machine or a page of another site, is refused.

It passes GET and HEAD alone, as Ray does for browsers: no job can be submitted through it.
"""

import contextlib
import hmac
import http.client
import secrets
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_ADDRESS = "127.0.0.1"
_TIMEOUT_S = 300
"""How long the head may say nothing: it streams logs."""
_LINK = "/trainingrun/"
_OWN_REQUEST_HEADERS = {"authorization", "connection", "cookie", "host", "x-ray-authorization"}
_OWN_ANSWER_HEADERS = {"connection", "date", "keep-alive", "server", "set-cookie"}
_OWN_ANSWER_HEADERS |= {"transfer-encoding"}
# Not a redirect: a strict cookie is not sent where another site has begun a chain of them.
_OPENED = b'<!doctype html><meta http-equiv="refresh" content="0; url=/"><title>Ray</title>'


class Proxy(ThreadingHTTPServer):
    """Listens on 127.0.0.1 and forwards to a port of 127.0.0.1."""

    daemon_threads = True

    def __init__(self, port: int, upstream: int, token: str | None) -> None:
        """Begin to listen; `serving` answers.

        Args:
            port: Where to listen; 0: any free port.
            upstream: Port of 127.0.0.1 at which the dashboard answers.
            token: Ray's token; None: it needs none.

        Raises:
            OSError: The port is taken.
        """
        super().__init__((_ADDRESS, port), _Handler)
        self.upstream, self.token = upstream, token
        # Cookies of 127.0.0.1 are the same on all its ports.
        self.cookie = f"trainingrun-{self.server_port}={secrets.token_urlsafe(32)}"
        self._keys: set[str] = set()

    def link(self) -> str:
        """A URL that one browser may open, once: it may be seen among the browser's arguments."""
        key = secrets.token_urlsafe(32)
        self._keys.add(key)
        return f"http://{_ADDRESS}:{self.server_port}{_LINK}{key}"

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


@contextlib.contextmanager
def serving(proxy: Proxy) -> Iterator[Proxy]:
    """Answer until the context is left."""
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Proxy
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path.startswith(_LINK) and self.server.opens(self.path):
            cookie = f"{self.server.cookie}; Path=/; HttpOnly; SameSite=Strict"
            self._answer(HTTPStatus.OK, _OPENED, {"Set-Cookie": cookie})
        elif self.path.startswith(_LINK) or not self.server.admits(self.headers.get("Cookie", "")):
            said = b"Open the address that `trainingrun dashboard` prints; each one opens once.\n"
            self._answer(HTTPStatus.FORBIDDEN, said)
        else:
            self._forward()

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(
        self, status: HTTPStatus, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        kind = "text/html" if status is HTTPStatus.OK else "text/plain"
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _forward(self) -> None:
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in _OWN_REQUEST_HEADERS
        }
        if self.server.token is not None:
            headers["Authorization"] = f"Bearer {self.server.token}"
        head = http.client.HTTPConnection(_ADDRESS, self.server.upstream, timeout=_TIMEOUT_S)
        with contextlib.closing(head):
            try:
                head.request(self.command, self.path, headers=headers)
                answer = head.getresponse()
            except (OSError, http.client.HTTPException, UnicodeError):
                self._answer(HTTPStatus.BAD_GATEWAY, b"The run's head does not answer.\n")
                return
            self._pass_on(answer)

    def _pass_on(self, answer: http.client.HTTPResponse) -> None:
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _OWN_ANSWER_HEADERS:
                self.send_header(name, value)
        if answer.length is None and self.command != "HEAD":
            self.send_header("Connection", "close")  # its end is the end of the connection
        self.end_headers()
        try:
            while piece := answer.read1(65536):
                self.wfile.write(piece)
        except (OSError, http.client.HTTPException):
            self.close_connection = True  # the browser or the head has gone

    def log_message(self, *_: object) -> None:
        """Nothing: the address has a key."""
