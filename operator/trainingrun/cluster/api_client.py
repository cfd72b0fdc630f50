"""Plain dicts to and from the API server over HTTP: requests and server-side apply.

The official client's models would drop fields that they do not define, such as those of a newer
KubeRay.
"""

import asyncio
import contextlib
import io
import ipaddress
import logging
import math
import resource
import socket
from asyncio import sslproto
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from ..rendering.names import MANAGER
from .bounded_json import loads
from .credentials import Credentials
from .object_store import Key, encoded, key_of
from .server_clock import ServerClock, date_of

log = logging.getLogger(__name__)

APPLY = "application/apply-patch+yaml"
JSON_PATCH = "application/json-patch+json"
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

REQUESTS = 64
"""Connections for requests. Watches have their own and are not limited: with four for each of 500
namespaces, they would leave none for requests, and no watch could be opened after the last one."""
READ_BYTES = 2**18
"""Read ahead on one connection before the server has to wait; there may be thousands of them."""
TLS_BUFFER_BYTES = 2**15
"""Two TLS records; the buffer of asyncio's that decrypted bytes are read into."""
LARGE_BYTES = 2**20
"""From here on a body is sent piece by piece."""
_DOES_NOT_FIT = ("etcdserver: request is too large", "trying to send message larger than max")
"""Of etcd, and of the API server's client of it: a fault of its own, as the API server has it."""
LISTS = 4
"""Lists at the same time: each answer is megabytes in memory, here and in the API server."""


_Answer = tuple[int, datetime | None, bytes]
"""Status code, header Date and body."""


class ClusterError(Exception):
    """A call to the API server failed; the same call may succeed later."""


class Rejected(ClusterError):
    """The API server refused a manifest; the text says why and is fit for a user."""


class Unusable(Rejected):
    """It is invalid or too large: only another one can be taken."""

    def __init__(self, message: str, *, fits: bool = True) -> None:
        super().__init__(message)
        self.fits = fits
        """Whether etcd takes so much: else no policy refuses it, and no CRD of another version."""


class Conflict(ClusterError):
    """The object changed since it was read; reconcile again."""


class NotLeading(ClusterError):
    """Nothing was sent: this process does not lead, and must not change anything."""


class NotFound(ClusterError):
    """The API server says that an object of this name does not exist."""


class NotServed(ClusterError):
    """The API server does not serve the resource at present; its objects may exist."""


class Gone(ClusterError):
    """The resource version is too old to continue from; list again."""


class Forbidden(ClusterError):
    """The operator's roles do not allow it."""


class Unauthorized(ClusterError):
    """The API server does not take the operator's credentials; its roles may well allow it."""


class AlreadyExists(ClusterError):
    """An object of that name is there already."""


def allow_many_connections() -> None:
    """Lets this process have a connection for each watch, of which there are four for each
    namespace that is watched on its own.

    The limit of open files is raised as far as it may go: many container runtimes begin with 1,024.
    And asyncio keeps a buffer for each TLS connection, 256 KiB by default: half
    a gigabyte for 500 namespaces.
    """
    sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # a system that has no number for "unlimited"
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Connection:
    """One API server. Made inside a running event loop; `close` it."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        timeout_s: float = 30.0,
        count: Callable[[str, str], None] = lambda verb, code: None,
        may_write_s: Callable[[], float] = lambda: math.inf,
    ):
        """Connects lazily.

        Args:
            credentials: The API server's address, and as whom to speak to it.
            timeout_s: Longest wait for the answer to one request, watches aside.
            count: Called with the HTTP method and the status code ("error" without an answer)
                of each request.
            may_write_s: Called before each request that changes something: for how many seconds
                from now this process may, see `NotLeading`.
        """
        self._credentials, self.server = credentials, credentials.server
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self.count, self._may_write_s = count, may_write_s
        self.clock = ServerClock()
        """The API server's."""
        self._requests = self._new_session(REQUESTS)
        self.lists = asyncio.Semaphore(LISTS)
        """Held while a list is read."""

    def session_for_watches(
        self, middleware: Callable[..., Awaitable[aiohttp.ClientResponse]]
    ) -> aiohttp.ClientSession:
        """A session with the same credentials, without a limit of connections.

        Each watch has a connection of its own: where the way to the API server is interrupted, one
        that was kept from an earlier request is as silent as the watch that is to be replaced.
        """

        async def authorized(
            request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
        ) -> aiohttp.ClientResponse:
            request.headers.update(self._headers("application/json"))
            return await send(request)

        return self._new_session(0, (middleware, authorized), reuse=False)

    def _new_session(
        self,
        limit: int,
        middlewares: Sequence[aiohttp.ClientMiddlewareType] = (),
        *,
        reuse: bool = True,
    ) -> aiohttp.ClientSession:
        """At most `limit` connections at once; 0: as many as are opened."""
        connector = aiohttp.TCPConnector(
            ssl=self._credentials.tls,
            limit=limit,
            socket_factory=_keepalive_socket,
            force_close=not reuse,
        )
        # A pod with a service account reaches the API server inside the cluster, where a proxy that
        # is named for webhooks has nothing to do.
        in_cluster = self._credentials.token_file is not None
        return aiohttp.ClientSession(
            connector=connector,
            proxy=None if in_cluster else proxy_for(self.server),
            read_bufsize=READ_BYTES,
            middlewares=middlewares,
        )

    async def close(self) -> None:
        """Ends every request; the session for watches is closed by whoever has it."""
        if isinstance(self._requests.connector, aiohttp.TCPConnector):
            await self._requests.connector.close(abort_ssl=True)  # without a TLS close handshake
        await self._requests.close()
        for _ in range(3):  # an aborted socket is closed in the loop's next turns
            await asyncio.sleep(0)

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        """One request; the answer's object.

        Raises:
            NotFound, NotServed, AlreadyExists, Conflict, Gone, Unauthorized, Forbidden, Rejected:
                as the API server says.
            NotLeading: it would change something, and another operator may lead by now.
            ClusterError: any other refusal, or no answer in time.
        """
        found, _ = await self._exchange(method, path, body, query, content_type)
        return found

    async def list_objects(
        self,
        path: str,
        query: Mapping[str, str],
        page: int,
        keep: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda item: item,
    ) -> tuple[list[Mapping[str, Any]], int]:
        """What `keep` keeps of every object of a collection as of now, read `page` at once, and the
        list's version.
        """
        found: list[Mapping[str, Any]] = []
        async with self.lists:
            async for listed in self._pages(path, query, page, "application/json"):
                found += map(keep, listed["items"] or ())
        return found, int(listed["metadata"]["resourceVersion"])

    async def list_versions(
        self, path: str, query: Mapping[str, str], page: int
    ) -> tuple[dict[Key, tuple[str, int]], int]:
        """UID and resource version of every object of a collection as of now, and the list's
        version. No more than one page is in memory at once.
        """
        found: dict[Key, tuple[str, int]] = {}
        async with self.lists:
            async for listed in self._pages(path, query, page, METADATA_ONLY):
                found |= dict(map(_version_of, listed["items"] or ()))
        return found, int(listed["metadata"]["resourceVersion"])

    async def _pages(
        self, path: str, query: Mapping[str, str], page: int, accept: str
    ) -> AsyncIterator[dict[str, Any]]:
        """The pages of a list, at least one."""
        wanted = {**query, "limit": str(page)}
        while True:
            listed, _ = await self._exchange("GET", path, query=wanted, accept=accept)
            metadata = listed.get("metadata")
            if not isinstance(metadata, dict) or not (
                "items" in listed and "resourceVersion" in metadata
            ):
                # As of a proxy in between that answers 200 with a page of its own.
                raise ClusterError(f"GET {path}: the answer is no list")
            yield listed
            listed["items"] = ()  # not in memory while the next page is awaited
            if not metadata.get("continue"):
                return
            wanted["continue"] = metadata["continue"]

    async def get_dated(self, path: str) -> tuple[dict[str, Any], datetime | None]:
        """GET of an object, and what the API server's own clock showed."""
        return await self._exchange("GET", path)

    async def _exchange(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> tuple[dict[str, Any], datetime | None]:
        headers, data = self._headers(content_type), None if body is None else encoded(body)
        headers["Accept"] = accept
        answering = self._answer(method, path, query, data, headers)
        try:
            if method == "GET":
                status, date, content = await answering
            else:
                status, date, content = await self._while_leading(f"{method} {path}", answering)
        except (aiohttp.ClientError, TimeoutError) as error:
            self.count(method, "error")
            raise ClusterError(f"{method} {path}: {text_of(error)}") from error
        self.count(method, str(status))
        if status >= 400:
            raise error_of(status, method, path, content)
        try:
            return dict(loads(content)), date
        except (TypeError, ValueError):
            raise ClusterError(f"{method} {path}: the answer is not JSON") from None

    async def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        data: bytes | None,
        headers: Mapping[str, str],
    ) -> _Answer:
        sent = self.clock.own()
        async with self._requests.request(
            method,
            self.server + path,
            params=query,
            # aiohttp warns of a large body that is not read piece by piece.
            data=data if data is None or len(data) < LARGE_BYTES else io.BytesIO(data),
            headers=headers,
            timeout=self._timeout,
        ) as answer:
            date = date_of(answer.headers.get("Date"))
            self.clock.answered(date, sent)
            return answer.status, date, await answer.read()

    async def _while_leading(self, what: str, answering: Coroutine[Any, Any, _Answer]) -> _Answer:
        """The one place through which every write goes: it is given up once the right to write
        ends, which each renewal of the Lease puts off. An admission webhook may take longer than
        the rest of one.
        """
        if self._may_write_s() <= 0:
            answering.close()
            raise NotLeading(f"{what}: not sent, another operator may lead by now")
        task = asyncio.ensure_future(answering)
        try:
            while (left_s := self._may_write_s()) > 0:
                await asyncio.wait({task}, timeout=left_s)
                if task.done():
                    return task.result()
        finally:
            task.cancel()
        raise TimeoutError("given up, another operator may lead by now")

    async def create(self, path: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """POST to a collection; AlreadyExists if there is one of that name."""
        query = {"fieldManager": MANAGER, "fieldValidation": "Strict"}
        return await self.request("POST", path, manifest, query=query)

    async def apply(self, path: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Server-side apply: creates it, or changes what this manager owns of it."""
        return await self.request(
            "PATCH",
            path,
            manifest,
            query={"fieldManager": MANAGER, "force": "true", "fieldValidation": "Strict"},
            content_type=APPLY,
        )

    def _headers(self, content_type: str) -> dict[str, str]:
        own = {"Content-Type": content_type, "Accept": "application/json"}
        return {**own, **self._credentials.headers()}


def proxy_for(server: str) -> str | None:
    """The proxy that the environment names for this server, read once.

    With `trust_env` aiohttp would read it, and ~/.netrc, in another thread before each request:
    two thirds of what a request takes of a core.
    """
    parts, proxies = urlsplit(server), getproxies()
    host = parts.hostname or ""
    exempt = proxy_bypass(host) or _is_within(host, proxies.get("no", ""))
    return None if exempt else proxies.get(parts.scheme)


def _is_within(host: str, no_proxy: str) -> bool:
    """Whether a host is an IP address of a network in `no_proxy`, such as 10.0.0.0/8: programs in
    Go read them, those in Python do not.
    """
    with contextlib.suppress(ValueError):  # a name
        address = ipaddress.ip_address(host)
        for entry in no_proxy.split(","):
            with contextlib.suppress(ValueError):
                if address in ipaddress.ip_network(entry.strip(), strict=False):
                    return True
    return False


def _keepalive_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket that finds within about 25 s that the machine at the other end is gone."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):  # Linux has all three
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made


def text_of(error: BaseException) -> str:
    """What an error says; its type where it says nothing, as a TimeoutError does."""
    return str(error) or type(error).__name__


def error_of(status: int, method: str, path: str, content: bytes) -> ClusterError:
    """The exception for an answer of the API server that is not 2xx."""
    found: Any = None
    with contextlib.suppress(ValueError):
        found = loads(content)
    if not isinstance(found, dict):
        found = {"message": content[:500].decode(errors="replace")}
    message, reason = str(found.get("message", "")), found.get("reason", "")
    text = f"{method} {path}: {status} {message.strip()}"
    details = found.get("details") or {}
    match status:
        case 404 if reason == "NotFound" and details.get("name"):
            return NotFound(text)
        case 404:
            return NotServed(text)
        case 409 if reason == "AlreadyExists":
            return AlreadyExists(text)
        case 409:
            return Conflict(text)
        case 410:
            return Gone(text)
        case 400 | 413 | 422:
            return Unusable(message)
        case 401:
            return Unauthorized(text)
        case 403:
            # A quota or an admission webhook also answers 403; only RBAC says it like this.
            if "is forbidden: User" in message or method in ("GET", "WATCH"):
                return Forbidden(text)
            return Rejected(message)
        case 500 if any(words in message for words in _DOES_NOT_FIT):
            return Unusable(message, fits=False)
        case 500 if "too large" in message:
            return Unusable(message)
    return ClusterError(text)


def _version_of(item: Mapping[str, Any]) -> tuple[Key, tuple[str, int]]:
    metadata = item["metadata"]
    return key_of(item), (metadata["uid"], int(metadata["resourceVersion"]))
