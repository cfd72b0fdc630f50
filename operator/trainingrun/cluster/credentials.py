"""Where the API server is, and as whom to speak to it."""

import contextlib
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

TOKEN_S = 60.0
"""Between two reads of a token: the kubelet replaces it long before it is out of date."""


@dataclass(slots=True)
class Credentials:
    """One API server, and one user of it."""

    server: str
    """Such as https://10.0.0.1:443."""
    tls: ssl.SSLContext = field(default_factory=ssl.create_default_context)
    fixed_headers: Mapping[str, str] = field(default_factory=dict)
    token_file: Path | None = None
    """With a token that is replaced from time to time."""
    authority: Path | None = None
    """With the certificates of the server's authority, which are replaced more rarely."""
    clock: Callable[[], float] = time.monotonic
    _token: str = ""
    _read_again_at: float = 0.0

    def headers(self) -> Mapping[str, str]:
        """Headers of the next request."""
        if self.token_file is None:
            return self.fixed_headers
        if self.clock() >= self._read_again_at:
            with contextlib.suppress(OSError):  # the former one is good for some minutes more
                self._token = self.token_file.read_text().strip()
                self._read_again_at = self.clock() + TOKEN_S
            if self.authority is not None:
                with contextlib.suppress(OSError):  # ssl.SSLError is one: it is being replaced
                    self.tls.load_verify_locations(self.authority)
        return {"Authorization": f"Bearer {self._token}"}
