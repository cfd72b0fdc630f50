"""The run's folder in object storage: small objects, conditional creation, a filesystem.

Lease, manifests and the result go through `obstore`, because pyarrow's filesystems have no
conditional write, and so do a session's checkpoints. What training code reports without a session
goes through pyarrow, because Ray does. Both see the same folder. Every request is bounded (see
`_CLIENT` and `_RETRIES`): a driver must not block on a store that does not answer.
"""

import os
import shutil
import socket
import ssl
import uuid
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import AzureStore, GCSStore, LocalStore, MemoryStore, S3Store

from .storage_errors import (
    CA_ENV,
    AbsentError,
    DeniedError,
    EndpointError,
    RefusedError,
    StorageError,
    StoreFullError,
    UnreachableError,
    UnusableError,
    explain,
    needs_tls,
    no_store,
)

__all__ = ["Bucket", "Entry", "StorageError"]

T = TypeVar("T")

_CONNECT = {"connect_timeout": timedelta(seconds=3)}
_CLIENT = {**_CONNECT, "timeout": timedelta(seconds=10)}
# The ranks of a pod may share a slow line: then a request for 8 MB lasts long, and all is well.
_READS = {**_CONNECT, "read_timeout": timedelta(seconds=10), "timeout": timedelta(minutes=5)}
"""Of `stream`. `read_timeout` begins anew with each byte that arrives."""
_WRITES = {**_CONNECT, "timeout": timedelta(seconds=60)}
"""Of `writing`, whose answer comes once all bytes are sent."""
_RETRIES = {
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=10),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=2),
        "base": 2,
    },
}
_RANGE = 8 * 1024 * 1024
"""Bytes per request of `stream` and `writing`."""
_AHEAD = 8
"""Requests under way at once: one connection to S3 alone gives some 50 MB/s."""
_MOST_PARTS = 9_000
"""Of an object that is written in parts; S3 takes 10,000."""
_PART, _PARTS_AT_ONCE = 5 * 1024 * 1024, 2
"""Bytes per write of `upload`, the least that S3 takes, and writes under way at once."""
_PROBE = f".probe-{uuid.uuid4().hex}"
"""One name for all tries of a process, so that one that an outage left is removed by the next."""
_AZURE = ("az", "abfs", "abfss")


def start_client() -> None:
    """Start the threads of the stores' client, of which a process has one set.

    Its first request starts them, and they keep the priority of the thread that makes it.
    """
    with suppress(FileNotFoundError):
        obstore.head(MemoryStore(), "none")


class Entry(NamedTuple):
    """An object that exists."""

    key: str
    """Its name below the folder."""
    size: int
    """Bytes."""


@dataclass(frozen=True)
class Bucket:
    """A folder in S3, Google Cloud Storage, Azure or on this machine.

    Keys are relative to the folder, with `/` between parts. Every method raises `StorageError`
    where the answer is unknown; absence is an answer, not an error.
    """

    root: str
    """The folder's URI, without a slash at the end."""
    endpoint: str | None
    """URL of an S3-compatible service; none: the cloud's own."""
    region: str | None
    """Region of the bucket; none: the client's own rules."""
    store: Any
    """The obstore store, rooted in the folder."""

    @classmethod
    def open(cls, uri: str, endpoint: str | None = None, region: str | None = None) -> "Bucket":
        """Open a folder, without a request yet; a local folder is made.

        Args:
            uri: `s3://`, `gs://`, `az://`, `abfs://`, `abfss://` (container, or container@account
                host) or `file://`, and a path.
            endpoint: URL of an S3-compatible service. Default: $AWS_ENDPOINT_URL, if S3.
            region: Region of the bucket. Default: $AWS_REGION and the client's own rules.

        Raises:
            StorageError: The URI is not one of these, or the local folder cannot be made.
        """
        if urlsplit(uri).scheme == "s3":
            endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3")
            endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL") or None
        root = uri.rstrip("/")
        return cls(root, endpoint, region, _open_store(uri, endpoint, region, _CLIENT))

    def __reduce__(self) -> tuple[Any, ...]:
        # Reopened where it arrives, so that no credential travels with a pickle.
        return Bucket.open, (self.root, self.endpoint, self.region)

    @cached_property
    def _reads(self) -> Any:
        return _open_store(self.root, self.endpoint, self.region, _READS)

    @cached_property
    def _writes(self) -> Any:
        return _open_store(self.root, self.endpoint, self.region, _WRITES)

    def uri(self, key: str) -> str:
        """The full URI of a key."""
        return f"{self.root}/{key}"

    def key_of(self, path: str) -> str:
        """The key of this path of pyarrow and Ray."""
        return path.removeprefix(self._path()).strip("/")

    def put(self, key: str, content: bytes) -> None:
        """Write an object, over an existing one too."""
        self._ask(lambda: obstore.put(self.store, key, content, use_multipart=False))

    def upload(self, key: str, content: bytes | Path, content_type: str | None = None) -> None:
        """Write an object, or a file, that may take longer than `timeout`: in parts.

        Args:
            key: Of the object.
            content: Its bytes, or a file with them.
            content_type: What a browser takes it for; on this machine the name says it.
        """
        local = isinstance(self.store, LocalStore)
        attributes = {"Content-Type": content_type} if content_type and not local else None
        self._ask(
            lambda: obstore.put(
                self.store,
                key,
                content,
                attributes=attributes,
                chunk_size=_PART,
                max_concurrency=_PARTS_AT_ONCE,
            )
        )

    @contextmanager
    def writing(self, key: str, size: int) -> Iterator[Callable[[bytes | memoryview], object]]:
        """A function that appends to a new object, for objects too large to have as bytes.

        The object is there once the block has ended without an error. After an error the upload is
        aborted, if the store answers: it deletes the parts that it has, though not one that arrives
        at the same moment (Amazon S3, `AbortMultipartUpload`). A bounded number of parts is in
        memory.

        Args:
            key: Of the object.
            size: Its bytes, about: a store takes a limited number of parts.
        """
        part = max(_RANGE, size // _MOST_PARTS)
        writer = self._ask(
            lambda: obstore.open_writer(self._writes, key, buffer_size=part, max_concurrency=_AHEAD)
        )
        try:
            yield lambda content: self._ask(lambda: writer.write(content))
        except BaseException as error:
            # Not closed: what was appended would become the object. With an error this aborts the
            # upload instead, as S3 keeps the parts otherwise.
            with suppress(Exception):  # the store may be what has failed
                writer.__exit__(type(error), error, error.__traceback__)
            raise
        self._ask(writer.close)

    def create(self, key: str, content: bytes) -> bool:
        """Write an object only if there is none.

        Returns:
            Whether the object with this content is there now because of this call. An object with
            exactly these bytes counts as ours: it is what a repeated request finds whose first
            answer was lost. Contenders must therefore write different bytes.
        """
        try:
            self._ask(
                lambda: obstore.put(self.store, key, content, mode="create", use_multipart=False)
            )
        except AlreadyExistsError:
            return self.get(key) == content
        return True

    def get(self, key: str) -> bytes | None:
        """The object's content, or none if the store says that there is no such object."""
        try:
            return bytes(self._ask(lambda: obstore.get(self.store, key).bytes()))
        except AbsentError:
            return None

    def head(self, key: str, size: int) -> bytes:
        """The object's first bytes, so many at most.

        Raises:
            AbsentError: There is no such object.
        """
        if not size:
            return b""
        return bytes(self._ask(lambda: obstore.get_range(self._reads, key, start=0, end=size)))

    def size(self, key: str) -> int | None:
        """The object's bytes, or none if the store says that there is no such object."""
        try:
            return int(self._ask(lambda: obstore.head(self.store, key))["size"])
        except StorageError:
            pass  # a refused HEAD has no body, so it does not say what is missing; a GET's says it
        try:
            return int(self._ask(lambda: obstore.get(self.store, key).meta)["size"])
        except AbsentError:
            return None

    def list(self, prefix: str = "") -> list[Entry]:
        """All objects below a folder, at any depth, by key."""
        found = self._ask(
            lambda: [meta for page in obstore.list(self.store, prefix or None) for meta in page]
        )
        entries = sorted(Entry(meta["path"], meta["size"]) for meta in found)
        return [entry for entry in entries if not _is_marker(entry, entries)]

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; those that are not there are fine."""
        names = sorted(keys)
        if isinstance(self.store, LocalStore):
            for name in names:
                with suppress(AbsentError):
                    self._ask(partial(obstore.delete, self.store, name))
        elif names:
            self._ask(lambda: obstore.delete(self.store, names))

    def delete_folder(self, prefix: str) -> None:
        """Delete everything below a folder, and pyarrow's folder markers with it.

        Raises:
            ValueError: The prefix is empty or leads out of the run's folder.
        """
        parts = prefix.split("/")
        if not prefix or any(part in ("", ".", "..") for part in parts):
            raise ValueError(f"{prefix!r} is not a folder below {self.root}")
        if isinstance(self.store, LocalStore):
            shutil.rmtree(Path(self._path()) / prefix, ignore_errors=True)
            return
        self.delete(entry.key for entry in self.list(prefix))
        filesystem, root = self.pyarrow()
        self._ask(lambda: _delete_markers(filesystem, f"{root}/{prefix}"))

    def stream(self, key: str, copy: BinaryIO | None = None) -> Generator[memoryview, None, None]:
        """The object's content in pieces, in order; for objects too large for `get`.

        Args:
            key: Of the object.
            copy: An open file that gets the content too. Close the iterator before the file.

        Raises:
            AbsentError: There is no such object.
        """
        size = self.size(key)
        if size is None:
            raise AbsentError(f"there is no {self.uri(key)}")
        store, starts = self._reads, iter(range(0, size, _RANGE))

        def read(start: int) -> memoryview:
            end = min(start + _RANGE, size)
            part = self._ask(lambda: obstore.get_range(store, key, start=start, end=end))
            piece = memoryview(part)  # without a copy
            if copy is not None:
                _write_at(copy, piece, start)
            return piece

        with ThreadPoolExecutor(_AHEAD) as pool:
            under_way = deque(pool.submit(read, start) for start in islice(starts, _AHEAD))
            if copy is not None and size and hasattr(os, "posix_fallocate"):
                # During the first reads: that takes time in memory, and a full disk is found early.
                os.posix_fallocate(copy.fileno(), 0, size)
            while under_way:
                yield under_way.popleft().result()
                under_way.extend(pool.submit(read, start) for start in islice(starts, 1))

    def pyarrow(self) -> tuple[Any, str]:
        """The same folder for Ray: `storage_filesystem` and `storage_path`.

        Built explicitly rather than from the URI, since Ray would echo a URI's query, and without
        keys: each process finds its credentials in its own environment.
        """
        from pyarrow import fs  # heavy, and only the driver needs it

        scheme = urlsplit(self.root).scheme
        if scheme == "file":
            return fs.LocalFileSystem(), self._path()
        if scheme == "gs":
            return fs.GcsFileSystem(retry_time_limit=timedelta(seconds=10)), self._path()
        if scheme in _AZURE:
            return fs.AzureFileSystem(_azure_account(self.root)), self._path()
        options: dict[str, Any] = {"region": self.region or _environment_region()}
        if self.endpoint:
            parts = urlsplit(self.endpoint)
            options |= {"endpoint_override": parts.netloc, "scheme": parts.scheme}
            options["region"] = options["region"] or "us-east-1"
        # The variable that obstore and OpenSSL read is not read by pyarrow's curl.
        if authorities := os.environ.get(CA_ENV) or os.environ.get("SSL_CERT_FILE"):
            options["tls_ca_file_path"] = authorities
        return fs.S3FileSystem(**options, allow_bucket_creation=False), self._path()

    def check(self) -> None:
        """Try everything that a run will need: create, refuse to create again, read, delete.

        Raises:
            StorageError: One sentence that says what does not work and what to change.
        """
        key = _PROBE
        try:
            self.put(key, b"probe")
        except DeniedError:
            self.list("manifests")  # a bucket that cannot even be listed raises its own sentence
            raise DeniedError(
                f"{self.root} can be read but not written; allow the run's credentials to "
                "write and delete objects there"
            ) from None
        try:
            if self.get(key) != b"probe":
                raise no_store(self.at())
            self._check_conditional(key)
        except StorageError:
            with suppress(StorageError):
                self.delete([key])
            raise
        try:
            self.delete([key])
        except DeniedError:
            raise DeniedError(
                f"objects in {self.root} can be written but not deleted; allow the run's "
                "credentials to delete objects there"
            ) from None

    def _check_conditional(self, key: str) -> None:
        """Try to create an object that is there."""
        needed = "so it cannot keep two drivers apart; use a store that supports conditional writes"
        try:
            created = self.create(key, b"second")
        except (UnusableError, RefusedError):  # it has just taken the same without the condition
            raise UnusableError(
                f"the store of {self.at()} refuses If-None-Match, {needed}"
            ) from None
        if created:
            raise UnusableError(f"the store of {self.at()} ignores If-None-Match, {needed}")

    def at(self) -> str:
        """Where the folder is, for sentences."""
        return f"{self.root} at {self.endpoint}" if self.endpoint else self.root

    def _path(self) -> str:
        """The folder as pyarrow names it: bucket/path, or the local path."""
        parts = urlsplit(self.root)
        path = unquote(parts.path)
        return path if parts.scheme == "file" else f"{_bucket(parts)}{path}"

    def _ask(self, request: Callable[[], T]) -> T:
        """Make a request, with the client's errors as sentences."""
        try:
            return request()
        except StorageError:
            raise
        except Exception as error:
            found = explain(error, self.root, self.endpoint)
            # 409, as some stores answer where a quota is used up, is that error for obstore too.
            if isinstance(error, AlreadyExistsError) and not isinstance(found, StoreFullError):
                raise
            if isinstance(found, UnreachableError) and _speaks_tls(self.endpoint):
                found = needs_tls(self.at())
            raise found from None


def _open_store(
    uri: str, endpoint: str | None, region: str | None, client: Mapping[str, timedelta]
) -> Any:
    """The obstore store for a folder.

    Raises:
        StorageError: the URI is not one that `Bucket.open` takes, or a folder cannot be made.
    """
    parts = urlsplit(uri)
    name, path = parts.netloc, unquote(parts.path)
    try:
        if parts.scheme == "file":
            return LocalStore(path, mkdir=True)
        if not name:
            raise StorageError(f"storage.uri names no bucket; write {parts.scheme}://bucket/path")
        options: dict[str, Any] = {
            "prefix": path.strip("/") or None,
            "client_options": {**client, **_authorities()},
            "retry_config": _RETRIES,
        }
        if parts.scheme == "s3":
            options |= {k: v for k, v in (("endpoint", endpoint), ("region", region)) if v}
            allow_http = bool(endpoint and endpoint.startswith("http://"))
            options["client_options"]["allow_http"] = allow_http
            return S3Store(name, **options)
        if parts.scheme == "gs":
            return GCSStore(name, **options)
        if parts.scheme in _AZURE:
            return AzureStore(_bucket(parts), account_name=_azure_account(uri), **options)
    except StorageError:
        raise
    except Exception as error:
        raise explain(error, uri.rstrip("/"), endpoint) from None
    raise StorageError(f"storage.uri starts with {parts.scheme}://; use s3, gs, az, abfs or file")


def _authorities() -> dict[str, bytes]:
    """Certificates that the client trusts beside those of the system."""
    file = os.environ.get(CA_ENV)
    if not file:
        return {}
    try:
        content = Path(file).read_bytes()
    except OSError as error:
        raise EndpointError(
            f"{CA_ENV} is {file}, which cannot be read ({error.strerror}); mount the certificates "
            "there, or correct it in training.env"
        ) from None
    if b"-----BEGIN CERTIFICATE-----" not in content:
        raise EndpointError(f"{CA_ENV} is {file}, which has no certificate in it; write it as PEM")
    return {"root_certificate": content}


def _speaks_tls(endpoint: str | None) -> bool:
    """Whether an http:// endpoint, which has closed the connection, waits for TLS."""
    parts = urlsplit(endpoint or "")
    if parts.scheme != "http" or not parts.hostname:
        return False
    anybody = ssl.create_default_context()
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((parts.hostname, parts.port or 80), timeout=2) as connection,
            anybody.wrap_socket(connection),
        ):
            return True
    except (OSError, ValueError):
        return False


def _write_at(file: BinaryIO, content: memoryview, start: int) -> None:
    while content:
        count = os.pwrite(file.fileno(), content, start)
        content, start = content[count:], start + count


def _bucket(parts: SplitResult) -> str:
    """The bucket of a URI; of `abfss://container@account.dfs.core.windows.net`, the container."""
    return parts.netloc.partition("@")[0]


def _azure_account(uri: str) -> str:
    named = urlsplit(uri).netloc.partition("@")[2].partition(".")[0]
    account = named or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    if not account:
        raise EndpointError(
            "the URI names no storage account; write abfss://container@account.dfs.core.windows.net"
            "/folder, or set AZURE_STORAGE_ACCOUNT_NAME in training.env"
        )
    return account


def _environment_region() -> str | None:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")


def _is_marker(entry: Entry, entries: list[Entry]) -> bool:
    """Whether it is an empty object that pyarrow made for a folder, with something below it."""
    if entry.size or not entry.key:
        return not entry.key
    after = bisect_right(entries, Entry(f"{entry.key}/", -1))
    return after < len(entries) and entries[after].key.startswith(f"{entry.key}/")


def _delete_markers(filesystem: Any, folder: str) -> None:
    """Remove the empty objects `folder/`, which obstore cannot name; pyarrow makes them."""
    with suppress(FileNotFoundError):
        filesystem.delete_dir(folder)
