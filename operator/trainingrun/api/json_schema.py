"""A TrainingRun's JSON schema, for editors: `python -m trainingrun.api.json_schema` prints it.

It is made of the CRD's schema. What the CRD says in CEL is left out, and so is the status, which
nobody writes.
"""

import json
import sys
from typing import Any

from .crd import Schema, crd
from .v1alpha1 import API_VERSION, KIND

_ANY_FIELD = "x-kubernetes-preserve-unknown-fields"
_NUMBER_OR_TEXT = "x-kubernetes-int-or-string"


def json_schema() -> Schema:
    """The schema by draft 7 of JSON Schema, which editors' YAML language servers read."""
    root = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    spec = _converted(root["properties"]["spec"])
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": KIND,
        "description": root.get("description", ""),
        "type": "object",
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": {"const": API_VERSION},
            "kind": {"const": KIND},
            "metadata": {"type": "object"},
            "spec": spec,
        },
    }


def _converted(node: Any) -> Any:
    """A part of the CRD's schema in the words of JSON Schema."""
    if isinstance(node, list):
        return [_converted(each) for each in node]
    if not isinstance(node, dict):
        return node
    found = {
        key: {name: _converted(child) for name, child in value.items()}
        if key == "properties"
        else value
        if key in ("default", "enum", "required")
        else _converted(value)
        for key, value in node.items()
        if key not in ("nullable", "format") and not key.startswith("x-kubernetes-")
    }
    if node.get(_NUMBER_OR_TEXT):
        found.setdefault("type", ["integer", "string"])
    if "properties" in node and not node.get(_ANY_FIELD):
        found.setdefault("additionalProperties", False)
    if node.get("nullable") and "type" in found:
        types = found["type"] if isinstance(found["type"], list) else [found["type"]]
        found["type"] = [*types, "null"]
        if "enum" in found:
            found["enum"] = [*found["enum"], None]
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(json_schema(), indent=1) + "\n")
