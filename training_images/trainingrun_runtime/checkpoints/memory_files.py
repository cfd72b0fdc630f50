"""Files in memory for what is downloaded and read once: writing to a disk takes longer.

They are files of this process (`memfd_create`), so they take no space in /dev/shm, and none is left
when the process ends.
"""

import fcntl
import os
from pathlib import Path

from ..progress.memory_use import read_memory
from .shared_files import SharedFile, opened

OTHERS = 3
"""Beside the files themselves, so many times their size has to be free for each rank: the model and
its optimizer are made later, and a state may be copied while it is restored."""
_CGROUPS, _PROCESSES = Path("/sys/fs/cgroup"), Path("/proc")


class MemoryFiles:
    """Files in memory, each behind a link in a folder; their memory is free after `close`."""

    def __init__(self) -> None:
        self._opened: list[int] = []

    def place(self, path: Path) -> None:
        """Make an empty one behind a link at this path, unless there is one.

        Where the kernel refuses it, nothing is there, and the file is made on the disk.
        """
        if path.is_symlink():
            return
        try:
            number = os.memfd_create(path.name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError:  # with vm.memfd_noexec=2, or too many open files
            return
        self._link(path, number)

    def seal(self, path: Path) -> None:
        """Nobody changes the file any more, if it is in memory: ranks of this machine share it."""
        if path.is_symlink():
            number = int(path.readlink().name)
            seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(number, fcntl.F_ADD_SEALS, seals)

    def adopt(self, file: SharedFile, path: Path) -> None:
        """Put a link to another process's file at this path; its memory is used once.

        Raises:
            OSError: it is gone or another one, or may not be opened.
        """
        self._link(path, opened(file))

    def close(self) -> None:
        """Forget them; what is mapped stays until it is unmapped."""
        while self._opened:
            os.close(self._opened.pop())

    def _link(self, path: Path, number: int) -> None:
        self._opened.append(number)
        path.symlink_to(f"/proc/{os.getpid()}/fd/{number}")


def fits(own: int, common: int, ranks: int) -> bool:
    """Whether so many ranks in this container may hold their files in memory.

    Args:
        own: bytes of files that each of them has.
        common: bytes of files that they have together.
        ranks: how many they are.
    """
    files = own * ranks + common
    return hasattr(os, "memfd_create") and files + OTHERS * (own + common) * ranks <= free_memory()


def free_memory(cgroups: Path = _CGROUPS, processes: Path = _PROCESSES) -> int:
    """Bytes that this container may still use; 0 where it is unknown.

    Args:
        cgroups: where the kernel's control groups are mounted.
        processes: where its tables of processes and memory are mounted.
    """
    try:
        lines = _table(processes / "meminfo", ":")
        free = int(lines["MemAvailable"].split()[0]) * 1024
        used, limit = read_memory(cgroups)
        if limit is None and (cgroups / "memory").is_dir():
            used, limit = _version_1(cgroups / "memory", processes)
    except (OSError, KeyError, ValueError):
        return 0
    return free if limit is None else max(min(free, limit - used), 0)


def _version_1(folder: Path, processes: Path) -> tuple[int, int]:
    """Bytes in use without the cache of files, and the limit, by control groups of version 1."""
    groups = [line.split(":", 2) for line in (processes / "self/cgroup").read_text().splitlines()]
    own = folder / {kind: path for _, kind, path in groups}["memory"].lstrip("/")
    own = own if own.is_dir() else folder  # a container sees its own group as the whole tree
    parts = _table(own / "memory.stat", " ")
    cached = int(parts["total_inactive_file"]) + int(parts["total_active_file"])
    used = int((own / "memory.usage_in_bytes").read_text()) - cached
    return used, int(parts["hierarchical_memory_limit"])


def _table(file: Path, separator: str) -> dict[str, str]:
    lines = file.read_text().splitlines()
    return {name: value for name, _, value in (line.partition(separator) for line in lines)}
