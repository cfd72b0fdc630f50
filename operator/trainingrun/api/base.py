"""The common base of every object of the API: no unknown fields, and rules that hold."""

import re
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import ConfigDict, model_validator
from pydantic.alias_generators import to_camel

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

    @model_validator(mode="after")
    def _rules_hold(self) -> Self:
        for rule in self.rules:
            if rule.holds and not rule.holds(self):
                raise BrokenRuleError(rule)
        return self


class StatusModel(Model):
    """A part of the status. Fields of a newer operator are ignored, so that an older one that takes
    over again loses no more than those.
    """

    model_config = ConfigDict(extra="ignore")
