"""`$(NAME)` in a container's arguments and in values of its environment, as Kubernetes reads it.

Source: `third_party/forked/golang/expansion/expand.go` of Kubernetes.
"""

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)(\)?)")
"""A variable, or in place of `$` the `$$` that begins none. One that is not closed is the rest of
the text: without it a text of many would be read to its end for each.
"""


def with_variables(text: str, variables: Mapping[str, str]) -> str:
    """The text with the values of variables; the name of one that is not there stays."""

    def value(found: re.Match[str]) -> str:
        if found[1] is None:
            return "$"
        return variables.get(found[1], found[0]) if found[2] else found[0].replace("$$", "$")

    return _REFERENCE.sub(value, text)


def names_in(text: str) -> list[str]:
    """The names of the variables in a text."""
    return [found[1] for found in _REFERENCE.finditer(text) if found[2]]
