"""Bounds for every number and quantity of a podTemplate in the CRD's schema.

The API server then refuses what Go could not read in a RayJob. It lets a structural schema alone
look into a field that keeps unknown ones; CEL does not see them.
"""

from collections.abc import Mapping
from typing import Any

from . import pod_schema
from .pod_schema import INT32, LONGEST_QUANTITY, QUANTITY

Schema = dict[str, Any]

_BOUNDED = (
    (("podTemplate",), pod_schema.TEMPLATE),
    (("head", "podTemplate"), pod_schema.TEMPLATE),
    (("workers", "podTemplate"), pod_schema.TEMPLATE),
    (("training", "env", "[]", "valueFrom"), pod_schema.SOURCE),
)
"""Fields of the spec that hold parts of a pod, and the type of each."""

_LEFT_OUT = ("ephemeralContainers", "metadata")
"""Nobody has numbers there; the operator refuses those that are no numbers of Go all the same."""


class Inline(dict[str, Any]):
    """A part of a schema that is written in one line of YAML."""


def bounded(spec: Schema) -> Schema:
    """The schema of a run's spec, with bounds in the fields that hold parts of a pod."""
    for path, kind in _BOUNDED:
        spec = _at(spec, path, kind)
    return spec


def _at(node: Schema, path: tuple[str, ...], kind: str) -> Schema:
    if not path:
        return _merged(node, _of_object(kind) or {})
    first, *rest = path
    if first == "[]":
        return {**node, "items": _at(node["items"], tuple(rest), kind)}
    inner = _at(node["properties"][first], tuple(rest), kind)
    return {**node, "properties": {**node["properties"], first: inner}}


def _of_object(kind: str) -> Schema | None:
    fields: Mapping[str, Any] = pod_schema.schema()["types"][kind]
    properties = {
        field: schema
        for field, holds in fields.items()
        if field not in _LEFT_OUT and isinstance(holds, str) and (schema := _of(holds))
    }
    if not properties:
        return None
    kept = {"x-kubernetes-preserve-unknown-fields": True}
    # A null takes away what is rendered.
    return {"type": "object", "nullable": True, **kept, "properties": properties}


def _of(holds: str) -> Schema | None:
    """The schema of a field that holds this; None: no number is in it."""
    least, most = INT32
    either = {"x-kubernetes-int-or-string": True, "nullable": True}
    match holds:
        case "int32":
            bounds = {"minimum": least, "maximum": most}
            return Inline({"type": "integer", "format": holds, "nullable": True, **bounds})
        case "int64":
            return Inline({"type": "integer", "format": holds, "nullable": True})
        case "int-or-string":
            return Inline({**either, "minimum": least, "maximum": most})
        case "quantity":
            return Inline({**either, "maxLength": LONGEST_QUANTITY, "pattern": f"^{QUANTITY}$"})
    inner = holds[2:]
    if holds.startswith("[]"):
        schema = _of(inner)
        return schema and {"type": "array", "nullable": True, "items": schema}
    if holds.startswith("{}"):
        schema = _of(inner)
        return schema and {"type": "object", "nullable": True, "additionalProperties": schema}
    return _of_object(holds) if holds[0].isupper() else None


def _merged(node: Schema, bounds: Schema) -> Schema:
    """A node with the fields that it does not have yet."""
    merged = dict(node)
    if "items" in node and "items" in bounds:
        merged["items"] = _merged(node["items"], bounds["items"])
    if "properties" in bounds:
        known: dict[str, Schema] = node.get("properties", {})
        merged["properties"] = {
            **{
                name: _merged(one, bounds["properties"].get(name, {}))
                for name, one in known.items()
            },
            **{name: one for name, one in bounds["properties"].items() if name not in known},
        }
    return merged
