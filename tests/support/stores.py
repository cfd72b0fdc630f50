"""Object stores that others write, each pinned and started on loopback with a bucket `runs`."""

import base64
import contextlib
import fcntl
import hashlib
import hmac
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlencode

from support import azurite, s3
from support.binaries import Unavailable
from support.ports import free_port

CACHE = Path.home() / ".cache" / "trainingrun-test-stores"
MOTO = "5.2.5"
GOFAKES3 = "github.com/johannesboyne/gofakes3/cmd/gofakes3@v1.2.0"
AZURITE = azurite.PACKAGE.partition("@")[2]
VERSITYGW = s3.MODULE.partition("@")[2].removeprefix("v")
START_SECONDS = 120


@dataclass(frozen=True)
class Store:
    """A running server, or a folder of this machine."""

    uri: str
    """Of a bucket, a container or a folder."""
    endpoint: str | None
    environment: dict[str, str]
    """Of a process that may use it."""


@contextlib.contextmanager
def running_versitygw(folder: Path) -> Iterator[Store]:
    with s3.running_s3(folder) as server:
        yield Store("s3://runs", server.url, _of_s3())


@contextlib.contextmanager
def running_moto(folder: Path) -> Iterator[Store]:
    """Keeps objects in its memory, and takes any secret."""
    port = free_port()
    with _served([_moto(), "-H", "127.0.0.1", "-p", f"{port}"], f"http://127.0.0.1:{port}", folder):
        yield Store("s3://runs", f"http://127.0.0.1:{port}", _of_s3())


@contextlib.contextmanager
def running_gofakes3(folder: Path) -> Iterator[Store]:
    """Keeps objects in its memory, and takes any secret."""
    port = free_port()
    command = [_gofakes3(), "-backend", "memory", "-host", f"127.0.0.1:{port}"]
    with _served(command, f"http://127.0.0.1:{port}", folder):
        yield Store("s3://runs", f"http://127.0.0.1:{port}", _of_s3())


@contextlib.contextmanager
def running_azurite_with_key(folder: Path) -> Iterator[Store]:
    with azurite.running_azurite(folder) as environment:
        yield Store("az://runs", None, environment)


@contextlib.contextmanager
def running_azurite_with_sas(folder: Path) -> Iterator[Store]:
    """With a signature that ends, instead of the account's key."""
    with azurite.running_azurite(folder) as environment:
        environment.pop("AZURE_STORAGE_ACCOUNT_KEY")
        yield Store("az://runs", None, {**environment, "AZURE_STORAGE_SAS_KEY": _signature()})


@contextlib.contextmanager
def a_local_folder(folder: Path) -> Iterator[Store]:
    yield Store(f"file://{folder}/runs", None, {})


def _of_s3() -> dict[str, str]:
    return {**s3.CREDENTIALS, "AWS_REGION": "us-east-1"}


def _signature() -> str:
    """Of an hour, for the objects of the account: Azure's version 2018-11-09."""
    ends = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    fields = {"sp": "rwdlac", "ss": "b", "srt": "sco", "st": "", "se": ends, "sip": "",
              "spr": "https,http", "sv": "2018-11-09"}  # fmt: skip
    text = "\n".join([azurite.ACCOUNT, *fields.values(), ""])
    signed = hmac.new(base64.b64decode(azurite.KEY), text.encode(), hashlib.sha256).digest()
    given = {name: value for name, value in fields.items() if value}
    return urlencode({**given, "sig": base64.b64encode(signed).decode()})


@contextlib.contextmanager
def _served(command: list[str], url: str, folder: Path) -> Iterator[None]:
    """The server of S3's API, with the bucket `runs`, until the block ends."""
    log = folder / "server.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _made(f"{url}/runs"):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{command[0]} does not answer: {log.read_text()[-2000:]}")
                time.sleep(0.1)
            yield
        finally:
            process.kill()


def _made(bucket: str) -> bool:
    try:
        urllib.request.urlopen(urllib.request.Request(bucket, method="PUT"), timeout=5).close()
    except urllib.error.HTTPError:
        raise
    except OSError:
        return False
    return True


def _moto() -> str:
    folder = CACHE / f"moto-{MOTO}"
    python = str(folder / "bin" / "python")
    return _installed(
        folder / "bin" / "moto_server",
        [sys.executable, "-m", "venv", str(folder)],
        [python, "-m", "pip", "install", "--quiet", f"moto[server]=={MOTO}"],
    )


def _gofakes3() -> str:
    folder = CACHE / GOFAKES3.rpartition("/")[2]
    if not shutil.which("go"):
        raise Unavailable("no gofakes3: there is no Go")
    install = ["env", f"GOBIN={folder}", "go", "install", GOFAKES3]
    return _installed(folder / "gofakes3", install)


def _installed(binary: Path, *commands: list[str]) -> str:
    """The binary's path, once the commands have made it.

    Raises:
        Unavailable: One of them failed; the text has its output's end.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several processes of pytest one installs
        for command in () if binary.exists() else commands:
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
            if done.returncode:
                raise Unavailable(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
    return str(binary)


SERVERS: dict[str, tuple[str, Callable[[Path], contextlib.AbstractContextManager[Store]]]] = {
    "versitygw": (VERSITYGW, running_versitygw),
    "moto": (MOTO, running_moto),
    "gofakes3": (GOFAKES3.partition("@v")[2], running_gofakes3),
    "Azurite, account key": (AZURITE, running_azurite_with_key),
    "Azurite, SAS": (AZURITE, running_azurite_with_sas),
    "local folder": ("-", a_local_folder),
}
"""By the name in docs/stores.md: version, and how it is started."""
