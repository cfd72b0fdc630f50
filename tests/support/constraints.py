"""Every constraint of the CRD's spec: read from the schema, and the table that tries each of them.

A row holds a value that is just right and one that is just wrong. That the table is complete is
itself a test, so a new constraint needs a row here.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainingrun.api.crd import crd, run_spec

MISSING = object()
"""A row's value for: the field is not there."""

KEYWORDS = (
    *("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties"),
    "enum",
)

MINIMAL: dict[str, Any] = {
    "apiVersion": "trainingrun.dev/v1alpha1",
    "kind": "TrainingRun",
    "metadata": {"name": "digits"},
    "spec": {
        "training": {"function": "examples.digits:train"},
        "storage": {"uri": "s3://runs/team-a"},
    },
}

_PARAMETER = {"name": "lr", "values": [0.1]}
PARENTS: Mapping[str, dict[str, Any]] = {
    "spec.training.script": {"configMap": "code"},
    "spec.training.torchrun": {"script": {"configMap": "code"}},
    "spec.training.env[]": {"name": "A", "value": "1"},
    "spec.workers.accelerator": {"kind": "nvidia"},
    "spec.budget": {"amount": 1},
    "spec.podTemplate.spec.containers[]": {"name": "ray-worker"},
    "spec.workers.podTemplate.spec.containers[]": {"name": "ray-worker"},
    "spec.head.podTemplate.spec.containers[]": {"name": "ray-head"},
    "spec.checkpoints.best": {"metric": "loss"},
    "spec.sweep": {"samples": 2, "metric": "loss", "mode": "min", "space": [_PARAMETER]},
    "spec.sweep.space[]": _PARAMETER,
    "spec.tracking.mlflow": {"uri": "https://mlflow.example.com"},
    "spec.scheduling.queue": {"kind": "Kueue", "name": "team-a"},
    "spec.failures.backoff": {"initialSeconds": 0, "maxSeconds": 86400},
    "spec.failures.rules[]": {"when": {"classes": ["Hang"]}, "then": "Restart"},
    "spec.notify[]": {
        "events": ["Failed"],
        "webhook": {"secretRef": {"name": "notifications", "key": "url"}},
    },
    "spec.notify[].webhook": {"secretRef": {"name": "notifications", "key": "url"}},
    "spec.notify[].webhook.secretRef": {"name": "notifications", "key": "url"},
    "spec.failures.rules[].backoff": {"initialSeconds": 0, "maxSeconds": 86400},
}
"""What an optional object needs to be valid in itself."""


@dataclass(frozen=True)
class Row:
    """One constraint, a value that it lets through and one that it does not.

    Attributes:
        path: The field; `[]` stands for the items of a list.
        keyword: One of `KEYWORDS`, "required", "unique" or "rule".
        good: A value of the field that is accepted.
        bad: One that is refused.
        says: Part of what the API server then says; of a rule, part of its message.
        at: Where the values are put, if that is not the field itself.
    """

    path: str
    keyword: str
    good: Any
    bad: Any
    says: str
    at: str = ""

    def __str__(self) -> str:
        return f"{self.path} {self.keyword}"

    @property
    def accepted(self) -> dict[str, Any]:
        """The smallest run with the good value."""
        return manifest_with(self.at or self.path, self.good)

    @property
    def refused(self) -> dict[str, Any]:
        """The smallest run with the bad value."""
        return manifest_with(self.at or self.path, self.bad)


def minimal_run(namespace: str, **spec: Any) -> dict[str, Any]:
    """The smallest run, in this namespace; `spec` replaces whole fields."""
    run = copy.deepcopy(MINIMAL)
    run["metadata"]["namespace"] = namespace
    run["spec"].update(spec)
    return run


def manifest_with(path: str, value: Any) -> dict[str, Any]:
    """The smallest run, with one field set; its parents are made valid."""
    run = copy.deepcopy(MINIMAL)
    if path.startswith(("spec.training.script", "spec.training.torchrun")):
        del run["spec"]["training"]["function"]
    place: dict[str, Any] = run
    sofar = ""
    *parents, last = path.split(".")
    for part in parents:
        sofar = f"{sofar}.{part}" if sofar else part
        default = copy.deepcopy(PARENTS.get(sofar, {}))
        name = part.removesuffix("[]")
        if part.endswith("[]"):
            place[name] = [default]
            place = place[name][0]
        else:
            place = place.setdefault(name, default)
    if value is MISSING:
        place.pop(last, None)
    else:
        place[last] = value
    return run


def constraints() -> Iterator[tuple[str, str, str]]:
    """Path, keyword and (of a rule) message of every constraint that the CRD puts on a run."""
    root = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for rule in root["x-kubernetes-validations"]:
        yield rule["fieldPath"].removeprefix("."), "rule", rule["message"]
    yield "spec", "required", ""
    yield from _below("spec", run_spec())


def fields() -> Iterator[tuple[str, str]]:
    """Path and type of every field of the spec."""
    yield from _types("spec", run_spec())


def _types(path: str, node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield path, "quantity" if "x-kubernetes-int-or-string" in node else node["type"]
    for name, child in node.get("properties", {}).items():
        yield from _types(f"{path}.{name}", child)
    if "items" in node:
        for name, child in node["items"].get("properties", {}).items():
            yield from _types(f"{path}[].{name}", child)


def _below(path: str, node: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for keyword in KEYWORDS:
        if keyword in node:
            yield path, keyword, ""
    for rule in node.get("x-kubernetes-validations", ()):
        yield path + rule.get("fieldPath", ""), "rule", rule["message"]
    for name in node.get("required", ()):
        yield f"{path}.{name}", "required", ""
    for name, child in node.get("properties", {}).items():
        yield from _below(f"{path}.{name}", child)
    if "items" in node:
        if "x-kubernetes-list-map-keys" in node:
            yield path, "unique", ""
        yield from _below(f"{path}[]", node["items"])
