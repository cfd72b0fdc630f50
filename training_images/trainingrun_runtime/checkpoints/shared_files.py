"""Files that one process has and others of its machine open, in memory or on the disk.

A process opens them by the owner's path: `/proc/<pid>/fd/<number>` for a file in memory, which only
the same user may do. An opened file stays when its owner ends. The owner may end before and its
number be used again, so what was opened is compared with what was offered.
"""

import os
import stat
from pathlib import Path
from typing import NamedTuple

_PROCESS, _KERNEL = Path("/proc/self"), Path("/proc/sys/kernel/random/boot_id")


class SharedFile(NamedTuple):
    """A file of another process."""

    path: str
    """For all processes of its machine."""
    device: int
    inode: int
    """With the device, what no other file has meanwhile."""
    size: int
    """Bytes."""


class NotOffered(OSError):
    """At the path is another file than the one that was offered."""


def machine() -> str | None:
    """The same for processes that may open each other's files; None: there are none.

    That is one kernel, one user, and one view of processes and files, as in a container.
    """
    try:
        boot = _KERNEL.read_text().strip()
        spaces = [os.readlink(_PROCESS / "ns" / name) for name in ("pid", "mnt", "user")]
    except OSError:  # not Linux
        return None
    return " ".join([boot, *spaces, str(os.geteuid())])


def offered(path: Path) -> SharedFile:
    """A file of this process, for others; `path` may be a link to a file in memory."""
    found = path.stat()
    place = os.readlink(path) if path.is_symlink() else str(path)
    return SharedFile(place, found.st_dev, found.st_ino, found.st_size)


def opened(file: SharedFile) -> int:
    """A descriptor of it, to read.

    Raises:
        OSError: it is gone, or may not be opened.
        NotOffered: it is another one.
    """
    # Where the owner has ended, another process's pipe may be there: opening it must not wait.
    number = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    found = os.fstat(number)
    same = (found.st_dev, found.st_ino, found.st_size) == (file.device, file.inode, file.size)
    if same and stat.S_ISREG(found.st_mode):
        return number
    os.close(number)
    raise NotOffered(f"{file.path} is another file than was offered")
