"""`trainingrun submit`: the code into the run's bucket, then the run into the cluster."""

import copy
import hashlib
import io
import os
import re
import subprocess
import tempfile
import zipfile
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import typer

from trainingrun_protocol.contract import MAX_CODE_BYTES, MAX_CODE_FILES, MAX_UNPACKED_BYTES
from trainingrun_protocol.plain_text import size

from ..api.parse import InvalidRunError, parse
from ..api.storage_spec import Storage
from .errors import CliError, bucket_access
from .manifest_files import Documents

FOLDER = "code"
"""Folder below `storage.uri` in which zip files are kept, each named by its digest."""

_LEFT_OUT = ("__pycache__", ".git")
_DATE = (1980, 1, 1, 0, 0, 0)
_MIB = 1024**2
_SECRETS = (
    ".env",
    ".env.*",
    ".netrc",
    "*.key",
    "*.pem",
    "id_ed25519*",
    "id_rsa*",
    "kubeconfig",
)
"""Names of files that usually hold credentials."""
_SUBMODULE = "160000"
"""Mode of a submodule in git's index."""
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
"""Bytes of a name as Python has those that are not UTF-8."""
_OPTION = re.compile(r"--[\w-]+|-\w?")


@dataclass(frozen=True)
class Submission:
    """A run with its code, all of it valid; nothing is uploaded or applied yet."""

    manifest: dict[str, Any]
    """The TrainingRun as it is to be applied."""
    config_maps: list[dict[str, Any]]
    """The ConfigMaps of its file, which are applied before it."""
    storage: Storage
    """Its bucket."""
    packed: bytes | None
    """The zip file that `training.code` names; None: no code is submitted."""

    @classmethod
    def prepare(
        cls, found: Documents, code: Path | None, requirements: Path | None, file: Path
    ) -> "Submission":
        """Put code and requirements into the file's TrainingRun.

        Args:
            found: What is in the file.
            code: A folder to be packed, for `training.code`.
            requirements: A file of pip's, for `training.requirements`.
            file: The file itself, which is no code. In the zip file it would change
                `training.code` with every field of the run.

        Raises:
            CliError: One of them cannot be used.
        """
        storage = found.only_run().spec.storage
        if found.others:
            raise CliError(
                f"{found.name}: holds {', '.join(found.others)} as well, and submit applies "
                "TrainingRuns and ConfigMaps alone; apply the others with kubectl and move them to "
                "a file of their own"
            )
        manifest = copy.deepcopy(found.manifests[0])
        training, packed = manifest["spec"]["training"], None
        if requirements is not None:
            training["requirements"] = requirement_lines(requirements)
        if code is not None:
            if storage.uri.startswith("file:"):
                raise CliError(
                    f"storage.uri is {storage.uri}, a folder of the pods that this machine does "
                    "not have; use a bucket, or put the code into the image"
                )
            packed = pack(code, file)
            training["code"] = {"uri": f"{_folder(storage)}/{_name(packed)}"}
        try:
            parse(manifest)
        except InvalidRunError as error:
            raise CliError(f"{found.name}: {error}") from None
        return cls(manifest, found.config_map_manifests, storage, packed)

    def upload(self, endpoint: str | None) -> None:
        """Put the code into the bucket, unless it is there already, and say so.

        Args:
            endpoint: URL of the bucket's service as this machine reaches it; default: the run's.

        Raises:
            CliError: The bucket does not take it.
        """
        if self.packed is None:
            return
        name, folder = _name(self.packed), _folder(self.storage)
        with bucket_access("the code cannot be uploaded: "):
            from trainingrun_runtime.store.bucket import Bucket

            bucket = Bucket.open(folder, endpoint or self.storage.endpoint, self.storage.region)
            if bucket.size(name) == len(self.packed):
                typer.echo(f"code {name[:12]} is in {folder} already")
                return
            bucket.upload(name, self.packed)
        typer.echo(f"code {name[:12]} uploaded to {folder}, {size(len(self.packed))}")


def _folder(storage: Storage) -> str:
    return f"{storage.uri.rstrip('/')}/{FOLDER}"


def _name(packed: bytes) -> str:
    return f"{hashlib.sha256(packed).hexdigest()}.zip"


def pack(folder: Path, manifest: Path | None = None) -> bytes:
    """The files of a folder, without those that git ignores, as a zip file.

    The same files give the same bytes: the order is that of the names, and no time is kept.

    Args:
        folder: Holds the code.
        manifest: A file that is left out; it need not be in the folder.

    Raises:
        CliError: The folder is none, holds nothing, too much or a secret, or cannot be read.
    """
    if not folder.is_dir():
        raise CliError(f"--code {folder} is not a folder")
    files = [
        file
        for file in _listed(folder, folder.resolve())
        if not set(file.parts) & set(_LEFT_OUT)
        and (manifest is None or (folder / file).resolve() != manifest.resolve())
    ]
    if not files:
        raise CliError(f"--code {folder} holds no file that git does not ignore")
    sizes = {file: (folder / file).stat().st_size for file in files}
    if sum(sizes.values()) > MAX_UNPACKED_BYTES or len(files) > MAX_CODE_FILES:
        raise CliError(_too_large(folder, sizes, MAX_UNPACKED_BYTES, "")) from None
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for file in sorted(files, key=Path.as_posix):
            try:
                content = (folder / file).read_bytes()
            except OSError as error:
                raise CliError(f"{folder / file} cannot be read: {error.strerror}") from None
            entry = zipfile.ZipInfo(file.as_posix(), _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix, wherever it is packed
            executable = (folder / file).stat().st_mode & 0o100
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            archive.writestr(entry, content)
    if packed.tell() > MAX_CODE_BYTES:
        raise CliError(_too_large(folder, sizes, MAX_CODE_BYTES, ", packed"))
    return packed.getvalue()


def requirement_lines(file: Path) -> list[str]:
    """The requirements in a file of pip's; comments, empty lines and line breaks are left out.

    Raises:
        CliError: The file cannot be read, or a line is an option, which `training.requirements` do
            not take.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")  # Windows writes a mark at the beginning
    except OSError as error:
        raise CliError(f"--requirements {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CliError(f"--requirements {file} is not UTF-8 text") from None
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        requirement = "" if line.startswith("#") else line.split(" #")[0].strip()
        if option := _OPTION.match(requirement):  # its value may hold credentials
            raise CliError(
                f"{file}: {option[0]} is an option of pip; write requirements alone there, "
                "and set options as variables in training.env, such as PIP_INDEX_URL"
            )
        if requirement:
            found.append(" ".join(requirement.split()))
    return found


def _listed(folder: Path, root: Path) -> list[Path]:
    """The files of a folder, relative to it: those that git tracks, and those it would add.

    `root` is the whole code, which no link may lead out of.
    """
    modes, names = _names(folder)
    found = []
    for name in names:
        path = folder / name
        if _NOT_UTF8.search(name):
            raise CliError(
                f"the name of {_shown(path)} is not UTF-8, as names in a zip file are; rename the "
                "file, or name it in .gitignore"
            )
        if path.is_symlink() and path.is_dir():
            raise CliError(
                f"{path} is a link to a folder, which a zip file does not hold; replace it by the "
                "folder, or name it in .gitignore"
            )
        if modes.get(name) == _SUBMODULE and not (path / ".git").exists():
            raise CliError(f"submodule {path} is not checked out; run git submodule update --init")
        if path.is_dir():  # a repository in the repository, such as a submodule
            found += [Path(name) / below for below in _listed(path, root)]
        elif path.is_file():  # not one that was deleted since it was added
            _check(path, root, tracked=name in modes)
            found.append(Path(name))
    return found


def _shown(path: Path) -> str:
    """A path whose bytes are no text, so that it can be printed."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _names(folder: Path) -> tuple[dict[str, str], list[str]]:
    """What git tracks, with its modes, and all of it together with what git would add."""
    with tempfile.TemporaryDirectory() as empty:
        options = ["-C", str(folder)]
        if not _in_repository(folder):
            # Of a folder without a repository git reads .gitignore as well, given an empty one.
            _git("init", "--quiet", "--bare", empty)
            options = [f"--git-dir={empty}", f"--work-tree={folder.absolute()}", *options]
        staged = _git(*options, "ls-files", "-z", "--stage", ".")
        others = _git(*options, "ls-files", "-z", "--others", "--exclude-standard", ".")
    modes = {}
    for entry in filter(None, staged.split("\0")):
        about, _, name = entry.partition("\t")
        modes[name] = about.split()[0]
    return modes, sorted({*modes, *others.split("\0")} - {""})


def _check(path: Path, root: Path, tracked: bool) -> None:
    if not path.resolve().is_relative_to(root):
        raise CliError(
            f"{path} is a link to {path.resolve()}, which is not in the folder; replace it by the "
            "file, or name it in .gitignore"
        )
    if not tracked and any(fnmatch(path.name.lower(), secret) for secret in _SECRETS):
        raise CliError(
            f"{path} looks like a secret, and the code is uploaded to the bucket; name it in "
            ".gitignore, or have git track it if it is none"
        )


def _in_repository(folder: Path) -> bool:
    done = _run("-C", str(folder), "rev-parse", "--is-inside-work-tree")
    if done.returncode and "not a git repository" not in done.stderr:
        raise _failed(done)
    return done.stdout.strip() == "true"


def _git(*arguments: str) -> str:
    done = _run(*arguments)
    if done.returncode:
        raise _failed(done)
    return done.stdout


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["git", *arguments],
            capture_output=True,
            text=True,
            errors="surrogateescape",
            env={**os.environ, "LC_ALL": "C"},  # its messages are compared
        )
    except FileNotFoundError:
        raise CliError("git is not installed; --code needs it to read .gitignore") from None


def _failed(done: subprocess.CompletedProcess[str]) -> CliError:
    return CliError(f"git cannot list the code: {' '.join(done.stderr.split())}")


def _too_large(folder: Path, sizes: dict[Path, int], limit: int, how: str) -> str:
    largest = sorted(sizes, key=lambda file: -sizes[file])[:3]
    shown = ", ".join(f"{file.as_posix()} ({sizes[file] / _MIB:.1f} MiB)" for file in largest)
    return (
        f"--code {folder} holds {len(sizes)} files of {sum(sizes.values()) / _MIB:.0f} MiB{how}, "
        f"and {MAX_CODE_FILES} files of {limit // _MIB} MiB are the most; name in .gitignore what "
        f"is no code: the largest are {shown}"
    )
