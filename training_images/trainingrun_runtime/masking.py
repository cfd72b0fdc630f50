"""Secrets of a pod's environment, taken out of what its processes print."""

import re
from collections.abc import Mapping

from trainingrun_protocol.secret_text import (
    LONGEST_USERINFO,
    SHORTEST,
    USERINFO,
    as_bytes,
    forms,
    is_secret_name,
    parts,
)
from trainingrun_protocol.wire import encodable

MASK = b"***"
_USERINFO = re.compile(USERINFO.encode())


class Masking:
    """Replaces secrets by `***`.

    Args:
        environment: Of the pod. Secret is the value of a variable whose name says so, such as
            WANDB_API_KEY, and the password of a URL.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        found = {
            as_bytes(form)
            for name, value in environment.items()
            if is_secret_name(name)
            for part in parts(value)
            for form in forms(part)
        }
        # The longest first, as one may begin with another.
        self._known = sorted(found, key=lambda text: (-len(text), text))
        self._secrets = re.compile(b"|".join(map(re.escape, self._known))) if found else None
        self.longest = max([LONGEST_USERINFO, *map(len, found)])
        """Bytes of the longest secret."""

    def __call__(self, text: bytes) -> bytes:
        """Whole lines without secrets."""
        if self._secrets is not None:
            text = self._secrets.sub(MASK, text)
        return _USERINFO.sub(MASK, text) if b"://" in text and b"@" in text else text

    def text(self, text: str) -> str:
        """A text without secrets, such as UTF-8 can hold."""
        return self(encodable(text).encode()).decode(errors="replace")

    def beginning(self, line: bytes) -> tuple[bytes, bytes]:
        """What is known of a line whose end is not there yet, without secrets, and the rest of it.

        The rest may begin with a part of a secret; it is as it was printed.
        """
        end, before = max(len(line) - self.longest, 0), -1
        patterns = [pattern for pattern in (self._secrets, _USERINFO) if pattern is not None]
        found = [match.span() for pattern in patterns for match in pattern.finditer(line)]
        while end != before:  # what begins before it is there as a whole
            before = end
            end = max([end, *(last for first, last in found if first < end < last)])
        return self(line[:end]), line[end:]

    def end(self, line: bytes) -> bytes:
        """The last line of a process, which may have ended within a secret."""
        cut = max((_overlap(line, secret) for secret in self._known), default=0)
        return self(line[:-cut]) + MASK if cut else self(line)


def _overlap(line: bytes, secret: bytes) -> int:
    """With how many bytes of the secret's beginning the line ends; 0: with few, or with it all."""
    sizes = range(len(secret) - 1, SHORTEST - 1, -1)
    return next((size for size in sizes if line.endswith(secret[:size])), 0)
