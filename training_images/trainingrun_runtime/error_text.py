"""An exception in one line, and ranks in words; a module that loads nothing, for the driver."""

from collections.abc import Collection

from trainingrun_protocol.wire import encodable

_NAMED = 5
"""Ranks that a sentence names."""


def text_of(error: BaseException) -> str:
    """An error's text, such as UTF-8 can hold; none where it cannot tell it."""
    try:
        return encodable(str(error)).strip()
    except Exception:
        return ""


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
