"""The run's folder in object storage: small objects, conditional creation, large files in parts.

All of it goes through one client, `obstore`: lease, manifests and result, a session's checkpoints,
and what Ray and training code store by pyarrow's interface (`bucket_files`). So what one of them
can do, all can.
"""

import os
import shutil
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import LocalStore, S3Store

from .claims import ClaimFiles, Entry
from .clients import (
    CLIENT,
    READS,
    WRITES,
    bucket_of,
    open_single_deletes,
    open_store,
    requires_client,
    speaks_tls,
)
from .storage_errors import (
    AbsentError,
    StorageError,
    StoreFullError,
    TakenError,
    UnreachableError,
    UnusableError,
    explain,
    is_panic,
    may_be_anothers_answer,
    needs_tls,
    no_name,
)

__all__ = ["Bucket", "ClaimBucket", "Entry", "StorageError"]

T = TypeVar("T")

_RANGE = 8 * 1024 * 1024
"""Bytes per request of `stream` and `writing`."""
_AHEAD = 8
"""Requests under way at once: one connection to S3 alone gives some 50 MB/s."""
_MOST_PARTS = 9_000
"""Of an object that is written in parts; S3 takes 10,000."""
_PART, _PARTS_AT_ONCE = 5 * 1024 * 1024, 2
"""Bytes per write of `upload`, the least that S3 takes, and writes under way at once."""
_NO_NAME = "Could not parse path"
"""What obstore raises of a name that it does not send, such as one with a line break."""
_DELETES = 8
"""Deletes of one object each under way at once."""


@dataclass(frozen=True)
class Bucket:
    """A folder in S3, Google Cloud Storage, Azure, on a claim (`claims`) or on this machine.

    Keys are relative to the folder, with `/` between parts. Every method raises `StorageError`
    where the answer is unknown; absence is an answer, not an error.
    """

    condition: ClassVar[str] = "If-None-Match"
    """What `create` needs of the store, in its words."""

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
                host), `pvc://` (name of a PersistentVolumeClaim) or `file://`, and a path.
            endpoint: URL of an S3-compatible service. Default: $AWS_ENDPOINT_URL, if S3.
            region: Region of the bucket. Default: $AWS_REGION and the client's own rules.

        Raises:
            StorageError: The URI is not one of these, the local folder cannot be made, or no
                request can be made with the endpoint, the region or the credentials.
        """
        if urlsplit(uri).scheme == "s3":
            endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3")
            endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL") or None
        root = uri.rstrip("/")
        if urlsplit(uri).scheme == "pvc":
            return ClaimBucket(root, None, None, None)
        return cls(root, endpoint, region, open_store(uri, endpoint, region, CLIENT))

    def __reduce__(self) -> tuple[Any, ...]:
        # Reopened where it arrives, so that no credential travels with a pickle.
        return Bucket.open, (self.root, self.endpoint, self.region)

    @cached_property
    def _reads(self) -> Any:
        return open_store(self.root, self.endpoint, self.region, READS)

    @cached_property
    def _writes(self) -> Any:
        return open_store(self.root, self.endpoint, self.region, WRITES)

    @cached_property
    def _single_deletes(self) -> Any:
        return open_single_deletes(self.root) or self.store

    def uri(self, key: str) -> str:
        """The full URI of a key."""
        return f"{self.root}/{key}"

    @property
    def path(self) -> str:
        """The folder as pyarrow and Ray name it: bucket/path, or the local path."""
        parts = urlsplit(self.root)
        path = unquote(parts.path)
        return path if parts.scheme == "file" else f"{bucket_of(parts)}{path}"

    def key_of(self, path: str) -> str:
        """The key of this path of pyarrow and Ray."""
        return path.removeprefix(self.path).strip("/")

    def put(self, key: str, content: bytes) -> None:
        """Write an object, over an existing one too."""
        self._put(key, content)

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
    def writing(
        self, key: str, size: int, part: int | None = None
    ) -> Iterator[Callable[[bytes | memoryview], object]]:
        """A function that appends to a new object, for objects too large to have as bytes.

        The object is there once the block has ended without an error. After an error the upload is
        aborted, if the store answers: it deletes the parts that it has, though not one that arrives
        at the same moment (Amazon S3, `AbortMultipartUpload`). A bounded number of parts is in
        memory.

        Args:
            key: Of the object.
            size: Its bytes, about: a store takes a limited number of parts.
            part: Bytes of a part; default: by the size. A smaller object is sent in one request.
        """
        part = part or max(_RANGE, size // _MOST_PARTS)
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

        Raises:
            StorageError: The store did not answer, or it refused for a while: S3 and Azure answer
                409 also to a request that would succeed a moment later.
        """
        try:
            self._put(key, content, only_new=True)
        except (TakenError, UnreachableError):
            # A refusal says that there is an object; only the object itself is proof of it. Some
            # stores refuse a large one by closing the connection.
            found = self.get(key)
            if found is None:
                raise
            return found == content
        return True

    def _put(self, key: str, content: bytes, *, only_new: bool = False) -> None:
        """Write an object; with `only_new` unless there is one, which is a `TakenError`."""
        mode: Any = "create" if only_new else "overwrite"
        self._ask(lambda: obstore.put(self.store, key, content, mode=mode, use_multipart=False))

    def get(self, key: str) -> bytes | None:
        """The object's content, or none if the store says that there is no such object."""
        try:
            return bytes(self._ask(lambda: obstore.get(self.store, key).bytes()))
        except AbsentError:
            return None

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

    def list_begun(self, prefix: str) -> Sequence[Entry]:
        """As `list`, with what processes write just now, or have left when they were killed.

        That is on a claim alone: a bucket shows no upload that is not complete.
        """
        return self.list(prefix)

    def folders(self) -> Sequence[str]:
        """Names of the folders in this one that have an object."""
        found = self._ask(lambda: obstore.list_with_delimiter(self.store)["common_prefixes"])
        names = sorted(path.rpartition("/")[2] for path in found)
        if isinstance(self.store, LocalStore):  # names one without a file, too
            return [name for name in names if self.has_folder(name)]
        return names

    def has_folder(self, prefix: str) -> bool:
        """Whether there is an object below a folder."""
        return self._ask(lambda: any(len(page) for page in obstore.list(self.store, prefix)))

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; those that are not there are fine."""
        names = sorted(keys)
        if isinstance(self.store, S3Store) and names:
            # Up to 1,000 in one request, for which a slow store takes longer than for one object.
            self._ask(lambda: obstore.delete(self._writes, names))
        elif names:
            # Azure and Google name the missing one as an error, and leave some of the others.
            with ThreadPoolExecutor(_DELETES) as pool:
                list(pool.map(self._delete_one, names))

    def _delete_one(self, key: str) -> None:
        with suppress(AbsentError):
            self._ask(partial(obstore.delete, self._single_deletes, key))

    def delete_folder(self, prefix: str) -> None:
        """Delete everything below a folder.

        Raises:
            ValueError: The prefix is empty or leads out of the run's folder.
        """
        parts = prefix.split("/")
        if not prefix or any(part in ("", ".", "..") for part in parts):
            raise ValueError(f"{prefix!r} is not a folder below {self.root}")
        if isinstance(self.store, LocalStore):
            shutil.rmtree(Path(self.path) / prefix, ignore_errors=True)
            return
        self.delete(entry.key for entry in self.list(prefix))

    def clean(self) -> None:
        """Delete what killed processes have left of uploads; of a bucket its lifecycle rule does.

        Raises:
            StorageError: Something may be left.
        """

    def stream(
        self,
        key: str,
        copy: Callable[[memoryview, int], memoryview] | None = None,
        size: int | None = None,
    ) -> Generator[memoryview, None, None]:
        """The object's content in pieces, in order; for objects too large for `get`.

        Args:
            key: Of the object.
            size: Its bytes; default: the store is asked.
            copy: Gets each piece and where it begins, in no order and from several threads; what it
                returns is yielded instead. It is called no more once the iterator is closed.

        Raises:
            AbsentError: There is no such object.
        """
        end = self.size(key) if size is None else size
        if end is None:
            raise AbsentError(f"there is no {self.uri(key)}")
        starts = iter(range(0, end, _RANGE))

        def read(start: int) -> memoryview:
            piece = self.read(key, start, min(start + _RANGE, end))
            return piece if copy is None else copy(piece, start)

        with ThreadPoolExecutor(_AHEAD) as pool:
            under_way = deque(pool.submit(read, start) for start in islice(starts, _AHEAD))
            while under_way:
                yield under_way.popleft().result()
                under_way.extend(pool.submit(read, start) for start in islice(starts, 1))

    def read(self, key: str, start: int, end: int) -> memoryview:
        """Some of an object's bytes: from `start` to before `end`, which are not equal.

        Raises:
            AbsentError: There is no such object.
        """
        return memoryview(
            self._ask(lambda: obstore.get_range(self._reads, key, start=start, end=end))
        )

    def at(self) -> str:
        """Where the folder is, for sentences."""
        return f"{self.root} at {self.endpoint}" if self.endpoint else self.root

    def _ask(self, request: Callable[[], T]) -> T:
        """Make a request, with the client's errors as sentences."""
        requires_client()
        try:
            return request()
        except StorageError:
            raise
        except UnicodeEncodeError as error:  # of a name; what is written is bytes
            raise no_name(self.root, repr(error.object)) from None
        except Exception as error:
            if isinstance(error, ValueError) and _NO_NAME in str(error):
                raise no_name(self.root, repr(str(error))[1:-1]) from None  # on one line
            found = explain(error, self.root, self.endpoint)
            if may_be_anothers_answer(error):
                self._connect_anew()
            # For obstore every 409 to every request is this error: an object of that name, a
            # quota that is used up, another request at the same moment.
            if isinstance(error, AlreadyExistsError) and not isinstance(found, StoreFullError):
                found = TakenError(str(found))
            if isinstance(found, UnreachableError) and speaks_tls(self.endpoint):
                found = needs_tls(self.at())
            raise found from None
        except BaseException as error:
            if not is_panic(error):
                raise
            # It passes each `except Exception`: a driver would end without a document, and its
            # attempt be repeated for ever.
            raise UnusableError(
                f"no request can be made to {self.at()} with these settings; correct its address, "
                "region and credentials, which may hold a character that does not belong there"
            ) from None

    def _connect_anew(self) -> None:
        """Have the next request open a connection of its own.

        A connection that was made while the route to the store led elsewhere, as to a Service of
        Kubernetes without endpoints, stays with whatever has answered there for as long as it is
        used: a proxy's 404 then outlasts the outage.
        """
        store = open_store(self.root, self.endpoint, self.region, CLIENT)
        object.__setattr__(self, "store", store)
        for client in ("_reads", "_writes", "_single_deletes"):
            self.__dict__.pop(client, None)


class ClaimBucket(ClaimFiles, Bucket):
    """A folder on a PersistentVolumeClaim."""

    def delete_folder(self, prefix: str) -> None:
        """As `Bucket.delete_folder`, with what was not written to its end."""
        super().delete_folder(prefix)
        self.remove_folders(prefix)


def _is_marker(entry: Entry, entries: list[Entry]) -> bool:
    """Whether it is an empty object that pyarrow made for a folder, with something below it."""
    if entry.size or not entry.key:
        return not entry.key
    after = bisect_right(entries, Entry(f"{entry.key}/", -1))
    return after < len(entries) and entries[after].key.startswith(f"{entry.key}/")
