"""What all sections of the spec have in common: models that know all their fields, with rules that
hold, and types of fields.
"""

import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainValidator,
    Strict,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict
from pydantic.json_schema import JsonSchemaValue, WithJsonSchema
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from trainingrun_protocol.wire import Wire


class Rule(NamedTuple):
    """One constraint that a field's type cannot say, written once for both places that check it.

    The CRD carries `cel` and `message` (the API server refuses the object); `holds` says the same
    in Python, for `trainingrun validate` and for objects that an older CRD let through. A rule
    without `holds` compares with the object's former state (`oldSelf`), which only the API server
    knows. A rule without `cel` is about something that CEL cannot see; the API server takes such
    an object and the operator then refuses it with Accepted=False.
    """

    cel: str | None
    message: str
    holds: Callable[[Any], bool] | None = None
    field: str = ""
    """Python name of the field that is invalid; empty: the object as a whole."""

    @property
    def path(self) -> str:
        """The field's path below the object, as users write it; empty for the whole object."""
        return ".".join(to_camel(part) for part in self.field.split(".")) if self.field else ""


class BrokenRuleError(ValueError):
    """A rule that does not hold; pydantic keeps it in its own error."""

    def __init__(self, rule: Rule):
        super().__init__(rule.message)
        self.rule = rule


def matching(field: str, pattern: str, message: str) -> Rule:
    """The rule that a string field, where it is set, matches a pattern as a whole.

    Unlike OpenAPI's `pattern`, whose violation prints the pattern, it says what to write.

    Args:
        field: The field's Python name.
        pattern: In the syntax that RE2 and Python share, without anchors.
        message: What the user reads.
    """
    # "function" is a reserved word of CEL: unescaped, the API server cannot bound the rule's cost.
    name = "__function__" if field == "function" else to_camel(field)
    compiled = re.compile(pattern)

    def holds(model: Any) -> bool:
        value = getattr(model, field)
        return value is None or compiled.fullmatch(value) is not None

    cel = f"!has(self.{name}) || self.{name}.matches(r'^({pattern})$')"
    return Rule(cel, message, holds, field)


class Model(Wire):
    """An object of the API, whose attribute docstrings become the CRD's field descriptions."""

    model_config = ConfigDict(extra="forbid")

    rules: ClassVar[tuple[Rule, ...]] = ()
    """Constraints on this object; each becomes an `x-kubernetes-validations` entry."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        """As to the API server, a null in a field is a field that is not set."""
        if not isinstance(value, dict) or None not in value.values():
            return value
        known = {field.alias for field in cls.model_fields.values()}
        return {key: item for key, item in value.items() if item is not None or key not in known}

    @model_validator(mode="after")
    def _rules_hold(self) -> Self:
        for rule in self.rules:
            if rule.holds and not rule.holds(self):
                raise BrokenRuleError(rule)
        return self


Whole = Annotated[int, Strict()]
"""A whole number; "4" and true are none, as for the API server."""

Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
"""A number; "4" and true are none, as for the API server."""

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
LEFT_OUT = "(nested too deeply to be read)"
"""What the operator reads in place of an object or a list that it cannot read: more levels."""


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
    if value == LEFT_OUT:
        return (value,)
    return value if isinstance(value, list) else ()


Freeform = Annotated[dict[str, Any], AfterValidator(_not_too_deep)]
"""Any JSON object of at most `MOST_LEVELS`; the CRD keeps its fields as they are."""

OBJECT_NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
"""The name of a Kubernetes object."""

_OWN_VARIABLES = (
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
_OWN_PREFIXES = ("TRAININGRUN_", "KUBERAY_")
"""Environment variables of Ray's containers that the operator or KubeRay sets; with another value
the node does not start, or is taken for another one."""


def object_name(field: str, what: str) -> Rule:
    """The field is the name of a Kubernetes object."""
    return matching(
        field,
        OBJECT_NAME,
        f"must be the name of a {what}: lower-case letters, digits, hyphens and dots",
    )


def is_own_variable(name: str) -> bool:
    """Whether users cannot set the environment variable of that name."""
    return name in _OWN_VARIABLES or name.startswith(_OWN_PREFIXES)


def own_variable_cel(name: str) -> str:
    """`is_own_variable` in CEL, of the expression `name`."""
    prefixes = (f"{name}.startsWith('{prefix}')" for prefix in _OWN_PREFIXES)
    return " || ".join((f"{name} in {list(_OWN_VARIABLES)}", *prefixes))


def without_default(schema: dict[str, Any]) -> None:
    """For `json_schema_extra`: the CRD has no default."""
    schema.pop("default", None)


def inherited(schema: dict[str, Any]) -> None:
    """For `json_schema_extra`: the CRD has no default, which would look as if the run had set the
    field, and would hide that of TrainingDefaults.
    """
    without_default(schema)


def list_by(key: str) -> JsonDict:
    """For `json_schema_extra`: no two items have the same `key`, and each is applied by itself."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


class Newest(NamedTuple):
    """Bounds a list in the CRD; a longer one, which a later version has written, is cut.

    Unlike with `max_length`, its entries are read first: `salvage` leaves out those that are not
    understood, and none that is understood goes in place of one of them.
    """

    most: int
    """Entries that are kept."""
    is_last: bool = True
    """Whether the newest, or the best, is the last one."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """As the list alone, and then cut."""
        return core_schema.no_info_after_validator_function(self._kept, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """As the list alone, with its bound."""
        return handler(schema) | {"maxItems": self.most}

    def _kept(self, found: list[Any]) -> list[Any]:
        return found[-self.most :] if self.is_last else found[: self.most]
