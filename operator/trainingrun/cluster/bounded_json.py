"""JSON of the API server, in which nothing is nested too deeply to be read, and all is JSON.

The API server takes an object with 10,000 levels in a field that it does not check; Python's JSON
reader ends at about 950 of them, pydantic's writer at 255. One such object must not end the watch
through which all others are seen, nor hold it up: what lies too deep in it is left out before it is
parsed, without a step of Python for each bracket, of which an object may have a million. Nor may a
line that is no event, as of a proxy in between: kopf, and with it the process, ends at one.
"""

import asyncio
import json
import logging
import re
from array import array
from collections.abc import AsyncIterator, Callable
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ..api.base import LEFT_OUT

if TYPE_CHECKING:  # the command line has no aiohttp
    import aiohttp

MOST_LEVELS = 100
"""Levels that are read of an answer or an event: more than a valid object of any kind has."""
LIST_ANEW = b'{"type": "ERROR", "object": {"code": 410}}\n'
"""The event after which kopf lists everything anew: the resource version is too old."""
PAUSE_S = 1.0
"""Before that: a proxy may send the same once more."""
MOST_LEFT_OUT = 1000
"""Places that are left out one by one; where a text has more, what is around them is too."""
WHOLE_LEVELS = 6
"""Below these is what is around them: in a list down to the podTemplate of a run's workers, so that
an object's metadata and status stay."""

log = logging.getLogger(__name__)

_STEPS = bytes({"[": 1, "{": 1, "]": 255, "}": 255}.get(chr(at), 0) for at in range(256))
"""By each character, how much deeper what follows lies: 255 is -1."""
_NO_BRACKETS = bytes(at for at in range(256) if not _STEPS[at])
_BLANK = bytes.maketrans(b"[]{}", b"    ")
# Of a byte for each character: 2 where that lies below `MOST_LEVELS`, 1 below `WHOLE_LEVELS`.
_TOO_DEEP = re.compile(rb"\x02+")
_AROUND = re.compile(rb"(?<=\x00)\x01++\x02[\x01\x02]*+")


def loads(text: bytes) -> Any:
    """The value that JSON text describes, as far as it is not nested too deeply.

    Raises:
        ValueError: it is not JSON.
    """
    return json.loads(shallow(text))


def shallow(text: bytes) -> bytes:
    """The same JSON text, with `LEFT_OUT` for what lies below `MOST_LEVELS`. Where those are more
    than `MOST_LEFT_OUT` places, it stands for what is around them: little is left to be parsed.
    """
    if not _is_deep(text):
        return text
    parts = _without_escapes(text).split(b'"')
    parts[1::2] = [string.translate(_BLANK) for string in parts[1::2]]
    levels = accumulate(array("b", b'"'.join(parts).translate(_STEPS)))
    # A level is at most the text's length, and below 0 where more is closed than was opened.
    kinds = bytes(WHOLE_LEVELS + 1) + b"\1" * (MOST_LEVELS - WHOLE_LEVELS)
    kinds += b"\2" * len(text) + bytes(len(text))
    found = bytes(map(kinds.__getitem__, levels))
    places = _TOO_DEEP if found.count(b"\1\2") <= MOST_LEFT_OUT else _AROUND
    kept: list[bytes] = []
    begin = 0
    for place in places.finditer(found):
        kept += text[begin : place.start()], json.dumps(LEFT_OUT).encode()
        begin = place.end() + 1  # its last bracket, which is of the level above
    return b"".join([*kept, text[begin:]])


def _is_deep(text: bytes) -> bool:
    """Whether there are more than `MOST_LEVELS`: quickly, since every event comes through here."""
    if text.count(b"{") + text.count(b"[") <= MOST_LEVELS:
        return False
    outside_strings = b"".join(_without_escapes(text).split(b'"')[::2])
    levels = accumulate(array("b", outside_strings.translate(_STEPS, _NO_BRACKETS)))
    return max(levels, default=0) > MOST_LEVELS


def _without_escapes(text: bytes) -> bytes:
    """As long as the text, and with a quote only where a string begins or ends."""
    return text.replace(rb"\\", b"__").replace(rb"\"", b"__")


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
