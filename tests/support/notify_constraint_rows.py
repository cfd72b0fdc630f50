"""The rows for spec.notify."""

from typing import Any

from support.constraints import Row
from support.row_makers import by_rule, max_length, one_of, required

RECEIVER = "spec.notify[]"
SOURCE = f"{RECEIVER}.webhook.secretRef"
EVENTS = ("Failed", "Hang", "Preempted", "Succeeded", "BudgetWarning")


def _to(key: str, name: str = "notifications") -> dict[str, Any]:
    return {"events": ["Failed"], "webhook": {"secretRef": {"name": name, "key": key}}}


NOTIFY_ROWS: list[Row] = [
    Row(
        "spec.notify",
        "maxItems",
        [_to(f"url-{number}") for number in range(8)],
        [_to(f"url-{number}") for number in range(9)],
        "must have at most 8 items",
    ),
    *by_rule(
        "spec.notify",
        "must name each key of a Secret once; put all its events into one entry",
        [[_to("a"), _to("b")], [_to("a"), _to("a", "others")]],
        [[_to("a"), _to("a")], [_to("a"), _to("b"), {**_to("a"), "format": "Slack"}]],
    ),
    required(f"{RECEIVER}.events", ["Failed"]),
    required(f"{RECEIVER}.webhook", {"secretRef": {"name": "notifications", "key": "url"}}),
    Row(f"{RECEIVER}.events", "minItems", ["Hang"], [], "should have at least 1 items"),
    Row(
        f"{RECEIVER}.events",
        "maxItems",
        ["Hang"] * 8,
        ["Hang"] * 9,
        "must have at most 8 items",
    ),
    *(
        Row(f"{RECEIVER}.events[]", "enum", [event], ["failed"], says, f"{RECEIVER}.events")
        for says in [", ".join(f'"{event}"' for event in EVENTS)]
        for event in EVENTS
    ),
    required(SOURCE, {"name": "notifications", "key": "url"}),
    required(f"{SOURCE}.name", "notifications"),
    required(f"{SOURCE}.key", "url"),
    max_length(f"{SOURCE}.name", 253),
    max_length(f"{SOURCE}.key", 253),
    *by_rule(f"{SOURCE}.name", "must be the name of a Secret", ["a.b-c"], ["A", "", "../a"]),
    *by_rule(f"{SOURCE}.key", "must be a key of a Secret", ["Url_1.x"], ["", "a/b", "a b"]),
    *one_of(f"{RECEIVER}.format", "Teams", "CloudEvents", "Slack"),
]
