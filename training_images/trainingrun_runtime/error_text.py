"""An exception as text, and ranks in words; a module that loads nothing, for the driver.

What an error says of a secret stands in the status, in events and on the run's page otherwise.
"""

import os
import traceback
from collections.abc import Collection

from .masking import Masking

_NAMED = 5
"""Ranks that a sentence names."""


def text_of(error: BaseException) -> str:
    """An error's text without secrets, such as UTF-8 can hold; none where it cannot tell it."""
    try:
        return without_secrets(str(error)).strip()
    except Exception:
        return ""


def trace_of(error: BaseException) -> str:
    """An error as Python prints it, without secrets, such as UTF-8 can hold."""
    return without_secrets("".join(traceback.format_exception(error)))


def without_secrets(text: str) -> str:
    """A text without those of this process's environment, such as UTF-8 can hold."""
    return Masking(os.environ).text(text)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, at most 500 characters; its type where it has no text."""
    lines = text_of(error).splitlines()
    return (lines[0] if lines else type(error).__name__)[:500]


def in_words(ranks: Collection[int]) -> str:
    """Such as `rank 1` or `ranks 0, 1 and 3`."""
    named = [str(rank) for rank in sorted(ranks)[:_NAMED]]
    if len(ranks) > _NAMED:
        named.append(f"{len(ranks) - _NAMED} more")
    if len(named) == 1:
        return f"rank {named[0]}"
    return f"ranks {', '.join(named[:-1])} and {named[-1]}"
