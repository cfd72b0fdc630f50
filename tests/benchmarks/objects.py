"""One rank's object: written and read by ours, beside the same bytes with the same requests alone.

To versitygw, and to a sink that stands for a store which is as fast as loopback: it answers S3's
requests for an object in parts, counts the bytes, and keeps none.
"""

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import obstore
import torch
from blake3 import blake3

from trainingrun_runtime.checkpoints import tensor_files, upload
from trainingrun_runtime.checkpoints.downloads import Fetched, Share
from trainingrun_runtime.checkpoints.tensor_files import TensorFile
from trainingrun_runtime.store import verification
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.manifest import Manifest

PART, AT_ONCE = 8 * 1024 * 1024, 8
"""Bytes of a request, and requests under way, of ours and of what is beside it."""
FOLDER, NAME = "checkpoints/one", "rank-0.safetensors"
REGION = "us-east-1"


class Pair(NamedTuple):
    """What was measured side by side, in rounds; seconds."""

    ours: list[float]
    beside: list[float]


@dataclass
class Objects:
    """Of one object."""

    size: int
    """Bytes."""
    written: Pair
    """Beside the same parts without a digest."""
    sunk: Pair
    """Written to the sink, beside the digest of the same bytes alone."""
    verified: Pair
    """Read and not kept, beside the same requests."""
    fetched: Pair
    """Read for a restore, beside the same requests."""


def measure(server: str, megabytes: int, rounds: int) -> Objects:
    """Side by side in each round.

    Args:
        server: URL of an S3 server with the bucket `runs`.
        megabytes: of the object.
        rounds: of each.
    """
    tensor = torch.randint(0, 255, (megabytes << 20,), dtype=torch.uint8)
    content = TensorFile(
        {f"layer-{n}": tensor_files.whole(part) for n, part in enumerate(tensor.split(1 << 26))}
    )
    pieces = [part.numpy().data for part in tensor.split(PART)]
    bucket = Bucket.open("s3://runs/objects", server, REGION)
    digest = upload.write(bucket, f"{FOLDER}/{NAME}", content)
    manifest = Manifest(
        path=FOLDER, step=1, world_size=1, attempt=1, fencing_token=1, index=1,
        files={NAME: digest}, time=0,
    )  # fmt: skip

    def ours(to: Bucket) -> Callable[[], object]:
        return lambda: upload.write(to, f"{FOLDER}/{NAME}", content)

    def plain() -> None:
        with bucket.writing("plain", tensor.nbytes) as append:
            for piece in pieces:
                append(piece)

    def digested() -> None:
        found = blake3()
        for piece in pieces:
            found.update(piece)

    def read() -> None:
        def part(start: int) -> int:
            end = min(start + PART, digest.size)
            return len(obstore.get_range(bucket.store, f"{FOLDER}/{NAME}", start=start, end=end))

        with ThreadPoolExecutor(AT_ONCE) as pool:
            assert sum(pool.map(part, range(0, digest.size, PART))) == digest.size

    def fetch() -> None:
        fetched = Fetched(bucket, manifest)
        assert fetched.fetch(Share([NAME], [])) is None
        fetched.close()

    def verify() -> None:
        assert verification.wrong_content(bucket, manifest, NAME) is None

    with a_sink() as sink:
        sunk = _beside(ours(Bucket.open("s3://runs/objects", sink, REGION)), digested, rounds)
    return Objects(
        digest.size,
        _beside(ours(bucket), plain, rounds),
        sunk,
        _beside(verify, read, rounds),
        _beside(fetch, read, rounds),
    )


def _beside(ours: Callable[[], object], other: Callable[[], object], rounds: int) -> Pair:
    """Seconds of both, in turns, each round the other way round; the first round does not count."""
    found = Pair([], [])
    for number in range(rounds + 1):
        for side in (ours, other) if number % 2 else (other, ours):
            began = time.perf_counter()
            side()
            found[side is other].append(time.perf_counter() - began)
    return Pair(found.ours[1:], found.beside[1:])


def ratios(pair: Pair) -> list[float]:
    """Of each round."""
    return [a / b for a, b in zip(pair.ours, pair.beside, strict=True)]


def rate(size: int, seconds: list[float]) -> str:
    """Bytes per second, for the table."""
    return f"{size / statistics.median(seconds) / 1e9:.2f} GB/s"


class _Sink(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self._drop_body()
        name = "InitiateMultipartUpload" if "uploads" in self.path else "CompleteMultipartUpload"
        answer = f"<{name}Result><UploadId>1</UploadId><ETag>1</ETag></{name}Result>"
        self._answer(answer.encode())

    def do_PUT(self) -> None:
        self._drop_body()
        self._answer(b"")

    def _drop_body(self) -> None:
        left = int(self.headers.get("Content-Length", 0))
        buffer = memoryview(bytearray(2**20))
        while left:
            left -= self.rfile.readinto(buffer[: min(left, len(buffer))])

    def _answer(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_request(self, *arguments: object) -> None:
        pass


@contextmanager
def a_sink() -> Iterator[str]:
    """The address of a sink."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Sink) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
