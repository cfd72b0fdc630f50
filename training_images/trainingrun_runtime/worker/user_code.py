"""The user's code and packages that are not in the image, for the driver and for all ranks.

The driver downloads the zip, verifies it, installs the requirements beside it, and gives the folder
to Ray as the `working_dir` of its job; Ray passes it on to every node, and each of its processes
begins there. Ray's own download (`working_dir: s3://…`) needs clients of the clouds that the image
has not, verifies nothing and gives up when the bucket does not answer. Nor is its `runtime_env:
{pip: …}` used: where the image's Python is a virtual environment, Ray copies that as a whole on
every node, gigabytes with PyTorch in it, and the driver, which runs the script, has none of it.
"""

import hashlib
import importlib
import itertools
import json
import logging
import lzma
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from trainingrun_protocol.contract import (
    MAX_CODE_BYTES,
    MAX_CODE_FILES,
    MAX_UNPACKED_BYTES,
    ContractCode,
    RunContract,
)

from ..state_directory import state_directory
from ..store.bucket import Bucket
from ..store.storage_errors import AbsentError, StorageError
from ..store.storage_retry import StorageRetry

log = logging.getLogger(__name__)

RECORD = "code.json"
"""Object of the run's folder with the digest of its code, written once."""
PACKAGES = ".trainingrun-packages"
"""Folder of the installed requirements, in the folder of the code."""
_BROKEN = (zipfile.BadZipFile, zlib.error, lzma.LZMAError)
_DIGEST = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
KEPT = ("ray", "torch")
"""Packages that stay those of the image: the runtime is made for its Ray, and PyTorch for its
drivers."""
TIMEOUT_S = 1800
IMAGE = "image.pth"
"""Names the folders of the image's packages."""
_OFFLINE = ("Retrying (Retry(", "NewConnectionError", "NameResolutionError", "ReadTimeoutError")
"""What pip prints where an index does not answer; its errors then name a missing package."""


class CodeError(Exception):
    """The code or the requirements cannot be used; the text is one sentence."""


class Uninstallable(Exception):
    """The requirements cannot be installed; the text is one sentence."""


class IndexSilent(Exception):
    """No package index answers; a later try may succeed."""


@dataclass(frozen=True)
class UserCode:
    """The folder with code and packages, unpacked on the head."""

    folder: Path
    """Where the driver begins to work, with the code and `PACKAGES`."""
    package: Path
    """Its content as a zip file, for Ray."""
    search: tuple[str, ...]
    """Where Python finds modules beside the folder itself: relative to it, or in the image."""

    def runtime_environment(self) -> dict[str, Any]:
        """The runtime environment of the driver's job, as `ray.init` takes it."""
        return {
            "working_dir": str(self.package),
            # Python makes relative paths absolute at its start, which is in the folder.
            "env_vars": {"PYTHONPATH": os.pathsep.join(self.search)},
        }

    def enter(self) -> None:
        """Make this process work in the folder and import from it, as those of Ray do."""
        places = [str(self.folder), *(str(self.folder / place) for place in self.search)]
        os.chdir(self.folder)
        sys.path[:0] = [place for place in places if place not in sys.path]
        inherited = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([*places, *([inherited] if inherited else [])])
        importlib.invalidate_caches()


def enter_on_rank() -> None:
    """Work in the folder of the code again: Ray Train moves each rank into an empty one.

    Commands that the rank starts find the modules as well, wherever they work.
    """
    # Ray puts the folder in front, as unpacked on this node.
    places = os.environ["PYTHONPATH"].split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(os.path.join(places[0], each) for each in places)
    os.chdir(places[0])


def prepare(contract: RunContract, bucket: Bucket, retry: StorageRetry) -> UserCode | None:
    """Fetch what the run needs beside its image; None: nothing.

    Args:
        contract: names the code and the requirements.
        bucket: the run's folder, which holds the digest of its code.
        retry: repeats requests while the store does not answer.

    Raises:
        CodeError: the user has to change something.
        Uninstallable: the same.
        StorageError: an error of the store persisted.
    """
    if contract.code is None and not contract.requirements:
        return None
    home = Path(tempfile.mkdtemp(prefix="code-", dir=state_directory()))
    folder = home / "code"
    folder.mkdir()
    search = []
    if contract.code is not None:
        archive = home / "code.zip"
        digest = _fetch(contract.code, archive, retry)
        unpack(archive, folder, f"training.code.uri {contract.code.uri}")
        archive.unlink()
        search += _beside_the_script(contract, folder)
        # Once it is known to be usable: what is recorded can no longer be corrected.
        _keep_the_same(contract.code, digest, bucket, retry)
    if contract.requirements:
        install(contract.requirements, folder / PACKAGES)
        search.append(PACKAGES)
    # Without a working_dir, Ray has its processes import from the driver's.
    search.append(os.getcwd())
    return UserCode(folder, _package(folder, home / "package.zip"), tuple(search))


def _fetch(code: ContractCode, archive: Path, retry: StorageRetry) -> str:
    """Download the zip; its SHA-256."""
    try:
        digest = retry(lambda: _download(code, archive))
    except AbsentError:
        raise CodeError(
            f"training.code.uri {code.uri} does not exist; upload the zip file, as `trainingrun "
            "submit --code` does, or create the run with the right uri"
        ) from None
    except StorageError as error:
        if not error.waited:
            raise
        # The run's own bucket answers, so this one is not what the user means.
        said = str(error).replace("storage.uri", "training.code.uri")
        raise CodeError(f"training.code.uri {code.uri} cannot be read: {said}") from None
    named = _DIGEST.search(code.uri.rpartition("/")[2])
    if named and named[0] != digest:
        raise CodeError(
            f"training.code.uri {code.uri} has other content than its name says (SHA-256 "
            f"{digest[:12]}…); upload the zip file again"
        )
    return digest


def _download(code: ContractCode, archive: Path) -> str:
    digest, size = hashlib.sha256(), 0
    with archive.open("wb") as file:
        for piece in _pieces(code):
            size += len(piece)
            if size > MAX_CODE_BYTES:
                raise CodeError(
                    f"training.code.uri {code.uri} is larger than {_mib(MAX_CODE_BYTES)}; put "
                    "data into the bucket, and large packages into the image"
                )
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()


def _pieces(code: ContractCode) -> Iterator[bytes]:
    parts = urlsplit(code.uri)
    if parts.scheme == "file":
        # Not as a Bucket, which makes a folder that is not there.
        try:
            with Path(unquote(parts.path)).open("rb") as file:
                while piece := file.read(1024**2):
                    yield piece
        except FileNotFoundError:
            raise AbsentError(code.uri) from None
        except OSError as error:
            raise CodeError(
                f"training.code.uri {code.uri} cannot be read: {error.strerror}; correct it"
            ) from None
        return
    folder, _, name = code.uri.rpartition("/")
    yield from map(bytes, Bucket.open(folder, code.endpoint, code.region).stream(name))


def _keep_the_same(code: ContractCode, digest: str, bucket: Bucket, retry: StorageRetry) -> None:
    """All attempts of a run use the same code: checkpoints were made with it."""
    record = json.dumps({"sha256": digest}).encode()
    if not retry(lambda: bucket.create(RECORD, record)):
        raise CodeError(
            f"training.code.uri {code.uri} has other content than when the run began; restore it, "
            "or create another run for other code"
        )


def unpack(archive: Path, folder: Path, name: str) -> None:
    """Unpack a zip file.

    Args:
        archive: The zip file.
        folder: An empty folder for its files.
        name: What the file is called in errors.

    Raises:
        CodeError: It is no zip file, is too large, or has a file that is not below the folder.
    """
    with _broken_zips(name), zipfile.ZipFile(archive) as found:
        entries = [entry for entry in found.infolist() if not entry.is_dir()]
        for entry in entries:
            if not _is_inside(entry):
                raise CodeError(
                    f"{name} holds {entry.filename[:200]!r}, which is a link or is not below its "
                    "folder; pack plain files alone"
                )
        if sum(entry.file_size for entry in entries) > MAX_UNPACKED_BYTES:
            raise CodeError(
                f"{name} is larger than {_mib(MAX_UNPACKED_BYTES)} when it is unpacked; put data "
                "into the bucket, and large packages into the image"
            )
        if len(entries) > MAX_CODE_FILES:
            raise CodeError(f"{name} holds more than {MAX_CODE_FILES} files; pack the code alone")
        # ZipFile reads no more of a file than the directory says.
        for entry in entries:
            path = Path(found.extract(entry, folder))
            if entry.external_attr >> 16 & stat.S_IXUSR:
                path.chmod(0o755)


@contextmanager
def _broken_zips(name: str) -> Iterator[None]:
    try:
        yield
    except (*_BROKEN, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise CodeError(
            f"{name} is not a zip file that can be read ({str(error)[:200]}); pack it again"
        ) from None
    except (FileExistsError, IsADirectoryError, NotADirectoryError):
        raise CodeError(f"{name} holds a file and a folder of one name; pack it again") from None


def _is_inside(entry: zipfile.ZipInfo) -> bool:
    path = PurePosixPath(entry.filename)
    unsafe = path.is_absolute() or ".." in path.parts or "\\" in entry.filename
    return not unsafe and not stat.S_ISLNK(entry.external_attr >> 16)


def _beside_the_script(contract: RunContract, folder: Path) -> list[str]:
    """The script's own folder, from which it imports, if it is not that of the code itself."""
    script, field = contract.script, "training.script.path"
    if contract.torchrun is not None:
        script, field = contract.torchrun.script, "training.torchrun.script.path"
    if script is None or Path(script).is_absolute():
        return []
    if not (folder / script).is_file():
        uri = contract.code.uri if contract.code else ""
        raise CodeError(
            f"{field} {script} is not a file of training.code.uri {uri}; "
            "paths are relative to the top of the zip file"
        )
    beside = str(PurePosixPath(script).parent)
    return [] if beside == "." else [beside]


def _package(folder: Path, target: Path) -> Path:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    with zipfile.ZipFile(
        target, "w", zipfile.ZIP_DEFLATED, compresslevel=1, strict_timestamps=False
    ) as package:
        for file in files:
            package.write(file, file.relative_to(folder).as_posix())
    size = target.stat().st_size
    if size > MAX_UNPACKED_BYTES:
        raise CodeError(
            f"training.requirements take {_mib(size)} with all that they need, and Ray passes "
            f"{_mib(MAX_UNPACKED_BYTES)} to its nodes at most; put the large ones into the image"
        )
    return target


def _mib(size: int) -> str:
    return f"{size / 1024**2:.0f} MiB"


def install(requirements: Sequence[str], target: Path) -> None:
    """Install packages that this Python does not have yet into `target`.

    What the image has, and what fits, is not installed again. pip reads its own environment
    variables, such as PIP_INDEX_URL, PIP_FIND_LINKS and PIP_NO_INDEX.

    Args:
        requirements: Lines as of a requirements file; paths are relative to the parent of `target`.
        target: A folder that does not exist yet.

    Raises:
        Uninstallable: The user has to change something.
        IndexSilent: A package index cannot be reached.
    """
    if util.find_spec("pip") is None:
        raise Uninstallable(
            "training.requirements need pip, and this Python has none; use an image that has it, "
            "or put the packages into the image"
        )
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=target.parent.parent) as scratch:
        folder = Path(scratch)
        packages = _environment(folder / "environment")
        lines, kept = folder / "requirements.txt", folder / "kept.txt"
        lines.write_text("".join(f"{line}\n" for line in requirements))
        kept.write_text("".join(f"{name}=={found}\n" for name, found in _kept()))
        command = [str(folder / "environment/bin/python"), "-m", "pip", "install"]
        command += ["--no-input", "--no-cache-dir", "--no-compile"]
        command += ["--disable-pip-version-check", "--requirement", str(lines)]
        command += ["--constraint", str(kept)]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=TIMEOUT_S,
                check=False,
                cwd=target.parent,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        except subprocess.TimeoutExpired:
            raise IndexSilent(
                f"pip did not install training.requirements within {TIMEOUT_S} s; check the "
                "package index, or put the packages into the image"
            ) from None
        output = _without_credentials(done.stdout)
        log.info("pip: %s", output)
        if done.returncode:
            raise _pip_error(output, requirements)
        (packages / IMAGE).unlink()
        shutil.move(packages, target)
    log.info("training.requirements were installed in %.1f s", time.monotonic() - began)


def _environment(folder: Path) -> Path:
    """Make a virtual environment that has the packages of this Python; its own site-packages.

    pip leaves what is outside of an environment as it is.
    """
    venv.EnvBuilder(system_site_packages=True, symlinks=True).create(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    ours = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages / IMAGE).write_text("".join(f"{path}\n" for path in ours))
    return packages


def _kept() -> list[tuple[str, str]]:
    found = []
    for name in KEPT:
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:  # an image without PyTorch
            continue
    return found


def _pip_error(output: str, requirements: Sequence[str]) -> Exception:
    if any(sign in output for sign in _OFFLINE):
        return IndexSilent(
            "training.requirements cannot be installed, for a package index cannot be reached; "
            "check PIP_INDEX_URL in training.env and the network"
        )
    said = _pip_reason(output)
    # pip names the lines of the file, which the user has not seen.
    said = re.sub(r" ?\(from line \d+ of \S+\)", "", said)
    said = re.sub(r"-r \S+ \(line (\d+)\)", lambda found: requirements[int(found[1]) - 1], said)
    return Uninstallable(
        f"training.requirements cannot be installed: {said[:500].rstrip('.')}; correct the line, "
        "or set PIP_INDEX_URL or PIP_FIND_LINKS in training.env to where the package is"
    )


def _pip_reason(output: str) -> str:
    """What pip says went wrong, on one line."""
    lines = output.splitlines()
    if "The conflict is caused by:" in lines:
        after = lines[lines.index("The conflict is caused by:") + 1 :]
        conflict = itertools.takewhile(lambda line: line.startswith(" "), after)
        return ", but ".join(line.strip() for line in conflict)
    errors = [line[6:].strip() for line in lines if line.startswith("ERROR:")]
    return (errors or [line.strip() for line in lines if line.strip()] or ["pip failed"])[-1]


def _without_credentials(text: str) -> str:
    return re.sub(r"://[^/\s@]*@", "://", text)
