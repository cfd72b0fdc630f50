"""What a list of objects holds."""

from typing import NamedTuple


class Entry(NamedTuple):
    """An object that exists."""

    key: str
    """Its name below the folder."""
    size: int
    """Bytes."""
