"""The scripts of a worker group, which its ranks run in processes of their own: where they are, how
they end, and when the folders into which they write are a checkpoint. Pure but for its lock.

Each pod has one folder for the scripts of its ranks. What is in all folders is a checkpoint where
each of them is settled (see `worker.script_folder`). Its files are those that a pod has written
since the worker group began; of several pods that have written one name, the pod with the lowest
rank. A file that was put there before the scripts began is in it as long as every pod has it.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from .checkpoints import Command

GRACE_S = 60.0
"""Seconds that scripts have to end in once they are asked to, where no deadline is known."""
SAVING_S = 5.0
"""Seconds before a deadline that are kept free to upload what they have written."""


class Meeting(NamedTuple):
    """What each script is told about the others."""

    nodes: tuple[str, ...]
    """The Ray node of each rank."""
    address: str
    """IP address of rank 0's pod."""
    port: int
    """Of the store there, by which the scripts find each other."""


@dataclass(frozen=True)
class FolderState:
    """A pod's folder, as the lowest of its ranks has seen it."""

    files: Mapping[str, bool]
    """Whether each file was written since the worker group began, by its name."""
    fingerprint: str
    """Of the names, sizes and times of all files."""
    settled: bool
    """Whether nothing in it is half written."""
    running: int
    """Scripts of this pod that had not ended."""


@dataclass(frozen=True)
class Told:
    """What a rank tells once a second."""

    ended: tuple[int, float] | None = None
    """Its script's exit code, negative: by a signal, and when by the pod's clock; none: it runs."""
    folder: FolderState | None = None
    """Of the lowest rank of a pod; none: as told before."""
    uploaded: tuple[int, str | None] | None = None
    """Number of a save, and where its part is, as Ray names it; none: the part has changed."""
    left_s: float | None = None
    """Seconds until this pod, or a node of the group, ends: the clocks of pods differ."""


@dataclass(frozen=True)
class Save:
    """The part of a checkpoint that a rank has to upload."""

    number: int
    """1, 2, 3 … in the worker group."""
    fingerprint: str
    """Of the folder, which may have changed before the upload begins."""
    files: tuple[str, ...]
    """Those of this pod."""


@dataclass(frozen=True)
class Orders:
    """What a rank is told in turn."""

    command: Command = Command.NONE
    """Larger than CHECKPOINT: the scripts are to end, and this worker group with them."""
    left_s: float = float("inf")
    """So many seconds from now on they have for it."""
    ended: Mapping[int, tuple[int, float]] = field(default_factory=dict)
    """How the scripts of this pod have ended, by rank, as their ranks have told."""
    save: Save | None = None
    """What to upload now."""
    unused: int | None = None
    """Number of a save whose files are to be deleted: they are no checkpoint."""
    over: bool = False
    """All scripts have ended, and what they have written is uploaded."""


class FinishedSave(NamedTuple):
    """A save whose parts are all uploaded."""

    path: str
    """Its folder, as Ray names it."""
    finished: int
    """How many the worker group has finished with it."""
    world_size: int
    """Ranks of the worker group."""
    ranks: tuple[int, ...]
    """Those that have uploaded a part."""


class Scripts:
    """One lock guards all of it. What a rank of a former group tells changes nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begin(0, 0)

    def _begin(self, group: int, world_size: int) -> None:
        self._group, self._world_size = group, world_size
        self._nodes: dict[int, str] = {}
        self._store = ("", 0)
        self._ended: dict[int, tuple[int, float]] = {}
        self._folders: dict[int, FolderState] = {}  # by the lowest rank of each pod
        self._kept: dict[int, str] = {}  # fingerprints of what is uploaded, or was there at first
        self._number = self._count = 0
        self._saves: dict[int, Save] = {}  # of the save under way
        self._uploaded: dict[int, str | None] = {}
        self._unused: int | None = None
        self._asked: float | None = None  # since when the scripts are to end
        self._deadline: float | None = None  # both by the same clock
        self._command = Command.NONE  # the greatest that a rank was told
        self._last: Command | None = None  # what all ranks end with

    def meet(
        self, group: int, rank: int, world_size: int, node: str, store: tuple[str, int] | None
    ) -> Meeting | None:
        """A rank, again and again until all have come: what its script needs; None: some miss.

        Args:
            group: number of the worker group.
            rank: its own.
            world_size: ranks of the group.
            node: id of its Ray node.
            store: address and port of the store that rank 0 has started; None: another rank.
        """
        with self._lock:
            if group > self._group:
                self._begin(group, world_size)
            if group == self._group:
                self._nodes[rank] = node
                self._store = store or self._store
            if group < self._group or len(self._nodes) < self._world_size:
                return None
            nodes = tuple(self._nodes[rank] for rank in range(self._world_size))
            return Meeting(nodes, *self._store)

    def told(
        self, group: int, rank: int, told: Told, command: Command, now: float
    ) -> tuple[Orders, FinishedSave | None]:
        """A rank tells what it sees; what it has to do, and a save that this has finished.

        Args:
            group: number of its worker group.
            rank: its own.
            told: what it tells.
            command: what applies to all ranks.
            now: seconds of a monotonic clock.
        """
        with self._lock:
            if group != self._group:
                return Orders(), None
            if told.ended is not None:
                self._ended[rank] = told.ended
            if told.folder is not None:
                self._folders[rank] = told.folder
                self._kept.setdefault(rank, told.folder.fingerprint)
            if told.left_s is not None:
                deadline = now + told.left_s
                self._deadline = min(self._deadline or deadline, deadline)
            # A former call may come later.
            self._command = command = max(self._command, command)
            if command > Command.CHECKPOINT:
                self._asked = self._asked or now
            finished = self._take(rank, told.uploaded)
            if self._last is None and not self._saves and self._due():
                self._plan()
            unused = self._unused if rank == 0 else None
            if unused is not None:
                self._unused = None
            node = self._nodes.get(rank)
            if self._last is None and self._over() and self._unused is None:
                # For all: a rank that is told another one would wait for those that have gone.
                self._last = command
            orders = Orders(
                command=command if self._last is None else self._last,
                left_s=self._end_by() - now,
                ended={r: end for r, end in self._ended.items() if self._nodes.get(r) == node},
                save=self._saves.get(rank) if rank not in self._uploaded else None,
                unused=unused,
                over=self._last is not None,
            )
        return orders, finished

    def _end_by(self) -> float:
        if self._asked is None:
            return float("inf")
        if self._deadline is None:
            return self._asked + GRACE_S
        return max(self._deadline - SAVING_S, self._asked)

    def _firsts(self) -> set[int]:
        """The lowest rank of each pod."""
        lowest: dict[str, int] = {}
        for rank, node in sorted(self._nodes.items()):
            lowest.setdefault(node, rank)
        return set(lowest.values())

    def _all_told(self) -> bool:
        return self._folders.keys() == self._firsts()

    def _due(self) -> bool:
        """Whether what is in the folders is a checkpoint that there is not yet."""
        return (
            self._all_told()
            and all(one.settled for one in self._folders.values())
            and any(self._kept[rank] != one.fingerprint for rank, one in self._folders.items())
            and any(parts(self._folders).values())
        )

    def _plan(self) -> None:
        self._number += 1
        files = parts(self._folders)
        self._saves = {
            rank: Save(self._number, one.fingerprint, files[rank])
            for rank, one in self._folders.items()
        }
        self._uploaded = {}

    def _take(self, rank: int, uploaded: tuple[int, str | None] | None) -> FinishedSave | None:
        """A rank has uploaded its part; the save, if it was the last part."""
        if uploaded is None or rank not in self._saves or uploaded[0] != self._number:
            return None
        self._uploaded[rank] = uploaded[1]
        if self._uploaded.keys() != self._saves.keys():
            return None
        saves, self._saves = self._saves, {}
        paths = list(self._uploaded.values())
        if paths[0] is None or None in paths:
            self._unused = self._number
            return None
        self._count += 1
        self._kept = {rank: save.fingerprint for rank, save in saves.items()}
        ranks = tuple(sorted(rank for rank, save in saves.items() if save.files))
        return FinishedSave(paths[0], self._count, self._world_size, ranks)

    def _over(self) -> bool:
        return (
            len(self._ended) == self._world_size
            and self._all_told()
            and not any(one.running for one in self._folders.values())
            and not self._saves
        )


def parts(folders: Mapping[int, FolderState]) -> dict[int, tuple[str, ...]]:
    """The files of a checkpoint that each pod uploads, by the lowest rank of the pod.

    Args:
        folders: of all pods, by the lowest rank of each.
    """
    found: dict[int, list[str]] = {rank: [] for rank in folders}
    names = sorted({name for one in folders.values() for name in one.files})
    for name in names:
        having = sorted(rank for rank, one in folders.items() if name in one.files)
        wrote = [rank for rank in having if folders[rank].files[name]]
        if wrote or len(having) == len(folders):
            found[(wrote or having)[0]].append(name)
    return {rank: tuple(files) for rank, files in found.items()}
