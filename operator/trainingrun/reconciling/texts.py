"""Texts that reach the status or an event: all of them are cut, for etcd limits an object to 1.5 MB
and what training code, KubeRay or a webhook says has no limit of its own.
"""

MESSAGE = 1000
"""Characters of a condition's or an event's message."""
ATTEMPT_MESSAGE = 500
"""Characters of an attempt's message; twenty attempts are kept."""
URI = 1024
"""Characters of a checkpoint's URI; S3 allows keys of 1,024 bytes."""


def short(text: str, most: int = MESSAGE) -> str:
    """The text on one line, its end cut off where it is longer.

    Without controls and other invisible characters: a terminal that prints a status must not
    execute control sequences of training code.
    """
    # The cut comes first: what has no limit is not to be split as a whole.
    line = " ".join(text[: 4 * most].split())
    if not line.isprintable():
        line = "".join(filter(str.isprintable, line))
    return line if len(line) <= most else f"{line[: most - 3]}..."
