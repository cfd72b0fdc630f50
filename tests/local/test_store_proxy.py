"""Pods that reach the bucket by a proxy alone, as docs/platform.md says how."""

import contextlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from support.s3 import S3Server
from trainingrun_runtime.store.bucket import Bucket


@contextlib.contextmanager
def forwarding(seen: list[str]) -> Iterator[str]:
    """A proxy's URL; `seen` gets the URL of each request that it forwards."""

    class Handler(BaseHTTPRequestHandler):
        def forward(self) -> None:
            seen.append(self.path)
            target = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            server = http.client.HTTPConnection(target.netloc)
            with contextlib.closing(server):
                path = target._replace(scheme="", netloc="").geturl()
                server.request(self.command, path, body, dict(self.headers))
                answer = server.getresponse()
                content = answer.read()
                self.send_response_only(answer.status)
                for name, value in answer.getheaders():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = forward  # noqa: N815 - http.server's names

        def log_message(self, *_: object) -> None:
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def test_the_bucket_is_reached_by_the_proxy_of_the_environment(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    uri, seen = "s3://runs/team/proxied", list[str]()
    with forwarding(seen) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy)
        bucket = Bucket.open(uri, s3.url, "us-east-1")
        assert bucket.create("lease/1", b"first")
        assert not bucket.create("lease/1", b"second")
        bucket.upload("large", bytes(20_000_000))
        with bucket.writing("appended", 1) as append:
            append(b"x")
        assert bucket.get("lease/1") == b"first"
        assert len(b"".join(bucket.stream("large"))) == 20_000_000
        assert [entry.key for entry in bucket.list()] == ["appended", "large", "lease/1"]
        bucket.delete(["large"])
    assert {urlsplit(url).netloc for url in seen} == {urlsplit(s3.url).netloc}

    # The proxy is gone by now.
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert Bucket.open(uri, s3.url, "us-east-1").get("lease/1") == b"first"
