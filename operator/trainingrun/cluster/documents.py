"""JSON to and from the API server: the one place that chooses the codec."""

import json
from typing import Any


def decoded(content: bytes) -> Any:
    """The value that UTF-8 encoded JSON holds; ValueError if it is none."""
    return json.loads(content)


def encoded(value: Any) -> bytes:
    """Compact UTF-8 encoded JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
