"""Object stores that others write, each pinned and started on loopback with a bucket `runs`."""

import base64
import contextlib
import fcntl
import hashlib
import hmac
import json
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
from support.ports import free_port, free_ports
from trainingrun_protocol.contract import CLAIM_FOLDERS_ENV

CACHE = Path.home() / ".cache" / "trainingrun-test-stores"
MOTO = "5.2.5"
RCLONE = "github.com/rclone/rclone@v1.76.0"
SEAWEEDFS = "4.53", "v0.0.0-20261109003541-7506e5f91cd6"
"""Its own version, and that of its Go module."""
S3PROXY = "3.1.0"
S3RVER = "3.7.1"
GCP_STORAGE_EMULATOR = "2026.7.19"
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
def running_rclone(folder: Path) -> Iterator[Store]:
    """Keeps objects as files, and takes the one pair of keys."""
    (folder / "objects" / "runs").mkdir(parents=True)
    port = free_port()
    command = [_rclone(), "serve", "s3", "--addr", f"127.0.0.1:{port}", "--config", ""]
    command += ["--auth-key", f"{s3.ACCESS_KEY},{s3.SECRET_KEY}", str(folder / "objects")]
    with _served(command, f"http://127.0.0.1:{port}", folder, makes_bucket=False):
        yield Store("s3://runs", f"http://127.0.0.1:{port}", _of_s3())


@contextlib.contextmanager
def running_seaweedfs(folder: Path) -> Iterator[Store]:
    """All its servers in one process; without users of its own it takes any secret."""
    data = folder / "data"
    data.mkdir()
    names = [f"{part}.port{end}" for part in ("master", "volume", "filer") for end in ("", ".grpc")]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    port, grpc = free_ports(2)
    command = [_seaweedfs(), "server", "-s3", f"-dir={data}", "-ip=127.0.0.1"]
    command += [f"-{name}={number}" for name, number in ports.items()]
    command += [f"-s3.port={port}", f"-s3.port.grpc={grpc}", "-s3.port.iceberg=0"]
    command += ["-s3.port.lance=0", "-master.telemetry=false", "-master.volumeSizeLimitMB=64"]
    with _served(command, f"http://127.0.0.1:{port}", folder):
        yield Store("s3://runs", f"http://127.0.0.1:{port}", _of_s3())


@contextlib.contextmanager
def running_s3proxy(folder: Path) -> Iterator[Store]:
    """Keeps objects as files, and asks for no keys."""
    (folder / "objects").mkdir()
    port = free_port()
    settings = folder / "s3proxy.conf"
    settings.write_text(
        f"s3proxy.authorization=none\ns3proxy.endpoint=http://127.0.0.1:{port}\n"
        "jclouds.provider=filesystem-nio2\njclouds.identity=none\njclouds.credential=none\n"
        f"jclouds.filesystem.basedir={folder / 'objects'}\n"
    )
    command = ["java", "-cp", f"{_s3proxy()}/*", "org.gaul.s3proxy.Main"]
    command += ["--properties", str(settings)]
    with _served(command, f"http://127.0.0.1:{port}", folder):
        yield Store("s3://runs", f"http://127.0.0.1:{port}", _of_s3())


@contextlib.contextmanager
def running_s3rver(folder: Path) -> Iterator[Store]:
    """Keeps objects as files, and takes the one pair of keys that it documents."""
    port = free_port()
    command = [_s3rver(), "--address", "127.0.0.1", "--port", f"{port}", "--silent"]
    command += ["--directory", str(folder), "--configure-bucket", "runs"]
    keys = {"AWS_ACCESS_KEY_ID": "S3RVER", "AWS_SECRET_ACCESS_KEY": "S3RVER"}
    with _served(command, f"http://127.0.0.1:{port}", folder, makes_bucket=False):
        yield Store("s3://runs", f"http://127.0.0.1:{port}", {**_of_s3(), **keys})


@contextlib.contextmanager
def running_gcp_storage_emulator(folder: Path) -> Iterator[Store]:
    """Speaks Google's JSON; of the XML that the client sends it takes what is the same."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    account = folder / "account.json"
    fields = {"gcs_base_url": url, "disable_oauth": True}
    fields |= dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    account.write_text(json.dumps(fields))
    command = [_gcp_storage_emulator(), "start", "--host", "127.0.0.1", "--port", f"{port}"]
    command += ["--in-memory", "--default-bucket", "runs"]
    with _served(command, url, folder, makes_bucket=False):
        yield Store("gs://runs", None, {"GOOGLE_SERVICE_ACCOUNT": str(account)})


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


@contextlib.contextmanager
def a_claim(folder: Path) -> Iterator[Store]:
    """A folder of this machine in place of a mount."""
    (folder / "lost+found").mkdir()
    yield Store("pvc://runs", None, {CLAIM_FOLDERS_ENV: f"runs={folder}"})


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
def _served(
    command: list[str], url: str, folder: Path, *, makes_bucket: bool = True
) -> Iterator[None]:
    """A server, with the bucket `runs`, until the block ends.

    Args:
        command: That starts it.
        url: Where it answers then.
        folder: Where it works, and for its log.
        makes_bucket: Whether the bucket is not there yet, and it is made without any key.
    """
    log = folder / "server.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            deadline = time.monotonic() + START_SECONDS
            while not (_made(f"{url}/runs") if makes_bucket else _answers(url)):
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


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def _moto() -> str:
    return _of_pip("moto", MOTO, "moto_server", "moto[server]")


def _gofakes3() -> str:
    folder = CACHE / GOFAKES3.rpartition("/")[2]
    if not shutil.which("go"):
        raise Unavailable("no gofakes3: there is no Go")
    install = ["env", f"GOBIN={folder}", "go", "install", GOFAKES3]
    return _installed(folder / "gofakes3", install)


def _rclone() -> str:
    folder = CACHE / RCLONE.rpartition("/")[2]
    if not shutil.which("go"):
        raise Unavailable("no rclone: there is no Go")
    return _installed(
        folder / "rclone", ["env", f"GOBIN={folder}", "CGO_ENABLED=0", "go", "install", RCLONE]
    )


def _seaweedfs() -> str:
    """Built in a module of its own, as `go install` takes none that replaces another one."""
    folder = CACHE / f"seaweedfs-{SEAWEEDFS[0]}"
    if not shutil.which("go"):
        raise Unavailable("no SeaweedFS: there is no Go")
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "weed").exists():
        (folder / "go.mod").write_text(_GO_MOD)
    build = ["env", "CGO_ENABLED=0", "go", "-C", str(folder), "build", "-mod=mod"]
    return _installed(folder / "weed", [*build, "github.com/seaweedfs/seaweedfs/weed"])


_GO_MOD = f"""module seaweedfs-of-tests
go 1.26
require github.com/seaweedfs/seaweedfs {SEAWEEDFS[1]}
replace github.com/tyler-smith/go-bip39 => github.com/cosmos/go-bip39 v1.0.0
"""


def _s3proxy() -> Path:
    """The folder with its archives."""
    folder = CACHE / f"s3proxy-{S3PROXY}"
    for tool in ("java", "mvn"):
        if not shutil.which(tool):
            raise Unavailable(f"no S3Proxy: there is no {tool} (Debian: apt install maven)")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pom.xml").write_text(_POM)
    copy = ["mvn", "--batch-mode", "--quiet", "--file", str(folder / "pom.xml")]
    copy += ["dependency:copy-dependencies", f"-DoutputDirectory={folder / 'lib'}"]
    _installed(folder / "lib" / f"s3proxy-{S3PROXY}.jar", [*copy, "-DincludeScope=runtime"])
    return folder / "lib"


_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tests</groupId><artifactId>s3proxy-of-tests</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.gaul</groupId><artifactId>s3proxy</artifactId><version>{S3PROXY}</version>
  </dependency></dependencies>
</project>
"""


def _s3rver() -> str:
    folder = CACHE / f"s3rver-{S3RVER}"
    if not shutil.which("npm"):
        raise Unavailable("no s3rver: there is no npm")
    install = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder)]
    return _installed(folder / "node_modules" / ".bin" / "s3rver", [*install, f"s3rver@{S3RVER}"])


def _gcp_storage_emulator() -> str:
    name = "gcp-storage-emulator"
    return _of_pip(name, GCP_STORAGE_EMULATOR, name, name)


def _of_pip(name: str, version: str, program: str, package: str) -> str:
    """A program of a Python package, in an environment of its own."""
    folder = CACHE / f"{name}-{version}"
    python = str(folder / "bin" / "python")
    return _installed(
        folder / "bin" / program,
        [sys.executable, "-m", "venv", str(folder)],
        [python, "-m", "pip", "install", "--quiet", f"{package}=={version}"],
    )


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
    "rclone serve s3": (RCLONE.partition("@v")[2], running_rclone),
    "SeaweedFS": (SEAWEEDFS[0], running_seaweedfs),
    "S3Proxy": (S3PROXY, running_s3proxy),
    "s3rver": (S3RVER, running_s3rver),
    "gcp-storage-emulator": (GCP_STORAGE_EMULATOR, running_gcp_storage_emulator),
    "Azurite, account key": (AZURITE, running_azurite_with_key),
    "Azurite, SAS": (AZURITE, running_azurite_with_sas),
    "claim, on a local folder": ("-", a_claim),
    "local folder": ("-", a_local_folder),
}
"""By the name in docs/stores.md: version, and how it is started."""

FAULTS = {
    "S3Proxy": "answers a delete of several objects (DeleteObjects) with NotImplemented",
    "s3rver": "ignores If-None-Match, so it cannot keep two drivers apart",
    # It has no TLS, without which the client does not speak to Google.
    "gcp-storage-emulator": "cannot be reached",
}
"""By server: what `check` refuses it with. Those without one hold the contract."""

QUICK = ("versitygw", "moto", "Azurite, account key", "claim, on a local folder", "local folder")
"""Those of `make test`."""
