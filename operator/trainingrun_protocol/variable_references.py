"""`$(NAME)` in a container's arguments and in values of its environment, as Kubernetes reads it.

Source: `third_party/forked/golang/expansion/expand.go` of Kubernetes.
"""

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")
"""A variable, or in place of `$` the `$$` that begins none."""


def with_variables(text: str, variables: Mapping[str, str]) -> str:
    """The text with the values of variables; the name of one that is not there stays."""
    return _REFERENCE.sub(
        lambda found: "$" if found[1] is None else variables.get(found[1], found[0]), text
    )
