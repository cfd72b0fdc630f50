"""A stub of S3 in memory, whose faults a test chooses; a real server does not fail when asked to.

It answers as Amazon S3 does, with as much of it as a run uses.
"""

import contextlib
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

BOTH_S = 8.0
"""Seconds for which a create waits for another one, where creates are not atomic."""


class Request(NamedTuple):
    """A request that has come in."""

    method: str
    key: str
    """Within the bucket; empty: the bucket itself."""
    query: dict[str, str]
    creates: bool
    """Whether it writes only if there is no such object."""


Fault = Callable[[Request], tuple[int, str | bytes] | None]
"""Status and error code, or a body, with which a request is answered; None: it is done."""


@dataclass
class StubS3:
    """A running stub with one bucket, `runs`."""

    url: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    """By key."""
    requests: list[Request] = field(default_factory=list)
    """What came in, in order."""
    fault: Fault = lambda request: None
    forgets: Callable[[str], bool] = lambda key: False
    """Whether an object of that key is taken, and not kept."""
    keeps: int | None = None
    """Most bytes that are kept of an object."""
    atomic: bool = True
    """Whether of several creates at once one alone succeeds."""
    _parts: dict[str, dict[int, bytes]] = field(default_factory=dict)
    _creating: Counter[str] = field(default_factory=Counter)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def answer(self, request: Request, body: bytes) -> tuple[int, str | bytes]:
        """Status, and the body or an error code."""
        self.requests.append(request)
        if refusal := self.fault(request):
            return refusal
        match request.method, request.query:
            case "GET", {"list-type": _}:
                query = request.query
                return 200, self._listed(query.get("prefix", ""), "delimiter" in query).encode()
            case "POST", {"delete": _}:
                keys = re.findall(r"<Key>([^<]*)</Key>", body.decode())
                for key in keys:
                    self.objects.pop(key, None)
                deleted = "".join(_xml("Deleted", Key=key) for key in keys)
                return 200, _xml("DeleteResult", deleted).encode()
            case "POST", {"uploads": _}:
                upload = f"{len(self._parts)}"
                self._parts[upload] = {}
                return 200, _xml("InitiateMultipartUploadResult", UploadId=upload).encode()
            case "PUT", {"partNumber": number, "uploadId": upload}:
                self._parts[upload][int(number)] = body
                return 200, b""
            case "POST", {"uploadId": upload}:
                parts = self._parts.pop(upload)
                self._keep(request.key, b"".join(parts[number] for number in sorted(parts)))
                return 200, _xml("CompleteMultipartUploadResult", ETag="x").encode()
            case "DELETE", {"uploadId": upload}:
                self._parts.pop(upload, None)
                return 204, b""
            case "PUT", _:
                return self._put(request, body)
        found = self.objects.get(request.key) if request.key else b""
        return (404, "NoSuchKey") if found is None else (200, found)

    def _put(self, request: Request, body: bytes) -> tuple[int, str | bytes]:
        with self._changed:
            if request.creates and request.key in self.objects:
                return 412, "PreconditionFailed"
            if request.creates and not self.atomic:
                self._creating[request.key] += 1
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._creating[request.key] > 1, BOTH_S)
            self._keep(request.key, body)
        return 200, b""

    def _keep(self, key: str, content: bytes) -> None:
        if not self.forgets(key):
            self.objects[key] = content[: self.keeps]

    def _listed(self, prefix: str, delimited: bool) -> str:
        sizes = {key: len(content) for key, content in self.objects.items()}
        found = sorted((key, size) for key, size in sizes.items() if key.startswith(prefix))
        folders = {key[: key.find("/", len(prefix)) + 1] for key, _ in found} - {""}
        within = [_xml("CommonPrefixes", Prefix=name) for name in sorted(folders)]
        objects = [
            _xml("Contents", Key=key, Size=f"{size}", LastModified="2026-11-27T00:00:00.000Z")
            for key, size in found
            if not delimited or "/" not in key.removeprefix(prefix)
        ]
        listed = "".join([*(within if delimited else ()), *objects])
        return _xml("ListBucketResult", listed, IsTruncated="false")


@contextlib.contextmanager
def stub_s3() -> Iterator[StubS3]:
    """One on loopback; any credentials are right."""
    stub = StubS3()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            parts = urlsplit(self.path)
            given = parse_qs(parts.query, keep_blank_values=True)
            key = unquote(parts.path).removeprefix("/runs").removeprefix("/")
            query = {name: values[0] for name, values in given.items()}
            creates = self.headers.get("if-none-match") == "*"
            status, said = stub.answer(Request(self.command, key, query, creates), body)
            content = said if isinstance(said, bytes) else _xml("Error", Code=said).encode()
            partly = self.headers.get("range") if status == 200 else None
            if partly:
                first, _, last = partly.removeprefix("bytes=").partition("-")
                whole = len(content)
                content = content[int(first) : int(last) + 1]
                status = 206
                self.send_response(status)
                until = int(first) + len(content) - 1
                self.send_header("content-range", f"bytes {first}-{until}/{whole}")
            else:
                self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.send_header("ETag", '"x"')
            self.send_header("Last-Modified", "Fri, 27 Nov 2026 00:00:00 GMT")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer  # noqa: N815 - http.server's names

        def log_message(self, *_: object) -> None:
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        stub.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield stub
        finally:
            server.shutdown()


def _xml(name: str, inner: str = "", **elements: str) -> str:
    return f"<{name}>{inner}{''.join(f'<{k}>{v}</{k}>' for k, v in elements.items())}</{name}>"
