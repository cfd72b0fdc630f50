"""Types of fields that several sections of the spec have."""

from typing import Annotated, Any, Literal

from pydantic import PlainValidator, Strict
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

Freeform = dict[str, Any]
"""Any JSON object; the CRD keeps its fields as they are."""

_OBJECT_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"


def object_name(field: str, what: str) -> Rule:
    """The field is the name of a Kubernetes object."""
    return matching(
        field,
        _OBJECT_NAME,
        f"must be the name of a {what}: lower-case letters, digits, hyphens and dots",
    )
