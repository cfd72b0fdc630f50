"""Ray's dashboard on 127.0.0.1 for one browser, with the token of the run's Ray.

Ray's dashboard takes its token from a header or from a cookie. The cookie would be sent to whatever
else listens on 127.0.0.1, and a person would have to paste the token. So this process keeps the
token, and adds the header to the requests of the browser that it admits (`local_server`).

It passes GET and HEAD alone, as Ray does for browsers: no job can be submitted through it.
"""

import contextlib
import http.client
from http import HTTPStatus

from .local_server import LocalHandler, LocalServer

_TIMEOUT_S = 300
"""How long the head may say nothing: it streams logs."""
_OWN_REQUEST_HEADERS = {"authorization", "connection", "cookie", "host", "x-ray-authorization"}
_OWN_ANSWER_HEADERS = {"connection", "date", "keep-alive", "server", "set-cookie"}
_OWN_ANSWER_HEADERS |= {"transfer-encoding"}


class Proxy(LocalServer):
    """Listens on 127.0.0.1 and forwards to a port of 127.0.0.1."""

    command = "trainingrun dashboard"

    def __init__(self, port: int, upstream: int, token: str | None) -> None:
        """Begin to listen; `serving` answers.

        Args:
            port: Where to listen; 0: any free port.
            upstream: Port of 127.0.0.1 at which the dashboard answers.
            token: Ray's token; None: it needs none.

        Raises:
            CliError: The port is taken.
        """
        super().__init__(port, _Handler)
        self.upstream, self.token = upstream, token


class _Handler(LocalHandler):
    server: Proxy

    def admitted(self) -> None:
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in _OWN_REQUEST_HEADERS
        }
        if self.server.token is not None:
            headers["Authorization"] = f"Bearer {self.server.token}"
        head = http.client.HTTPConnection("127.0.0.1", self.server.upstream, timeout=_TIMEOUT_S)
        with contextlib.closing(head):
            try:
                head.request(self.command, self.path, headers=headers)
                answer = head.getresponse()
            except (OSError, http.client.HTTPException, UnicodeError):
                self.answer(HTTPStatus.BAD_GATEWAY, "The run's head does not answer.\n")
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
