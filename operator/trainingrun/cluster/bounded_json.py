"""JSON of the API server, in which nothing is nested too deeply to be read, and all is JSON.

The API server takes an object with 10,000 levels in a field that it does not check; Python's JSON
reader ends at about 950 of them, pydantic's writer at 255. One such object must not end the watch
through which all others are seen: what lies too deep in it is left out before it is parsed. Nor may
a line that is no event, as of a proxy in between: kopf, and with it the process, ends at one.
"""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the command line has no aiohttp
    import aiohttp

MOST_LEVELS = 100
"""Levels that are read of an answer or an event: more than a valid object of any kind has."""
LIST_ANEW = b'{"type": "ERROR", "object": {"code": 410}}\n'
"""The event after which kopf lists everything anew: the resource version is too old."""
PAUSE_S = 1.0
"""Before that: a proxy may send the same once more."""
LEFT_OUT = "(nested too deeply to be read)"
"""Stands for an object or a list below `MOST_LEVELS`."""

log = logging.getLogger(__name__)

_STRING_OR_BRACKET = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}]')
_ALL_THE_SAME = bytes.maketrans(b"[]", b"{}")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def loads(text: bytes) -> Any:
    """The value that JSON text describes, as far as it is not nested too deeply.

    Raises:
        ValueError: it is not JSON.
    """
    return json.loads(shallow(text))


def shallow(text: bytes) -> bytes:
    """The same JSON text, with `LEFT_OUT` for what lies below `MOST_LEVELS`."""
    if not _is_deep(text):
        return text
    kept: list[bytes] = []
    level = begin = 0
    for found in _STRING_OR_BRACKET.finditer(text):
        match found.group():
            case b"{" | b"[":
                level += 1
                if level == MOST_LEVELS + 1:
                    kept += text[begin : found.start()], json.dumps(LEFT_OUT).encode()
            case b"}" | b"]":
                if level == MOST_LEVELS + 1:
                    begin = found.end()
                level -= 1
    return b"".join([*kept, text[begin:]])


def _is_deep(text: bytes) -> bool:
    """Whether there are more than `MOST_LEVELS`: without a step of Python for each character, since
    every event of the cluster comes through here.
    """
    if text.count(b"{") + text.count(b"[") <= MOST_LEVELS:
        return False
    no_escapes = text.replace(rb"\\", b"").replace(rb"\"", b"")
    outside_strings = b"".join(no_escapes.split(b'"')[::2])
    brackets = outside_strings.translate(_ALL_THE_SAME, _NO_BRACKETS)
    for _ in range(MOST_LEVELS):
        if not brackets:
            return False
        brackets = brackets.replace(b"{}", b"")  # the innermost level
    return bool(brackets)


def is_json(text: bytes) -> bool:
    """Whether it is JSON."""
    try:
        json.loads(text.decode())
    except (ValueError, RecursionError):
        return False
    return True


def why_no_event(line: bytes) -> str | None:
    """Why kopf cannot read a line of a watch, in a phrase; None: it can."""
    try:
        event = json.loads(line.decode())
    except (ValueError, RecursionError):
        return "it is not JSON"
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        return "it is no event"
    found = event.get("object")
    if not isinstance(found, dict):
        return "it has no object"
    if event["type"] == "ERROR" and found.get("code") != 410:
        return f"it is an error: {str(found.get('message'))[:200]}"
    known = event["type"] in ("ADDED", "MODIFIED", "DELETED")
    if known and not isinstance(found.get("metadata"), dict):
        return "its object has no metadata"
    return None


class ShallowContent:
    """The content of an answer to kopf, which parses it by itself.

    A stream ends at the first line that is no event, and kopf lists anew: what it would have told
    is read so.
    """

    def __init__(self, content: "aiohttp.StreamReader", on_deep: Callable[[], None]):
        """`on_deep` is called for each line, or body, of which something is left out."""
        self._content, self._on_deep = content, on_deep

    def __getattr__(self, name: str) -> Any:
        """All else that aiohttp does with it."""
        return getattr(self._content, name)

    async def read(self) -> bytes:
        """A whole body."""
        return self._shallow(await self._content.read())

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """A stream of events, a line each: `size` bytes are read at once, whole lines returned."""
        rest: list[bytes] = []
        async for chunk in self._content.iter_chunked(size):
            *ends, beginning = chunk.split(b"\n")
            if ends:
                ends[0] = b"".join([*rest, ends[0]])
                rest.clear()
                lines, problem = self._events(ends)
                yield lines
                if problem is not None:
                    log.warning("a line of a watch cannot be read, all is listed anew: %s", problem)
                    self._on_deep()
                    await asyncio.sleep(PAUSE_S)
                    yield LIST_ANEW
                    return
            rest.append(beginning)

    def _events(self, lines: list[bytes]) -> tuple[bytes, str | None]:
        """Those before the first that is no event, and why that is none."""
        found: list[bytes] = []
        for line in lines:
            if line.strip():
                event = self._shallow(line)
                problem = why_no_event(event)
                if problem is not None:
                    return b"".join(found), problem
                found.append(event + b"\n")
        return b"".join(found), None

    def _shallow(self, text: bytes) -> bytes:
        found = shallow(text)
        if found is not text:
            self._on_deep()
        return found
