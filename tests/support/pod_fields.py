"""Every field of a pod template that holds a number or a quantity, and values that Go's types for
it do not take."""

from collections.abc import Iterator
from typing import Any

from support.constraints import minimal_run
from trainingrun.api import pod_schema

TEMPLATES = ("podTemplate", "head.podTemplate", "workers.podTemplate")
"""Where a run has pod templates."""

Path = tuple[str, ...]

BAD: dict[str, list[Any]] = {
    "int32": [2**31, -(2**31) - 1, 2**63, "1", 1.5, True],
    "int64": [2**63, -(2**63) - 1, "1", 1.5, True],
    "int-or-string": [2**31, -(2**31) - 1, 1.5, True],
    "quantity": [
        *("", "4 cores", "1Gib", "0x10", "1e1.5", "1e100", "16GB", "1_000", "Infinity", "1 Gi"),
        *("--1", "1K", "1mi", "9223372036854775808", "8Ei", "1" * 65, "\uff11"),
        *(2**63, 0.5, True),
    ],
    "date-time": ["today", "2026-01-31", 1],
}
"""By the type of the field."""


def field_paths(kind: str) -> Iterator[tuple[Path, str]]:
    """The fields below a type, each with its own type; `[]` is an item, `{}` an entry."""
    for field, holds in pod_schema.schema()["types"][kind].items():
        if isinstance(holds, str):
            yield from _below((field,), holds)


def _below(path: Path, holds: str) -> Iterator[tuple[Path, str]]:
    if holds[:2] in ("[]", "{}"):
        yield from _below((*path, holds[:2]), holds[2:])
    elif holds[0].isupper():
        for inner, found in field_paths(holds):
            yield (*path, *inner), found
    else:
        yield path, holds


TEMPLATE_PATHS = [(path, kind) for path, kind in field_paths(pod_schema.TEMPLATE) if kind in BAD]


def with_value(path: Path, value: Any) -> Any:
    """A pod template that has this value there."""
    for part in reversed(path):
        value = [value] if part == "[]" else {"key": value} if part == "{}" else {part: value}
    return value


def a_run(place: str, template: Any, namespace: str = "team-a") -> dict[str, Any]:
    """The smallest run with this pod template in one of the places."""
    spec: dict[str, Any] = {}
    inner = spec
    *parents, last = place.split(".")
    for part in parents:
        inner = inner.setdefault(part, {})
    inner[last] = template
    return minimal_run(namespace, **spec)


_RAY = {"name": "ray-worker"}
VALID: list[Any] = [
    {"metadata": {"creationTimestamp": None, "labels": {"a": ""}}},
    {"spec": {"tolerations": None, "nodeSelector": {"a": None}}},
    {"spec": {"tolerations": [{"operator": "Exists"}]}},
    {"spec": {"containers": [{**_RAY, "livenessProbe": {"httpGet": {"port": "metrics"}}}]}},
    {
        "spec": {
            "containers": [
                {
                    **_RAY,
                    "volumeMounts": [
                        {"name": "data", "mountPath": "/data"},
                        {"name": "shared-memory", "mountPath": "/shm"},
                    ],
                    "resources": {"limits": {"cpu": 4, "memory": "4e9", "a.b/c": "1"}},
                },
                {
                    "name": "proxy",
                    "image": "a",
                    "ports": [{"name": "web", "containerPort": 80}],
                    "startupProbe": {"tcpSocket": {"port": "web"}},
                },
            ],
            "volumes": [{"name": "data", "emptyDir": {}}],
        }
    },
]
"""Pod templates of workers, or of all pods, that are right."""
