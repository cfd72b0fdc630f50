"""Files of a committed checkpoint on this machine, each verified while it is downloaded."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

from ..store.bucket import Bucket
from ..store.manifest import Manifest
from ..store.storage_errors import AbsentError, DamagedError
from .tensor_files import header_of


class VerifiedFiles:
    """The files of one checkpoint; each is downloaded when it is first asked for.

    Args:
        bucket: The run's folder.
        manifest: Of the checkpoint.
        folder: One of this machine for the files.
    """

    def __init__(self, bucket: Bucket, manifest: Manifest, folder: Path) -> None:
        self._bucket, self._manifest, self._folder = bucket, manifest, folder

    def names(self) -> Collection[str]:
        """Of all files."""
        return self._manifest.files.keys()

    def path(self, name: str) -> Path:
        """Where one of them is on this machine, downloaded.

        Raises:
            DamagedError: It is not what was committed.
            StorageError: The store did not answer.
        """
        path = self._folder / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._download(name, path)
        return path

    def header(self, name: str) -> bytes:
        """The header of a file of tensors, verified."""
        with self.path(name).open("rb") as file:
            return header_of(file)

    def _download(self, name: str, target: Path) -> None:
        wanted, key = self._manifest.files[name], f"{self._manifest.path}/{name}"
        part, digest = target.with_name(f".{target.name}.part"), hashlib.sha256()
        try:
            with part.open("wb") as file, closing(self._bucket.stream(key, file)) as pieces:
                for piece in pieces:
                    digest.update(piece)
            if digest.hexdigest() != wanted.sha256:
                raise DamagedError(f"{self._bucket.uri(key)} is damaged: it is not as committed")
            part.replace(target)
        except AbsentError:
            raise DamagedError(f"{self._bucket.uri(key)} is missing") from None
        finally:
            part.unlink(missing_ok=True)


def download(bucket: Bucket, manifest: Manifest, target: Path) -> None:
    """Download a whole checkpoint into a folder that is made; all of it, or nothing.

    Raises:
        FileExistsError: The folder is there already.
        DamagedError: A file is not what was committed.
        StorageError: The store did not answer.
    """
    if target.exists():
        raise FileExistsError(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        files = VerifiedFiles(bucket, manifest, part)
        for name in files.names():
            files.path(name)
        part.chmod(0o777 & ~_umask())  # mkdtemp's own is for this user alone
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
