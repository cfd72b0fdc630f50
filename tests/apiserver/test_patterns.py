"""failures.rules[].when.logPattern: what the API server takes, the runtime's RE2 can search."""

import random

import pyarrow as pa
import pyarrow.compute as pc

from support.apiserver import ApiError, ApiServer
from support.operators import a_run
from trainingrun.api.parse import parse

DRAWN = 400
PARTS = (
    *("a", "b", "-", ",", ".", "^", "$", "|", "*", "+", "?", "{", "}", "{2}", "{2,}", "{,2}"),
    *("(", ")", "(?:", "(?i)", "(?-i)", "(?U)", "(?s:", "(?P<n>", "(?<m>", "(?=", "(?!", "(?>"),
    *("[", "]", "[^", "[[:alpha:]]", "[[:^digit:]]", "-]", r"\d", r"\W", r"\b", r"\A", r"\z"),
    *(r"\pN", r"\p{Greek}", r"\P{^L}", r"\Q", r"\E", r"\x{41}", r"\x41", r"\012", r"\1", r"\C"),
    *("\\", r"\n", r"\_", "é", "\N{SNOWMAN}", "&&", "#", " "),
)
NAMED = (
    *(r"(?<name>x)", r"\pN+ bytes", r"done\z", r"(?U)x", r"\Qa.b\E", r"[[:digit:]]+ bytes"),
    *(r"(?P<n>x)", r"\x{41}", r"[\w-a]", r"(?-i)a", "a(?i)b", "^*", r"\pN", r"a{1000}"),
)


def is_taken(apiserver: ApiServer, namespace: str, pattern: str) -> bool:
    rule = {"when": {"logPattern": pattern}, "then": "Fail"}
    try:
        apiserver.create(a_run(namespace, "a", failures={"rules": [rule]}), dry_run=True)
    except ApiError:
        return False
    return True


def can_be_searched(pattern: str) -> bool:
    try:
        pc.match_substring_regex(pa.array(["a"], pa.string()), pattern)
    except pa.ArrowException:
        return False
    return True


def test_whatever_the_api_server_takes_the_operator_and_the_runtime_can_use(
    apiserver: ApiServer, namespace: str
) -> None:
    draw = random.Random(7)
    drawn = ["".join(draw.choices(PARTS, k=draw.randint(1, 6))) for _ in range(DRAWN)]
    taken = [one for one in (*NAMED, *drawn) if is_taken(apiserver, namespace, one)]
    assert set(NAMED) <= set(taken)
    assert len(taken) > DRAWN / 10, "so many are tried"
    assert [one for one in taken if not can_be_searched(one)] == []
    for pattern in taken:
        rule = {"when": {"logPattern": pattern}, "then": "Fail"}
        manifest = a_run(namespace, "a", failures={"rules": [rule]})
        manifest["metadata"] |= {"uid": "u", "resourceVersion": "1"}
        parse(manifest)
