"""A real S3 server for tests: versitygw on loopback, its objects in a temporary folder."""

import contextlib
import os
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.binaries import Unavailable
from support.ports import free_port
from support.tls import Tls

MODULE = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
CACHE = Path.home() / ".cache" / "trainingrun-envtest"
ACCESS_KEY = "tester"
SECRET_KEY = "tester-secret"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""The environment of a process that may use the server."""
START_SECONDS = 60
_ANYBODY = ssl.create_default_context()
_ANYBODY.check_hostname, _ANYBODY.verify_mode = False, ssl.CERT_NONE


@dataclass
class S3Server:
    """A running server with one bucket, `runs`; its objects are files below `folder`."""

    url: str
    folder: Path
    _command: list[str]
    _log: Path
    _niceness: int = 0
    _process: subprocess.Popen[bytes] | None = None

    def file(self, path: str) -> Path:
        """The file behind an object of the bucket `runs`."""
        return self.folder / "runs" / path

    @property
    def running(self) -> bool:
        """Whether it was started, and not stopped since."""
        return self._process is not None

    def start(self) -> None:
        """Start it, or start it again with the objects that it had, at the same address."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY},
                start_new_session=self._niceness > 0,
            )
        if self._niceness:
            _give_way(self._process.pid, self._niceness)
        _wait_for(f"{self.url}/health", self._process, self._log)

    def stop(self) -> None:
        """End it at once; from now on nobody listens."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def versitygw() -> str:
    """The server's path: KUBEBUILDER_ASSETS, PATH, the cache, else compiled with Go."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    for folder in (assets, None, str(CACHE)):
        if found := shutil.which("versitygw", path=folder):
            return found
    if not shutil.which("go"):
        raise Unavailable(
            "no versitygw: it is not in KUBEBUILDER_ASSETS, not on PATH, and there is no Go"
        )
    CACHE.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["go", "install", MODULE],
        env={**os.environ, "GOBIN": str(CACHE)},
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    if done.returncode:
        raise Unavailable(f"go install {MODULE} failed: {done.stderr[-2000:]}")
    return str(CACHE / "versitygw")


@contextlib.contextmanager
def running_s3(
    folder: Path,
    *,
    readonly: bool = False,
    niceness: int = 0,
    tls: Tls | None = None,
    users: Path | None = None,
) -> Iterator[S3Server]:
    """Start a server and stop it by its own process, whatever happens.

    Args:
        folder: Where it keeps everything. Two servers may share one, such as a read-only one.
        readonly: Refuse every write.
        niceness: Its priority, also beside processes of other sessions; 19 is the lowest.
        tls: Its certificate; without one it has no TLS.
        users: Folder for users beside its owner; without one there are none.

    Raises:
        Unavailable: There is no server on this machine and none can be built.
    """
    objects, metadata = folder / "objects", folder / "metadata"
    (objects / "runs").mkdir(parents=True, exist_ok=True)
    metadata.mkdir(exist_ok=True)
    port = free_port()
    # Metadata in files beside: temporary folders often take no extended attributes, and without
    # metadata this server accepts a second conditional create.
    command = [versitygw(), "--port", f"127.0.0.1:{port}", "--health", "/health", "--quiet"]
    command += ["--readonly"] if readonly else []
    command += ["--iam-dir", str(users)] if users else []
    command += ["--cert", str(tls.certificate), "--key", str(tls.key)] if tls else []
    command += ["posix", "--sidecar", str(metadata), str(objects)]
    if niceness:
        command = ["nice", "-n", str(niceness), *command]
    log = folder / f"server-{port}.log"
    url = f"https://localhost:{port}" if tls else f"http://127.0.0.1:{port}"
    server = S3Server(url, objects, command, log, niceness)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _give_way(leader: int, niceness: int) -> None:
    """Linux shares the CPUs between sessions first, where it groups processes by session."""
    group = Path(f"/proc/{leader}/autogroup")
    with contextlib.suppress(OSError):
        group.write_text(str(niceness))


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"versitygw ended: {log.read_text()[-2000:]}")
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(url, timeout=2, context=_ANYBODY).close()
            return
        time.sleep(0.05)
    raise RuntimeError(f"versitygw does not answer: {log.read_text()[-2000:]}")
