"""How a store's client is opened: by `obstore`, with the environment's credentials.

Every request is bounded (see `CLIENT` and `RETRIES`): a driver must not block on a store that does
not answer.
"""

import os
import re
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

import obstore
from obstore.store import AzureStore, GCSStore, HTTPStore, LocalStore, MemoryStore, S3Store

from .storage_errors import (
    CA_ENV,
    CredentialsError,
    EndpointError,
    StorageError,
    UnusableError,
    explain,
)

_CONNECT = {"connect_timeout": timedelta(seconds=3)}
CLIENT = {**_CONNECT, "timeout": timedelta(seconds=10)}
# The ranks of a pod may share a slow line: then a request for 8 MB lasts long, and all is well.
READS = {**_CONNECT, "read_timeout": timedelta(seconds=10), "timeout": timedelta(minutes=5)}
"""Of `stream`. `read_timeout` begins anew with each byte that arrives."""
WRITES = {**_CONNECT, "timeout": timedelta(seconds=60)}
"""Of `writing`, whose answer comes once all bytes are sent, and of deletes of many objects. With
eight requests of 8 MB at once, a line of 1.1 MB/s for each rank is enough."""
RETRIES = {
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=10),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=2),
        "base": 2,
    },
}
_AZURE = ("az", "abfs", "abfss")
_AZURE_ENDPOINTS = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
_ADDRESS = re.compile(r"https?://[^/@?#\x00-\x20\x7f]+(/[^@?#\x00-\x20\x7f]*)?")
"""Without credentials and a query, as in `storage.endpoint`."""
_REGION = re.compile(r"[A-Za-z0-9._-]+")
_CREDENTIALS = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    **dict.fromkeys(
        _AZURE,
        (
            "AZURE_STORAGE_ACCOUNT_NAME",
            "AZURE_STORAGE_ACCOUNT_KEY",
            "AZURE_STORAGE_SAS_KEY",
            "AZURE_STORAGE_SAS_TOKEN",
        ),
    ),
}
"""Variables of one line; those of Google are JSON, in which a line may end."""


_started = False
"""Whether this process has the client's threads."""
_forked = False
"""Whether it was forked from one that had them."""


def requires_client() -> None:
    """Call before each request.

    Raises:
        RuntimeError: This process was forked from one that has made a request. The client's threads
            are not in it, so that it would wait for the answer for ever.
    """
    global _started
    if _forked:
        raise RuntimeError(
            "a process that is forked cannot use the bucket, as the one that it is forked from "
            "does; start it by spawn or forkserver, such as multiprocessing_context='spawn' of a "
            "DataLoader"
        )
    _started = True


def _mark_forked() -> None:
    global _forked
    _forked = _forked or _started


if hasattr(os, "register_at_fork"):  # where a process can be forked
    os.register_at_fork(after_in_child=_mark_forked)


def start_client() -> None:
    """Start the threads of the stores' client, of which a process has one set.

    Its first request starts them, and they keep the priority of the thread that makes it.
    """
    requires_client()
    with suppress(FileNotFoundError):
        obstore.head(MemoryStore(), "none")


def open_store(
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
        _require_usable(parts, endpoint, region)
        options: dict[str, Any] = {
            "prefix": path.strip("/") or None,
            "client_options": {**client, **_authorities()},
            "retry_config": RETRIES,
        }
        if parts.scheme == "s3":
            options |= {k: v for k, v in (("endpoint", endpoint), ("region", region)) if v}
            allow_http = bool(endpoint and endpoint.startswith("http://"))
            options["client_options"]["allow_http"] = allow_http
            return S3Store(name, **options)
        if parts.scheme == "gs":
            return GCSStore(name, **options)
        if parts.scheme in _AZURE:
            return AzureStore(bucket_of(parts), account_name=_azure_account(uri), **options)
    except StorageError:
        raise
    except Exception as error:
        raise explain(error, uri.rstrip("/"), endpoint) from None
    raise StorageError(
        f"storage.uri starts with {parts.scheme}://; use s3, gs, az, abfs, pvc or file"
    )


def _require_usable(parts: SplitResult, endpoint: str | None, region: str | None) -> None:
    """Refuse what the client takes and then panics of in each request, without a sentence.

    Raises:
        LastingError: A setting is none that a request can be made with.
    """
    if parts.scheme == "s3":
        if endpoint:
            _require_address(endpoint, "the endpoint")
        region = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if region and not _REGION.fullmatch(region):
            raise UnusableError(
                f"the region is {region!r}, which is no name of one; write it like eu-west-1"
            )
    elif parts.scheme in _AZURE:
        for name in _AZURE_ENDPOINTS:
            if url := os.environ.get(name):
                _require_address(url, name)
    if re.search(r"[\x00-\x20\x7f]", bucket := bucket_of(parts)):
        raise UnusableError(f"the bucket is {bucket!r}; write its name without spaces")
    for name in _CREDENTIALS.get(parts.scheme, ()):
        if re.search(r"[\x00-\x1f\x7f]", os.environ.get(name, "")):
            # A Secret that is made of a file has the line break at its end.
            raise CredentialsError(
                f"{name} has a line break or another control character in it; write it without "
                "one into the Secret that storage.credentialsSecret names, as `kubectl create "
                "secret generic --from-literal` does"
            )


def _require_address(url: str, what: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.port != 0 and parts.hostname is not None and parts.netloc.isascii()
    except ValueError:
        usable = False
    if not usable or not _ADDRESS.fullmatch(url):
        shown = re.sub(r".*@|[?#].*", "", url, flags=re.DOTALL)  # without a password
        raise UnusableError(
            f"{what} is {shown!r}, which is no address of a server; write it with http:// or "
            "https:// and without credentials, like https://minio.example.com:9000"
        )


def open_single_deletes(uri: str) -> Any:
    """The obstore store that deletes one object of an Azure folder in a request of its own.

    Azure's client sends every delete as a batch, and Azurite 3.37.0 answers one that an account's
    SAS signs with HTTP 500 (findings/azurite_batch_of_an_account_sas.sh).

    Returns:
        None where the folder is not Azure's or there is another credential than a SAS.
    """
    parts = urlsplit(uri)
    signature = os.environ.get("AZURE_STORAGE_SAS_KEY") or os.environ.get("AZURE_STORAGE_SAS_TOKEN")
    if parts.scheme not in _AZURE or not signature or "AZURE_STORAGE_ACCOUNT_KEY" in os.environ:
        return None
    service = _azure_service(_azure_account(uri))
    folder = f"{service}/{bucket_of(parts)}/{quote(unquote(parts.path).strip('/'))}".rstrip("/")
    options = {**CLIENT, **_authorities(), "allow_http": service.startswith("http://")}
    return HTTPStore.from_url(
        f"{folder}?{signature.lstrip('?')}", client_options=options, retry_config=RETRIES
    )


def _azure_service(account: str) -> str:
    """The account's address, by the variables that Azure's client reads."""
    if os.environ.get("AZURE_STORAGE_USE_EMULATOR", "").lower() == "true":
        emulator = os.environ.get("AZURITE_BLOB_STORAGE_URL", "http://127.0.0.1:10000")
        return f"{emulator.rstrip('/')}/{account}"
    named = next(filter(None, map(os.environ.get, _AZURE_ENDPOINTS)), None)
    return (named or f"https://{account}.blob.core.windows.net").rstrip("/")


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


def speaks_tls(endpoint: str | None) -> bool:
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


def bucket_of(parts: SplitResult) -> str:
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
