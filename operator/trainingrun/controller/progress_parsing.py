"""A head's progress document, read with bounded cost: the pod that sends it runs the user's code.

What a healthy runtime could exceed is cut (see `api.bounded`); what it never sends is refused.
"""

import json
from typing import Any, NoReturn

from pydantic import ValidationError

from ..api.progress import Progress

MAX_BYTES = 2**18
"""A longer document is refused. 100 records of 1,000 characters fit; parsing one that is as long
takes a few milliseconds of the event loop."""


class DocumentError(ValueError):
    """The document cannot be used; the text says why and holds nothing of the document."""


def read(content: bytes) -> Progress:
    """The document in `content`.

    Raises:
        DocumentError: it is too long, no JSON, or not a document of this contract.
    """
    if len(content) > MAX_BYTES:
        raise DocumentError(f"it is longer than {MAX_BYTES // 1024} KiB")
    try:
        found: Any = json.loads(content, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise DocumentError("it is not JSON, or nested too deeply") from None
    try:
        return Progress.model_validate(found)
    except ValidationError as error:
        names = sorted({_field(problem["loc"]) for problem in error.errors(include_input=False)})
        raise DocumentError(f"its {', '.join(names[:5])} cannot be read") from None


def _field(location: tuple[str | int, ...]) -> str:
    """The document's own field, never a key that the sender chose."""
    known = set(Progress.model_fields)
    known |= {str(one.alias) for one in Progress.model_fields.values()}
    return str(location[0]) if location and location[0] in known else "content"


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
