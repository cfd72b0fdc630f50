"""Real mounts for tests: small, read-only, taken away, or of a file server that fails or hangs.

A mount needs root, or at least CAP_SYS_ADMIN; without it the tests are skipped, but not in CI.
"""

import contextlib
import ctypes
import os
import select
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from support.binaries import Unavailable

_INIT, _FORGET, _BATCH_FORGET = 26, 2, 42
_NO_REPLY = (_FORGET, _BATCH_FORGET)
_libc = ctypes.CDLL(None, use_errno=True)


def mount(*arguments: str | Path) -> None:
    """Call mount(8).

    Raises:
        Unavailable: This user may not.
    """
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"no mount: {done.stderr.strip()}")


def unmount(folder: Path) -> None:
    """Take a mount away, also from whoever uses it."""
    subprocess.run(["umount", "--lazy", folder], check=True)


@contextlib.contextmanager
def small(folder: Path) -> Iterator[None]:
    """A file system of 2 MiB in memory, on an empty folder."""
    mount("-t", "tmpfs", "-o", "size=2m", "tmpfs", folder)
    try:
        yield
    finally:
        unmount(folder)


@contextlib.contextmanager
def mounted(source: Path, folder: Path) -> Iterator[None]:
    """A folder that is there at another place, too, as a volume is in a container."""
    mount("--bind", source, folder)
    try:
        yield
    finally:
        unmount(folder)


@contextlib.contextmanager
def failing(folder: Path, error: int | None) -> Iterator[None]:
    """A mount whose file server answers everything with this error; None: it answers nothing.

    It speaks the kernel's own FUSE, so that the calls of the process fail and hang as on NFS.
    """
    server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={server},rootmode=40777,user_id=0,group_id=0"
    if _libc.mount(b"failing", os.fsencode(folder), b"fuse", 0, options.encode()):
        os.close(server)
        raise Unavailable(f"no mount of FUSE: {os.strerror(ctypes.get_errno())}")
    ended = threading.Event()
    thread = threading.Thread(target=_serve, args=(server, error, ended))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        os.close(server)  # whoever waits for an answer gets ENOTCONN
        unmount(folder)


def _serve(server: int, error: int | None, ended: threading.Event) -> None:
    """Answer requests by `struct fuse_out_header` of linux/fuse.h."""
    while not ended.is_set():
        if error is None or not select.select([server], [], [], 0.05)[0]:
            ended.wait(0.05)
            continue
        _, operation, number = struct.unpack_from("=IIQ", os.read(server, 2**18))
        if operation == _INIT:
            settings = struct.pack("=IIIIHHI", 7, 31, 2**17, 0, 8, 8, 2**17).ljust(64, b"\0")
            os.write(server, struct.pack("=IiQ", 16 + len(settings), 0, number) + settings)
        elif operation not in _NO_REPLY:
            os.write(server, struct.pack("=IiQ", 16, -error, number))
