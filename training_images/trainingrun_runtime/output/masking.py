"""Secrets of a pod's environment, taken out of what its processes print."""

import re
from collections.abc import Mapping
from urllib.parse import quote

MASK = b"***"
_SHORTEST = 6
"""Characters; shorter values are ordinary words, and no secret that protects anything."""
_SECRET = re.compile(
    r"(^|_)(KEY|KEYS|TOKEN|TOKENS|SECRET|SECRETS|PASS|PASSPHRASE|CREDENTIAL|CREDENTIALS|DSN|PAT)"
    r"(?!_ID$)($|_)|PASSW(OR)?D",
    re.IGNORECASE,
)
"""Names of variables whose values are secret; AWS_ACCESS_KEY_ID has a name, maybe a plain word."""
_USERINFO = re.compile(rb"(\w://)[^/\s@]{1,500}@")
"""A user and a password in a URL."""


class Masking:
    """Replaces secrets by `***`.

    Args:
        environment: Of the pod. Secret is the value of a variable whose name says so, such as
            WANDB_API_KEY, and the password of a URL.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        found: set[bytes] = set()
        for name, value in environment.items():
            if _SECRET.search(name):
                # Of a secret of several lines, such as a private key, each line is one.
                for line in value.splitlines():
                    text = line.strip()
                    if len(text) >= _SHORTEST:
                        found |= {text.encode(), quote(text, safe="").encode()}
        # The longest first, as one may begin with another.
        longest_first = sorted(found, key=lambda text: (-len(text), text))
        self._secrets = re.compile(b"|".join(map(re.escape, longest_first))) if found else None
        self.longest = max(map(len, found), default=0)
        """Bytes of the longest secret."""

    def __call__(self, text: bytes) -> bytes:
        """The text without secrets."""
        if self._secrets is not None:
            text = self._secrets.sub(MASK, text)
        return _USERINFO.sub(rb"\1" + MASK + b"@", text) if b"://" in text else text
