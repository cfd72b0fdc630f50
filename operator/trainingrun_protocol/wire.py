"""What every message between operator and runtime has in common; the API's objects build on it."""

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Wire(BaseModel):
    """A frozen message, camelCase outside, snake_case inside.

    Fields of a newer version are ignored, so that operator and runtime can be of different ones.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
    )

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data with the names of outside; unset optional fields are left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
