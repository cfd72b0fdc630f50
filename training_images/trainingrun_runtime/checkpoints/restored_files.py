"""The files of a checkpoint as a rank restores them: all at once, or those that it asks for."""

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ray.train import Checkpoint

from .tensor_files import header_of

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

    def header(self, name: str) -> bytes:
        """The header of a file of tensors; of what is not downloaded it is not verified.

        Raises:
            ValueError: it has none.
        """
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

    def header(self, name: str) -> bytes:
        """The header of a file of tensors."""
        with self.path(name).open("rb") as file:
            return header_of(file)


@contextlib.contextmanager
def files_of(checkpoint: Checkpoint, fetched: "Fetched | None" = None) -> Iterator[RestoredFiles]:
    """The files of a checkpoint, while it is restored.

    Args:
        checkpoint: the one to restore.
        fetched: what this rank has downloaded of it; further files are downloaded where they are
            asked for. None: nothing, and all files are downloaded.
    """
    if fetched is not None:
        with contextlib.closing(fetched):
            yield fetched
    else:
        with checkpoint.as_directory() as folder:
            yield LocalFiles(Path(folder))
