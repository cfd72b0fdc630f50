"""JSON of the API server is read whatever somebody has nested in it, and only that is left out."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.hostile_objects import PLACES, run_with
from trainingrun.api.base import LEFT_OUT
from trainingrun.cluster import bounded_json
from trainingrun.cluster.bounded_json import (
    MOST_LEFT_OUT,
    MOST_LEVELS,
    ShallowContent,
    loads,
    shallow,
)
from trainingrun.cluster.parsing import parse

TEXTS = st.text(alphabet='{}[]"\\:,a€\n', max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=60,
)


def nested(levels: int, inner: str = "1", key: str = "a") -> str:
    return f"{{{json.dumps(key)}:" * levels + inner + "}" * levels


def levels_of(value: object) -> int:
    levels = 0
    while isinstance(value, dict | list) and value:
        value = next(iter(value.values() if isinstance(value, dict) else value))
        levels += 1
    return levels


@given(JSON, st.sampled_from([None, 1]))
def test_what_is_not_deep_is_the_same_text(value, indent):
    text = json.dumps(value, indent=indent, ensure_ascii=False).encode()
    assert shallow(text) is text
    assert loads(text) == value


@given(JSON, TEXTS, st.integers(MOST_LEVELS, 10_000))
def test_what_is_deep_is_left_out_and_all_else_is_kept(beside, key, levels):
    text = f'{{"before":{json.dumps(beside)},"deep":{nested(levels, key=key)},"after":[1]}}'
    found = loads(text.encode())
    assert (found["before"], found["after"]) == (beside, [1])
    assert levels_of(found["deep"]) == MOST_LEVELS - 1
    assert LEFT_OUT in json.dumps(found["deep"])


def test_every_valid_level_is_read():
    assert levels_of(loads(nested(MOST_LEVELS).encode())) == MOST_LEVELS
    assert loads(("[" * MOST_LEVELS + "]" * MOST_LEVELS).encode()) is not None


def test_what_is_no_json_is_a_value_error():
    for text in ("{" * 5000, "}" * 5000, '["' * 5000, "[" * 5000 + "]" * 4000):
        with pytest.raises(ValueError, match=r".+"):
            loads(text.encode())


MANY_DEEP = f"[{','.join(['[' * 120 + ']' * 120] * (MOST_LEFT_OUT + 1))}]"
"""More of them than are left out one by one. An object may have five times as many."""

SHAPES = {
    "object": "{}",
    "event": '{{"type":"ADDED","object":{}}}',
    "page": '{{"apiVersion":"v1","items":[{},{{"metadata":{{"name":"b"}}}}],"metadata":{{}}}}',
}
"""Texts that have an object in them."""
FREEFORM = sorted(PLACES.keys() - {"annotations", "unknown-field", "sweep-value"})
"""Places at which the API server takes whatever is nested."""


def object_of(found: dict[str, Any]) -> dict[str, Any]:
    """The object, or the first one, in what was read of one of `SHAPES`."""
    return dict(found["items"][0] if "items" in found else found.get("object", found))


def a_run_with(place: str, value: str) -> dict[str, Any]:
    """A run, as text of the API server's, with the value in that place."""
    run = json.loads(run_with(place, '"HERE"', "a", "b"))
    run["metadata"] |= {"uid": "1", "resourceVersion": "2", "managedFields": [{"f:spec": "HERE"}]}
    run["status"] = {"attempt": 1}
    return json.dumps(run).replace('"HERE"', value)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("place", FREEFORM)
def test_of_very_many_deep_places_little_is_left_and_no_valid_run(place: str, shape: str):
    text = shape.format(a_run_with(place, MANY_DEEP)).encode()
    assert shallow(text).count(b"[") < text.count(b"[") / 50
    found = object_of(loads(text))
    assert (found["metadata"]["uid"], found["metadata"]["resourceVersion"]) == ("1", "2")
    assert found["status"] == {"attempt": 1}
    assert parse(found)[1] is not None


def test_a_page_with_one_such_object_has_all_others_as_they_are():
    ordinary = [
        {"metadata": {"name": f"run-{n}"}, "spec": {"config": {"a": [[{"b": "}"}]] * 50}}}
        for n in range(24)
    ]
    texts = [*map(json.dumps, ordinary), a_run_with("config", MANY_DEEP)]
    found = loads(f'{{"items":[{",".join(texts)}]}}'.encode())["items"]
    assert found[:24] == ordinary
    assert found[24]["metadata"]["name"] == "b"


@settings(max_examples=10)
@given(JSON, TEXTS, st.integers(MOST_LEVELS, 120))
def test_where_many_places_are_deep_what_is_beside_them_is_kept(beside, key, levels):
    deep = ",".join([nested(levels, key=key)] * (MOST_LEFT_OUT + 1))
    object_ = f'{{"before":{json.dumps(beside)},"spec":{{"a":{{"b":[{deep}],"c":1}}}},"after":[1]}}'
    found = object_of(loads(SHAPES["event"].format(object_).encode()))
    assert (found["before"], found["after"], found["spec"]["a"]["c"]) == (beside, [1], 1)
    assert LEFT_OUT in json.dumps(found["spec"]["a"]["b"])


class InChunks:
    """A stream that arrives in pieces of one size."""

    def __init__(self, content: bytes, size: int):
        self.content, self.size, self.total_bytes = content, size, len(content)

    async def iter_chunked(self, _: int) -> AsyncIterator[bytes]:
        for begin in range(0, len(self.content), self.size):
            yield self.content[begin : begin + self.size]

    async def read(self) -> bytes:
        return self.content


@pytest.mark.parametrize("size", [1, 7, 1000, 10**6])
async def test_of_a_stream_one_line_is_cut_and_the_others_are_as_they_were(size):
    begin, end = b'{"type":"ADDED","object":{"metadata":{},"a":', b"}}"
    values = [b"1", nested(2000).encode(), b'{"c":"}\\n{"}']
    deep, lines = [], [begin + value + end for value in values]
    content = ShallowContent(InChunks(b"\n".join(lines) + b"\n", size), lambda: deep.append(1))
    found = b"".join([chunk async for chunk in content.iter_chunked(10**6)]).split(b"\n")
    assert [found[0], *found[2:]] == [lines[0], lines[2], b""]
    assert levels_of(json.loads(found[1])["object"]["a"]) == MOST_LEVELS - 2
    assert deep == [1]


async def test_a_body_is_cut_as_well_and_all_else_is_the_streams_own():
    deep = []
    content = ShallowContent(InChunks(nested(2000).encode(), 1), lambda: deep.append(1))
    assert levels_of(json.loads(await content.read())) == MOST_LEVELS
    assert deep == [1]
    assert content.total_bytes == len(nested(2000))


AN_EVENT = b'{"type": "ADDED", "object": {"metadata": {"name": "a"}}}'


async def events_of(*lines: bytes) -> tuple[list[dict[str, Any]], int]:
    """What kopf reads of a stream of these lines, and how many lines were not readable."""
    unreadable: list[int] = []
    stream = InChunks(b"\n".join(lines) + b"\n", 7)
    content = ShallowContent(stream, lambda: unreadable.append(1))
    text = b"".join([part async for part in content.iter_chunked(7)])
    return [json.loads(line) for line in text.splitlines()], len(unreadable)


@pytest.mark.parametrize(
    "line",
    [
        b"<html>502 Bad Gateway</html>",
        b'{"type": "ADDED", "object": {"metadata": {',
        b"\xff\xfe",
        b"[]",
        b'"ADDED"',
        b'{"object": {}}',
        b'{"type": "ADDED"}',
        b'{"type": "MODIFIED", "object": {"metadata": null}}',
        b'{"type": "ERROR", "object": {"code": 500, "message": "etcdserver: no leader"}}',
    ],
)
async def test_a_line_of_a_watch_that_is_no_event_has_kopf_list_anew(
    line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kopf ends the process at each of them."""
    monkeypatch.setattr(bounded_json, "PAUSE_S", 0)
    events, unreadable = await events_of(AN_EVENT, line, AN_EVENT)
    assert events == [json.loads(AN_EVENT), {"type": "ERROR", "object": {"code": 410}}]
    assert unreadable == 1


async def test_events_of_a_watch_are_as_the_api_server_sends_them() -> None:
    bookmark = b'{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}'
    expired = b'{"type": "ERROR", "object": {"code": 410, "message": "too old"}}'
    events, unreadable = await events_of(AN_EVENT, bookmark, b"", expired)
    assert events == [json.loads(one) for one in (AN_EVENT, bookmark, expired)]
    assert unreadable == 0
