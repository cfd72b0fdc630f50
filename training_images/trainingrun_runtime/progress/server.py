"""`python -m trainingrun_runtime.progress.server`: serves the progress document to the operator.

It is a separate process in the head pod, because it outlives drivers: between two of them, and
after the last one, the operator still reads how the run ended. It serves the file that the driver
writes and creates the file that requests a suspend. It imports no Ray, so it answers while Ray is
still starting.
"""

import hmac
import json
import os
import signal
import socket
import socketserver
import sys
import types
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from trainingrun_protocol import contract

from ..state_directory import state_directory
from .prometheus_metrics import exposition

PORT_ENV = "TRAININGRUN_PROGRESS_PORT"
"""Another port than the contract's, where several runs share a machine."""
TOKENS_ENV = "TRAININGRUN_TOKEN_FOLDER"
"""Another folder of tokens than the contract's, likewise."""


class ProgressServer(ThreadingHTTPServer):
    """The server; `port` 0 takes any free one, which is then in `server_address`."""

    daemon_threads = True
    # HTTP servers allow reuse of a port in TIME_WAIT, which a restarted container needs.
    allow_reuse_address = True

    def __init__(self, port: int, state: Path, tokens: Path, labels: dict[str, str]) -> None:
        """Listen at once.

        Args:
            port: TCP port.
            state: The folder that the driver writes to.
            tokens: Folder of files with a token each, of which a caller must present one. Read at
                each request, because the operator may add one. Without any, each request is
                refused.
            labels: Put on every metric.

        Raises:
            OSError: The port is taken.
        """
        self.state = state
        self.tokens = tokens
        self.labels = labels
        self.address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        super().__init__(("", port), _Handler)

    def server_bind(self) -> None:
        """Bind for IPv4 and IPv6, without HTTPServer's own look-up of the host's full name.

        In a pod without DNS that look-up takes seconds.
        """
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        socketserver.TCPServer.server_bind(self)
        self.server_name = "progress"
        self.server_port = self.server_address[1]

    def document(self) -> bytes | None:
        """The progress document, or none before the driver wrote one."""
        try:
            return (self.state / contract.PROGRESS_FILE).read_bytes()
        except FileNotFoundError:
            return None

    def takes(self, authorization: str) -> bool:
        """Whether a caller's `Authorization` contains one of the tokens."""
        given = authorization.encode()
        known = False
        for token in _contents(self.tokens):
            # Constant time, so that a token cannot be guessed byte by byte.
            known |= hmac.compare_digest(given, b"Bearer " + token)
        return known


def _contents(folder: Path) -> list[bytes]:
    """What the files of a mounted Secret hold, without the empty ones."""
    try:
        files = [file for file in folder.iterdir() if file.is_file()]
        return [token for file in files if (token := file.read_bytes().strip())]
    except OSError:
        return []


class _Handler(BaseHTTPRequestHandler):
    server: ProgressServer
    server_version = "trainingrun"
    sys_version = ""
    timeout = 10  # seconds for a request to arrive; a silent peer must not hold a thread

    def do_GET(self) -> None:
        if self.path == "/healthz":
            self._answer(200, "ok\n")
        elif self.path == "/metrics":
            document = json.loads(self.server.document() or b"{}")
            self._answer(200, exposition(document, self.server.labels))
        elif self.path != "/progress":
            self._answer(404, "there is /progress, /suspend, /metrics and /healthz\n")
        elif self._may():
            document = self.server.document()
            if document is None:
                self._answer(503, "the driver has not started yet; ask again\n")
            else:
                self._answer(200, document, "application/json")

    def do_POST(self) -> None:
        if self.path != "/suspend":
            self._answer(404, "only /suspend takes POST\n")
        elif self._may():
            self.server.state.mkdir(parents=True, exist_ok=True)
            (self.server.state / contract.SUSPEND_FILE).touch()
            self._answer(202, "the driver will make a checkpoint and end\n")

    def _may(self) -> bool:
        """Whether the caller presented a token; if not, 401 has been sent."""
        if self.server.takes(self.headers.get("Authorization", "")):
            return True
        self._answer(401, "send `Authorization: Bearer` with the run's token\n")
        return False

    def _answer(self, status: int, body: str | bytes, kind: str = "text/plain") -> None:
        content = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Say nothing: polls every few seconds would bury the training's own output."""


def _labels() -> dict[str, str]:
    """The run's name, namespace and attempt; as empty as the contract is unreadable."""
    try:
        given = json.loads(os.environ.get(contract.CONTRACT_ENV, ""))
        return {
            "run": str(given["name"]),
            "namespace": str(given["namespace"]),
            "attempt": str(given["attempt"]),
        }
    except (ValueError, KeyError, TypeError):
        return {}  # the driver says what is wrong with it


def main() -> None:
    """Serve until SIGTERM."""

    def stop(_number: int, _frame: types.FrameType | None) -> None:
        sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    port = int(os.environ.get(PORT_ENV, contract.PROGRESS_PORT))
    tokens = Path(os.environ.get(TOKENS_ENV, contract.TOKEN_FOLDER))
    ProgressServer(port, state_directory(), tokens, _labels()).serve_forever()


if __name__ == "__main__":
    main()
