"""What every message between operator and runtime has in common; the API's objects build on it.

The types at the end bound what is read from a pod that runs the user's code. What is too much is
cut and not refused: the rest is still worth knowing, and a driver never fails by it.
"""

from collections.abc import Callable
from itertools import islice
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict
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
        found: dict[str, Any] = encodable_data(
            self.model_dump(mode="json", by_alias=True, exclude_none=True)
        )
        return found


def encodable(text: str) -> str:
    r"""Text that UTF-8 can hold: a lone surrogate becomes its escape, such as `\udce4`.

    Python has one for each byte of a file name that is no UTF-8 (`os.fsdecode`). JSON can hold it,
    and then no reader of the document but Python's own takes the document.
    """
    return text.encode(errors="backslashreplace").decode()


def encodable_data(value: Any) -> Any:
    """Plain JSON data of which each text is `encodable`."""
    if isinstance(value, str):
        return value if value.isascii() else encodable(value)
    if isinstance(value, dict):
        return {encodable_data(key): encodable_data(each) for key, each in value.items()}
    return [encodable_data(each) for each in value] if isinstance(value, list) else value


MOST_METRICS = 100
"""Metrics in a document; of more, the first are read."""
LONGEST_METRIC = 200
"""Characters of a metric's name, and of one that is text."""
EXACT = 2**53
"""Whole numbers up to here are the same in every JSON library."""
LATEST = 1e11
"""Unix time in the year 5138: later ones are no dates for most libraries."""


def _within(high: float) -> Callable[[Any], Any]:
    def clamp(value: Any) -> Any:
        # A NaN is not equal to itself.
        return type(value)(min(max(value, 0), high)) if value == value else type(value)(0)

    return clamp


def _cut(characters: int) -> AfterValidator:
    return AfterValidator(lambda text: encodable(text[:characters])[:characters])


def the_last(number: int) -> BeforeValidator:
    """Of a longer list the last entries are read."""
    return BeforeValidator(lambda found: found[-number:] if isinstance(found, list) else found)


def _readable_metrics(found: Any) -> Any:
    if not isinstance(found, dict):
        return found
    return {
        _readable(str(name)): readable
        for name, value in islice(found.items(), MOST_METRICS)
        if (readable := _readable(value)) is not None
    }


def _readable(value: Any) -> Any:
    """A metric that every JSON library reads back as it is; None: there is none."""
    if isinstance(value, str):
        return encodable(value[:LONGEST_METRIC])[:LONGEST_METRIC]
    if isinstance(value, int) and abs(value) > EXACT:
        value = float(value) if abs(value) < 1e300 else None
    if isinstance(value, float) and not abs(value) < float("inf"):
        return str(value)
    return value if isinstance(value, (bool, int, float)) else None


Count = Annotated[int, AfterValidator(_within(EXACT))]
UnixTime = Annotated[float, AfterValidator(_within(LATEST))]
Duration = Annotated[float, AfterValidator(_within(LATEST))]
Share = Annotated[float, AfterValidator(_within(1))]
Name = Annotated[str, _cut(253)]
LogLine = Annotated[str, _cut(200)]
Sentence = Annotated[str, _cut(2000)]
EndOfText = Annotated[str, AfterValidator(lambda text: encodable(text[-4000:])[-4000:])]
Uri = Annotated[str, _cut(2048)]
Metrics = Annotated[dict[str, Any], BeforeValidator(_readable_metrics)]
