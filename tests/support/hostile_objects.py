"""Objects as somebody may write them who wants the operator to stumble, from a fixed seed."""

import json
import random
from collections.abc import Iterator
from typing import Any

from support.operators import a_run

LEVELS = (1, 31, 32, 33, 63, 99, 100, 101, 254, 256, 480, 940, 1000, 1200, 3000)
"""Around the bounds of the operator, of pydantic and of Python. The API server takes 10,000, but
each write to such an object takes it seconds."""
SIZES = (1, 1, 1, 100, 1000)
"""Entries of the outermost object."""
KEYS = (
    "a",
    "",
    "}",
    '{"',
    "\\",
    "[[",
    "ключ",
    "a.b/c",
    "__proto__",
    "spec",
    "metadata",
    "name",
    " ",
)
SCALARS = (
    *(None, True, False, 0, -1, 2**53, -(2**63), 10**25, 1.5e300, 5e-324, -0.0),
    *(
        "",
        "}{][",
        '"',
        "\\",
        "\n",
        "\0",
        "\ud83d\ude00",
        "\ud800",
        "x" * 300,
        "${A}",
        "$(A)",
        "1e400",
        "%s",
    ),
)


def nested(levels: int, key: str = "a", scalar: Any = 1, lists: bool = False) -> str:
    """JSON of objects, or lists, in one another."""
    opened, closed = ("[", "]") if lists else (f"{{{json.dumps(key)}:", "}")
    return opened * levels + json.dumps(scalar) + closed * levels


def hostile_values(seed: int) -> Iterator[str]:
    """JSON objects of all depths, widths and types, without an end."""
    draw = random.Random(seed)
    while True:
        inner = nested(
            draw.choice(LEVELS), draw.choice(KEYS), draw.choice(SCALARS), draw.random() < 0.3
        )
        beside = {
            f"{draw.choice(KEYS)}{number}": draw.choice(SCALARS)
            for number in range(draw.choice(SIZES))
        }
        rest = json.dumps(beside)
        yield f"{{{json.dumps(draw.choice(KEYS))}:{inner},{rest[1:]}"


def _in_spec(**spec: Any) -> dict[str, Any]:
    return a_run("", "", **spec)


_FUNCTION = {"function": "trainingrun_runtime.examples.linear:train"}
_SWEEP = {"metric": "loss", "mode": "min", "search": "grid"}
PLACES: dict[str, dict[str, Any]] = {
    "config": _in_spec(training={**_FUNCTION, "config": "HERE"}),
    "config-value": _in_spec(training={**_FUNCTION, "config": {"lr": "HERE"}}),
    "pod-template": _in_spec(podTemplate="HERE"),
    "pod-spec": _in_spec(workers={"podTemplate": {"spec": "HERE"}}),
    "container": _in_spec(
        head={"podTemplate": {"spec": {"containers": [{"name": "ray-head", "x": "HERE"}]}}}
    ),
    "pod-metadata": _in_spec(podTemplate={"metadata": {"annotations": "HERE"}}),
    "value-from": _in_spec(training={**_FUNCTION, "env": [{"name": "A", "valueFrom": "HERE"}]}),
    "sweep-value": _in_spec(sweep={**_SWEEP, "space": [{"name": "lr", "values": ["HERE"]}]}),
    "unknown-field": _in_spec(unknown="HERE"),
    "annotations": _in_spec(),
}
"""A TrainingRun for each place that takes free-form JSON, or nearly."""


NOTES = (
    "kopf.zalando.org/last-handled-configuration",
    "kopf.zalando.org/changed",
    "kubectl.kubernetes.io/last-applied-configuration",
)
"""What kopf and kubectl would read in their annotations."""


def run_with(place: str, value: str, namespace: str, name: str) -> str:
    """A TrainingRun, as JSON, with the value in that place."""
    metadata: dict[str, Any] = {"name": name, "namespace": namespace}
    if place == "annotations":
        metadata["annotations"] = dict.fromkeys(NOTES, value)
    return json.dumps({**PLACES[place], "metadata": metadata}).replace('"HERE"', value)
