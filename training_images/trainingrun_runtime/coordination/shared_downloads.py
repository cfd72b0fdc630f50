"""Which rank downloads a file that several ranks of one machine need, and where the others find it.

The coordinator has one of these: a worker group begins with a search for a checkpoint, and each
search has a number. What processes of a former group still ask changes nothing.
"""

from collections.abc import Iterable, Mapping

from ..checkpoints.shared_files import SharedFile


class SharedDownloads:
    """The files of one search; a new one forgets those of the former one."""

    def __init__(self) -> None:
        self._search = 0
        self._claimed: dict[str, set[str]] = {}
        self._offered: dict[str, dict[str, SharedFile]] = {}

    def begin(self) -> int:
        """The number of a new search."""
        self._search += 1
        self._claimed, self._offered = {}, {}
        return self._search

    def claim(self, search: int, machine: str, names: Iterable[str], most: int) -> list[str]:
        """The first of the files that no rank of this machine downloads yet: the caller does.

        Args:
            search: number of the search.
            machine: see `shared_files.machine`.
            names: of all files that its ranks need.
            most: how many of them the caller begins with; it asks again for more.
        """
        claimed = self._claimed.setdefault(machine, set()) if search == self._search else set()
        mine = [name for name in names if name not in claimed][:most]
        claimed.update(mine)
        return mine

    def offer(self, search: int, machine: str, files: Mapping[str, SharedFile]) -> None:
        """A rank has downloaded and verified these."""
        if search == self._search:
            self._offered.setdefault(machine, {}).update(files)

    def offered(self, search: int, machine: str) -> dict[str, SharedFile]:
        """What the ranks of a machine have downloaded and verified, by name."""
        return dict(self._offered.get(machine, {})) if search == self._search else {}
