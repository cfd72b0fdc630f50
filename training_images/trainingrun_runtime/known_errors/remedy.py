"""A kind of error, and what to do about it."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Remedy:
    """What to do about one kind of error."""

    id: str
    """For tests."""
    pattern: str
    """Found in the type's name and the text of such an error: `KeyError: 'a'`."""
    advice: str
    """The rest of a sentence that begins with the error: what to do."""

    def matches(self, text: str) -> bool:
        """Whether an error's text is one of these."""
        return re.search(self.pattern, text) is not None  # compiled when it is first needed
