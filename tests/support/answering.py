"""A server that gives one answer to all, as other things than an object store do."""

import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from support.tls import Tls

Answer = Callable[[BaseHTTPRequestHandler], tuple[int, str]]
"""Of a request: status and body."""


@contextlib.contextmanager
def answering(answer: Answer, tls: Tls | None = None) -> Iterator[int]:
    """Its port on loopback."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # a connection stays open

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            status, text = answer(self)
            body = text.encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.send_header("ETag", '"x"')
            self.send_header("Last-Modified", "Thu, 26 Nov 2026 11:00:00 GMT")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer  # noqa: N815 - http.server's names

        def log_message(self, *_: object) -> None:
            """Silent."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """A client that goes away is none of this server's."""

    with Server(("127.0.0.1", 0), Handler) as server:
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.certificate, tls.key)
            # The handshake is then the handler's: it would keep others from being accepted.
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
