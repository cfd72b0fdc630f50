"""A rank's random state after the last two steps that it has noted, in a file.

When a training process is killed, its pod is still there. A session without a seed draws from
generators of which no other rank knows the state, so each rank writes its own into a file of its
node. The file is mapped: what was written to it is there however the process ends. Imports no
PyTorch, since a process that only reads the file need not wait for that.
"""

import mmap
import os
import struct
import zlib
from pathlib import Path

_SLOTS = 2
"""The step that the other ranks hold may be the one before the last."""
_HEAD = struct.Struct("<qII")
"""The step, and the size and the checksum of the state after it."""


class KeptRandom:
    """The file of this rank.

    Args:
        path: where it is made; one of a former process is replaced.
        space: bytes that a state takes at most.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, path: Path, space: int) -> None:
        self.path = path
        self._slot, self._notes = _HEAD.size + space, 0
        # A new one: a process that still has mapped the former one would get a SIGBUS.
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            # Its blocks are there before it is mapped: a full disk would be a SIGBUS later.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, _SLOTS * self._slot)
            else:
                os.ftruncate(descriptor, _SLOTS * self._slot)
            self._content = mmap.mmap(descriptor, _SLOTS * self._slot)
        finally:
            os.close(descriptor)

    def note(self, step: int, state: bytes) -> None:
        """Keep the state after that step.

        Raises:
            ValueError: it takes more than the space.
        """
        if _HEAD.size + len(state) > self._slot:
            raise ValueError(f"a random state of {len(state)} bytes does not fit into its file")
        begin = self._notes % _SLOTS * self._slot  # not every step is noted
        self._notes += 1
        body = begin + _HEAD.size
        # Killed between these two lines, the slot has the former head, whose checksum differs.
        self._content[body : body + len(state)] = state
        self._content[begin:body] = _HEAD.pack(step, len(state), zlib.crc32(state))

    def after(self, step: int) -> bytes | None:
        """The state after that step; None: it is kept no longer. From any thread."""
        return _state_in(bytes(self._content), step)

    def close(self) -> None:
        """Remove the file; this process can still ask for what is in it."""
        self.path.unlink(missing_ok=True)


def read(path: str, step: int) -> bytes | None:
    """The state after that step from the file of another process; None: it is not there."""
    try:
        content = Path(path).read_bytes()
    except OSError:
        return None
    return _state_in(content, step)


def _state_in(content: bytes, step: int) -> bytes | None:
    slot = len(content) // _SLOTS
    for begin in range(0, _SLOTS * slot, slot) if slot >= _HEAD.size else ():
        found, size, checksum = _HEAD.unpack_from(content, begin)
        state = content[begin + _HEAD.size : begin + _HEAD.size + size]
        if found == step and size and zlib.crc32(state) == checksum:
            return state
    return None
