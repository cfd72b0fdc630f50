"""The common base of every API model: camelCase outside, snake_case inside, no unknown fields."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel


class Rule(NamedTuple):
    """One constraint that a field's type cannot say, written once for both places that check it.

    The CRD carries `cel` and `message` (the API server refuses the object); `holds` says the same
    in Python, for `trainingrun validate` and for objects that an older CRD let through. A rule
    without `holds` compares with the object's former state (`oldSelf`), which only the API server
    knows.
    """

    cel: str
    message: str
    holds: Callable[[Any], bool] | None = None


class Model(BaseModel):
    """A frozen model whose attribute docstrings become the CRD's field descriptions."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    rules: ClassVar[tuple[Rule, ...]] = ()
    """Constraints on this object; each becomes an `x-kubernetes-validations` entry."""

    @model_validator(mode="after")
    def _rules_hold(self) -> Self:
        broken = [rule.message for rule in self.rules if rule.holds and not rule.holds(self)]
        if broken:
            raise ValueError("; ".join(broken))
        return self

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data with the API's own names; unset optional fields are left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
