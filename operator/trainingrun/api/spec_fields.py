"""Types of fields that several sections of the spec have."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, PlainValidator, Strict
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError

from .base import Rule, matching

Whole = Annotated[int, Strict()]
"""A whole number; "4" and true are none, as for the API server."""

Switch = Annotated[bool, Strict()]
"""true or false; "yes" and 1 are neither."""


def _number_or_text(value: Any) -> Any:
    if type(value) is int or isinstance(value, str):
        return value
    raise PydanticCustomError("whole_or_auto", "must be a whole number or auto")


NumberOrAuto = Annotated[
    int | Literal["auto"],
    PlainValidator(_number_or_text),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "maxLength": 16,
        }
    ),
]
"""A whole number, or the word auto; a `Rule` of the model refuses other words."""

MOST_LEVELS = 32
"""Of objects and lists in a `Freeform` field, which itself is the first."""


def _not_too_deep(value: dict[str, Any]) -> dict[str, Any]:
    level: list[Any] = [value]
    for _ in range(MOST_LEVELS):
        level = [inner for outer in level for inner in _items(outer) if _items(inner)]
        if not level:
            return value
    raise PydanticCustomError(
        "nested_too_deeply", f"must be nested at most {MOST_LEVELS} levels deep; flatten it"
    )


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


Freeform = Annotated[dict[str, Any], AfterValidator(_not_too_deep)]
"""Any JSON object of at most `MOST_LEVELS`; the CRD keeps its fields as they are."""

SCALAR_SCHEMA = {"x-kubernetes-preserve-unknown-fields": True, "maxProperties": 0, "maxItems": 0}
"""Any JSON, but nothing in an object or a list: structural schemas have no type for scalars."""

_OBJECT_NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*"

OWN_VARIABLES = (
    "POD_NAME",
    "NODE_NAME",
    "RAY_ADDRESS",
    "RAY_IP",
    "RAY_PORT",
    "RAY_AUTH_MODE",
    "RAY_AUTH_TOKEN",
    "RAY_CLOUD_INSTANCE_ID",
    "RAY_CLUSTER_NAME",
    "RAY_NODE_TYPE_NAME",
    "RAY_REDIS_ADDRESS",
    "FQ_RAY_IP",
)
OWN_PREFIXES = ("TRAININGRUN_", "KUBERAY_")
"""Environment variables of Ray's containers that the operator or KubeRay sets; with another value
the node does not start, or is taken for another one."""


def object_name(field: str, what: str) -> Rule:
    """The field is the name of a Kubernetes object."""
    return matching(
        field,
        _OBJECT_NAME,
        f"must be the name of a {what}: lower-case letters, digits, hyphens and dots",
    )


def is_own_variable(name: str) -> bool:
    """Whether users cannot set the environment variable of that name."""
    return name in OWN_VARIABLES or name.startswith(OWN_PREFIXES)


def own_variable_cel(name: str) -> str:
    """`is_own_variable` in CEL, of the expression `name`."""
    prefixes = (f"{name}.startsWith('{prefix}')" for prefix in OWN_PREFIXES)
    return " || ".join((f"{name} in {list(OWN_VARIABLES)}", *prefixes))


def without_default(schema: dict[str, Any]) -> None:
    """For `json_schema_extra`: the CRD has no default."""
    schema.pop("default", None)
