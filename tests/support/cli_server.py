"""An HTTP server that answers the command line as an API server would."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import yaml
from typer.testing import CliRunner

from trainingrun.cli.main import app
from trainingrun.client import following

RUNS = "/apis/trainingrun.dev/v1alpha1/namespaces/team-a/trainingruns"


@dataclass
class Server:
    """Answers by path; of several answers to one path each is given once, the last for ever.

    An answer that is an event comes once that is set. An error that is a mapping is a `Status` of
    Kubernetes, and one that is bytes is what a proxy answers; an object that is empty has its name.
    """

    answers: dict[str, list[tuple[int, Any]]] = field(default_factory=dict)
    port: int = 0
    applied: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Content type and body of every PATCH."""
    created: list[Any] = field(default_factory=list)
    """Body of every POST; `POST <path>` has the answers."""
    deleted: list[str] = field(default_factory=list)
    """Path of every DELETE."""
    queries: list[dict[str, str]] = field(default_factory=list)
    """Query of every POST and PATCH."""

    def answer(self, path: str) -> tuple[int, Any]:
        waiting = self.answers.get(path)
        if waiting is None:
            return 404, {"message": f"{path} not found"}
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]


@contextmanager
def running_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that the kubeconfig names, with the default namespace `team-a`."""
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            code, body = state.answer(f"POST {path}" if self.command == "POST" else path)
            if isinstance(body, threading.Event):  # as the kubelet of a lost node
                body.wait()
                body = b""
            if code >= 400 and isinstance(body, dict):
                reason = HTTPStatus(code).phrase.replace(" ", "")
                body = {"kind": "Status", "reason": reason, **body}
            elif body == {}:
                body = {"metadata": {"name": path.rpartition("/")[2]}}
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            state.created.append(json.loads(body))
            self.write()

        def do_PATCH(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            state.applied.append((self.headers["Content-Type"], yaml.safe_load(body)))
            self.write()

        def do_DELETE(self) -> None:
            state.deleted.append(self.path.split("?")[0])
            self.do_GET()

        def write(self) -> None:
            state.queries.append(dict(parse_qsl(urlsplit(self.path).query)))
            self.do_GET()

        def log_message(self, *_: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
    state.port = http.server_port
    config = folder / "kubeconfig"
    context = {"cluster": "c", "user": "u", "namespace": "team-a"}
    config.write_text(
        yaml.safe_dump(
            {
                "current-context": "here",
                "clusters": [
                    {"name": "c", "cluster": {"server": f"http://127.0.0.1:{http.server_port}"}}
                ],
                "users": [{"name": "u", "user": {}}],
                "contexts": [{"name": "here", "context": context}],
            }
        )
    )
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(config))
    monkeypatch.setattr(following, "POLL_INTERVAL_S", 0.0)
    yield state
    http.shutdown()
    http.server_close()


def call(*arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of the command line with these arguments."""
    result = CliRunner().invoke(app, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr
