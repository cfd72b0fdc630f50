"""The files of a checkpoint as a rank restores them: all at once, or those that it asks for."""

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ray.train import Checkpoint

from ..ray_internals.filesystem import RetryingCheckpoint

if TYPE_CHECKING:
    from .fetching import Fetched


class RestoredFiles(Protocol):
    """Files by name."""

    def names(self) -> Collection[str]:
        """Of all files."""
        ...

    def path(self, name: str) -> Path:
        """Where one of them is on this machine."""
        ...


class LocalFiles:
    """Files that are all in a folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> Collection[str]:
        """Of all files."""
        return {file.name for file in self._folder.iterdir() if file.is_file()}

    def path(self, name: str) -> Path:
        """Where one of them is on this machine."""
        return self._folder / name


class FetchedFiles:
    """Files of the bucket; each is downloaded when it is first asked for.

    Args:
        checkpoint: the one in the bucket.
        folder: one of this machine, for them alone.
        names: of all its files.
    """

    def __init__(
        self, checkpoint: RetryingCheckpoint, folder: Path, names: Collection[str]
    ) -> None:
        self._checkpoint, self._folder, self._names = checkpoint, folder, names

    def names(self) -> Collection[str]:
        """Of all files."""
        return self._names

    def path(self, name: str) -> Path:
        """Where one of them is on this machine, downloaded."""
        path = self._folder / name
        if not path.exists():
            self._checkpoint.download(name, path)
        return path


@contextlib.contextmanager
def files_of(checkpoint: Checkpoint, fetched: "Fetched | None" = None) -> Iterator[RestoredFiles]:
    """The files of a checkpoint, while it is restored.

    Args:
        checkpoint: the one to restore.
        fetched: what this rank has downloaded of it; further files are downloaded where they are
            asked for. None: nothing, and all files are downloaded.
    """
    if fetched is not None and isinstance(checkpoint, RetryingCheckpoint):
        try:
            yield FetchedFiles(checkpoint, fetched.folder, list(fetched.manifest.files))
        finally:
            fetched.close()
    else:
        with checkpoint.as_directory() as folder:
            yield LocalFiles(Path(folder))
