"""An exception in one line; a module without imports, for the driver."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text, at most 500 characters; its type where it has no text."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:500]
