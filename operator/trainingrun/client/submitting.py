"""The code of a run, as a zip file in the run's bucket; then the run, applied to the cluster."""

import copy
import hashlib
import io
import os
import re
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from trainingrun_protocol.contract import MAX_CODE_BYTES, MAX_CODE_FILES, MAX_UNPACKED_BYTES
from trainingrun_protocol.plain_text import size

from ..api.defaults import AppliedDefaults
from ..api.errors import RunError
from ..api.parse import InvalidRunError, parse
from ..api.storage_spec import Storage
from ..rendering.defaults import resolved
from .errors import NotFoundError, bucket_access
from .manifest_files import Documents
from .places import Say
from .sources import ENDED

if TYPE_CHECKING:
    from .kube import Kube

FOLDER = "code"
"""Folder below `storage.uri` in which zip files are kept, each named by its digest."""

_LEFT_OUT = ("__pycache__", ".git", "trainingrun-local")
_DATE = (1980, 1, 1, 0, 0, 0)
_MIB = 1024**2
_SECRETS = (
    "*.env",
    "*.key",
    "*.netrc",
    "*.p12",
    "*.pem",
    "*.pfx",
    "*huggingface/stored_tokens",
    "*huggingface/token",
    ".docker/config.json",
    ".dockercfg",
    ".dockerconfigjson",
    ".env.*",
    ".envrc",
    ".git-credentials",
    ".npmrc",
    ".pypirc",
    "application_default_credentials.json",
    "id_dsa*",
    "id_ecdsa*",
    "id_ed25519*",
    "id_rsa*",
    "kubeconfig",
)
"""Files that usually hold credentials, by the end of their path in lower case."""
_SECRET_FOLDERS = (".aws", ".azure", ".config/gcloud", ".gnupg", ".kube", ".ssh")
"""Folders of programs that keep credentials in them, also of a name that says nothing."""
_KEY_BYTES = 64 * 1024
"""A JSON file with the key of a service account is smaller."""
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
            RunError: One of them cannot be used.
        """
        found.only_run()
        if found.others:
            raise RunError(
                f"{found.name}: holds {', '.join(found.others)} as well, and submit applies "
                "TrainingRuns and ConfigMaps alone; apply the others with kubectl and move them to "
                "a file of their own"
            )
        manifest = copy.deepcopy(found.manifests[0])
        if requirements is not None:
            manifest["spec"]["training"]["requirements"] = requirement_lines(requirements)
        packed = pack(code, file) if code is not None else None
        try:
            return cls.of(manifest, found.config_map_manifests, packed, found.defaults[0])
        except InvalidRunError as error:
            raise RunError(f"{found.name}: {error}") from None

    @classmethod
    def of(
        cls,
        manifest: dict[str, Any],
        config_maps: list[dict[str, Any]],
        packed: bytes | None,
        applied: AppliedDefaults | None = None,
    ) -> "Submission":
        """A TrainingRun with its code.

        Args:
            manifest: The TrainingRun; `training.code` is set in it.
            config_maps: That it needs.
            packed: The zip file with its code; None: it has none that is submitted.
            applied: Its defaults, which the operator fills in.

        Raises:
            RunError: The run is not valid, or its bucket takes no code.
        """
        storage = parse(resolved(manifest, applied)).spec.storage
        if packed is not None:
            if storage.uri.startswith("file:"):
                raise RunError(
                    f"storage.uri is {storage.uri}, a folder of the pods that this machine does "
                    "not have; use a bucket, or put the code into the image"
                )
            code = {"uri": f"{_folder(storage)}/{name_of(packed)}"}
            manifest["spec"]["training"]["code"] = code
            parse(resolved(manifest, applied))
        return cls(manifest, config_maps, storage, packed)

    def apply(self, kube: "Kube", endpoint: str | None, say: Say) -> None:
        """Upload the code, then apply ConfigMaps and run.

        Args:
            kube: The cluster.
            endpoint: URL of the bucket's service as this machine reaches it; default: the run's.
            say: Takes a sentence about each thing that is done.

        Raises:
            RunError: A run of that name has ended, the bucket does not take the code, or
                the cluster does not take the run.
        """
        name = self.manifest["metadata"]["name"]
        _refuse_ended(kube, name)
        self._upload(endpoint, say)
        for config_map in self.config_maps:
            kube.apply_config_map(config_map)
            say(f"ConfigMap {config_map['metadata']['name']} applied")
        kube.apply(self.manifest)
        say(f"{name} applied to namespace {kube.namespace}")

    def _upload(self, endpoint: str | None, say: Say) -> None:
        """Put the code into the bucket, unless it is there already."""
        if self.packed is None:
            return
        name, folder = name_of(self.packed), _folder(self.storage)
        with bucket_access("the code cannot be uploaded: "):
            from trainingrun_runtime.store.bucket import Bucket

            bucket = Bucket.open(folder, endpoint or self.storage.endpoint, self.storage.region)
            if bucket.size(name) == len(self.packed):
                say(f"code {name[:12]} is in {folder} already")
                return
            bucket.upload(name, self.packed)
        say(f"code {name[:12]} uploaded to {folder}, {size(len(self.packed))}")


def _refuse_ended(kube: "Kube", name: str) -> None:
    """A run that has ended is not begun again by applying it: its former result would be shown."""
    try:
        phase = (kube.run(name).get("status") or {}).get("phase")
    except NotFoundError:
        return
    if phase in ENDED:
        raise RunError(
            f"TrainingRun {name} in namespace {kube.namespace} has ended ({phase}); delete it, or "
            "choose another name"
        )


def _folder(storage: Storage) -> str:
    return f"{storage.uri.rstrip('/')}/{FOLDER}"


def name_of(packed: bytes) -> str:
    """Name of a zip file, by its content."""
    return f"{hashlib.sha256(packed).hexdigest()}.zip"


def pack(
    folder: Path,
    manifest: Path | None = None,
    *,
    prefix: str = "",
    more: Mapping[str, bytes] = MappingProxyType({}),
) -> bytes:
    """The files of a folder, without those that git ignores, as a zip file.

    The same files give the same bytes: the order is that of the names, and no time is kept.

    Args:
        folder: Holds the code.
        manifest: A file that is left out; it need not be in the folder.
        prefix: What each name begins with in the zip file.
        more: Files that are not in the folder, by their name.

    Raises:
        RunError: It is no folder, holds nothing, too much or a secret, or is not readable.
    """
    if not folder.is_dir():
        raise RunError(f"--code {folder} is not a folder")
    listed, root = _listed(folder), folder.resolve()
    for file in listed:
        _check(folder / file, root, file, listed)
    files = [
        file
        for file in listed
        if manifest is None or (folder / file).resolve() != manifest.resolve()
    ]
    if not files:
        raise RunError(f"--code {folder} holds no file that git does not ignore")
    sizes = {file: (folder / file).stat().st_size for file in files}
    if sum(sizes.values()) > MAX_UNPACKED_BYTES or len(files) > MAX_CODE_FILES:
        raise RunError(_too_large(folder, sizes, MAX_UNPACKED_BYTES, "")) from None
    packed = zipped(
        [
            *(
                (prefix + file.as_posix(), *_read(folder / file))
                for file in sorted(files, key=Path.as_posix)
            ),
            *((name, content, False) for name, content in more.items()),
        ]
    )
    if len(packed) > MAX_CODE_BYTES:
        raise RunError(_too_large(folder, sizes, MAX_CODE_BYTES, ", packed"))
    return packed


def _read(file: Path) -> tuple[bytes, bool]:
    """What is in a file, and whether it is executable."""
    try:
        return file.read_bytes(), bool(file.stat().st_mode & 0o100)
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error.strerror}") from None


def zipped(files: Iterable[tuple[str, bytes, bool]]) -> bytes:
    """A zip file; the same files give the same bytes.

    Args:
        files: Name, content and whether it is executable, in the order in which they are written.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, content, executable in files:
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix, wherever it is packed
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            archive.writestr(entry, content)
    return packed.getvalue()


def requirement_lines(file: Path) -> list[str]:
    """The requirements in a file of pip's; comments, empty lines and line breaks are left out.

    Raises:
        RunError: The file cannot be read, or a line is an option, which
            `training.requirements` do not take.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")  # Windows writes a mark at the beginning
    except OSError as error:
        raise RunError(f"--requirements {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise RunError(f"--requirements {file} is not UTF-8 text") from None
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        requirement = "" if line.startswith("#") else line.split(" #")[0].strip()
        if option := _OPTION.match(requirement):  # its value may hold credentials
            raise RunError(
                f"{file}: {option[0]} is an option of pip; write requirements alone there, "
                "and set options as variables in training.env, such as PIP_INDEX_URL"
            )
        if requirement:
            found.append(" ".join(requirement.split()))
    return found


def _listed(folder: Path) -> dict[Path, bool]:
    """The files of a folder, relative to it: True: git tracks it; False: git would add it."""
    modes, names = _names(folder)
    found: dict[Path, bool] = {}
    for name in names:
        path = folder / name
        if set(Path(name).parts) & set(_LEFT_OUT):
            continue  # nor refused: a local run keeps the packed code and what it made in there
        if _NOT_UTF8.search(name):
            raise RunError(
                f"the name of {_shown(path)} is not UTF-8, as names in a zip file are; rename the "
                "file, or name it in .gitignore"
            )
        if path.is_symlink() and path.is_dir():
            raise RunError(
                f"{path} is a link to a folder, which a zip file does not hold; replace it by the "
                "folder, or name it in .gitignore"
            )
        if modes.get(name) == _SUBMODULE and not (path / ".git").exists():
            raise RunError(f"submodule {path} is not checked out; run git submodule update --init")
        if path.is_dir():  # a repository in the repository, such as a submodule
            found |= {Path(name) / below: tracked for below, tracked in _listed(path).items()}
        elif path.is_file():  # not one that was deleted since it was added
            found[Path(name)] = name in modes
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


def _check(path: Path, root: Path, name: Path, listed: Mapping[Path, bool]) -> None:
    """Refuse a file that may be a secret, or whose content is none of the code.

    Args:
        path: The file.
        root: The whole code, without links in its own path.
        name: The file's path in it.
        listed: All files of the code, and whether git tracks them.
    """
    target = path.resolve()
    if not target.is_relative_to(root):
        raise RunError(
            f"{path} is a link to {target}, which is not in the folder; replace it by the "
            "file, or name it in .gitignore"
        )
    if target != root / name and target.relative_to(root) not in listed:
        # A tracked link, or one of a harmless name, would send the .env that git ignores. What is
        # listed is checked by its own name.
        raise RunError(
            f"{path} is a link to {target}, which is left out of the code; remove the link, or "
            "replace it by the file if that may be uploaded to the bucket"
        )
    if not listed[name] and (_named_as_a_secret(name) or _has_a_private_key(path)):
        raise RunError(
            f"{path} looks like a secret, and the code is uploaded to the bucket; name it in "
            ".gitignore, or have git track it if it is none"
        )


def _named_as_a_secret(name: Path) -> bool:
    lower = PurePosixPath(name.as_posix().lower())
    folder = f"/{lower.parent}/"
    return any(lower.match(secret) for secret in _SECRETS) or any(
        f"/{secret}/" in folder for secret in _SECRET_FOLDERS
    )


def _has_a_private_key(file: Path) -> bool:
    """Whether it is JSON with a private key, as Google gives for a service account."""
    if file.suffix.lower() != ".json":
        return False
    try:
        return file.stat().st_size <= _KEY_BYTES and b'"private_key"' in file.read_bytes()
    except OSError:
        return False  # which is said once it is packed


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
        raise RunError("git is not installed; --code needs it to read .gitignore") from None


def _failed(done: subprocess.CompletedProcess[str]) -> RunError:
    return RunError(f"git cannot list the code: {' '.join(done.stderr.split())}")


def _too_large(folder: Path, sizes: dict[Path, int], limit: int, how: str) -> str:
    largest = sorted(sizes, key=lambda file: -sizes[file])[:3]
    shown = ", ".join(f"{file.as_posix()} ({sizes[file] / _MIB:.1f} MiB)" for file in largest)
    return (
        f"--code {folder} holds {len(sizes)} files of {sum(sizes.values()) / _MIB:.0f} MiB{how}, "
        f"and {MAX_CODE_FILES} files of {limit // _MIB} MiB are the most; name in .gitignore what "
        f"is no code: the largest are {shown}"
    )
