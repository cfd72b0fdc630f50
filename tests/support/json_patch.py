"""JSON patches as the API server applies them (RFC 6902), as far as the operator sends them."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any


def patched(found: Mapping[str, Any], operations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The object after these operations: add, remove, replace and test."""
    changed = copy.deepcopy(dict(found))
    for operation in operations:
        at: Any = changed
        *path, last = (part.replace("~1", "/") for part in operation["path"].split("/")[1:])
        for part in path:
            at = at[int(part)] if isinstance(at, list) else at[part]
        match operation["op"]:
            case "add" | "replace":
                at[last] = operation["value"]
            case "remove":
                del at[last]
            case "test":
                assert at[last] == operation["value"]
            case _:
                raise NotImplementedError(operation)
    return changed
