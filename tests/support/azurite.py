"""A real Azurite, Microsoft's emulator of Azure's blobs, on loopback, with an account key."""

import base64
import contextlib
import fcntl
import hashlib
import hmac
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from support.binaries import CACHE, Unavailable
from support.ports import free_port

PACKAGE = "azurite@3.37.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of the account that every Azurite has; it is documented."""
CONTAINER = "runs"
START_SECONDS = 60
_VERSION = "2021-08-06"


def azurite() -> str:
    """The server's path: $AZURITE, PATH, the cache, else installed by npm into that cache.

    Raises:
        Unavailable: None of that works here; the text says what was tried.
    """
    if named := os.environ.get("AZURITE"):
        return named
    cached = CACHE / "azurite" / "node_modules" / ".bin"
    for folder in (None, str(cached)):
        if found := shutil.which("azurite-blob", path=folder):
            return found
    if not shutil.which("npm"):
        raise Unavailable("no azurite: it is neither $AZURITE nor on PATH, and there is no npm")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".azurite").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several processes of pytest one installs
        if not (cached / "azurite-blob").exists():
            command = ["npm", "install", "--no-audit", "--no-fund", "--prefix"]
            done = subprocess.run(
                [*command, str(cached.parents[1]), PACKAGE],
                capture_output=True,
                text=True,
                check=False,
                cwd="/",
            )
            if done.returncode:
                raise Unavailable(f"npm install {PACKAGE} failed: {done.stderr[-2000:]}")
    return str(cached / "azurite-blob")


@contextlib.contextmanager
def running_azurite(folder: Path) -> Iterator[dict[str, str]]:
    """The environment of a process that may use the container `runs` of a running server.

    Args:
        folder: For its log; objects are in its memory.

    Raises:
        Unavailable: There is no server on this machine and none can be installed.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [azurite(), "--silent", "--inMemoryPersistence", "--skipApiVersionCheck"]
    log = folder / "azurite.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*command, "--blobPort", f"{port}"],
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            _create_container(url, process, log)
            yield {
                "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
                "AZURE_STORAGE_ACCOUNT_KEY": KEY,
                "AZURE_STORAGE_USE_EMULATOR": "true",
                "AZURITE_BLOB_STORAGE_URL": url,
            }
        finally:
            process.kill()


def _create_container(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"azurite ended: {log.read_text()[-2000:]}")
        now = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = f"x-ms-date:{now}\nx-ms-version:{_VERSION}"
        resource = f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
        text = "\n".join(["PUT", *[""] * 11, headers, resource])
        signed = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256)
        request = urllib.request.Request(
            f"{url}/{ACCOUNT}/{CONTAINER}?restype=container",
            method="PUT",
            headers={
                "x-ms-date": now,
                "x-ms-version": _VERSION,
                "Content-Length": "0",
                "Authorization": f"SharedKey {ACCOUNT}:"
                f"{base64.b64encode(signed.digest()).decode()}",
            },
        )
        try:
            urllib.request.urlopen(request, timeout=5).close()
            return
        except urllib.error.HTTPError:
            raise
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"azurite does not answer: {log.read_text()[-2000:]}")
