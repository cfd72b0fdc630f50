"""Names as Kubernetes takes them, before they are put into the path of a request.

With an empty one, `.` or `..` there, the path would be that of all objects of the kind or of the
namespace, and DELETE would delete them all.
"""

import re

from ..api.base import OBJECT_NAME
from ..api.errors import RunError

_OBJECT = re.compile(OBJECT_NAME)
_MAX_OBJECT = 253
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_MAX_NAMESPACE = 63


def is_of_object(name: object) -> bool:
    """Whether an object can have this name: it is a DNS-1123 subdomain."""
    return _is(name, _OBJECT, _MAX_OBJECT)


def is_of_namespace(name: object) -> bool:
    """Whether a namespace can have this name: it is a DNS-1123 label."""
    return _is(name, _NAMESPACE, _MAX_NAMESPACE)


def of_object(name: object, what: str = "an object") -> str:
    """The name, if an object can have it.

    Args:
        name: The name.
        what: Of what, in the error.

    Raises:
        RunError: No object can.
    """
    if not is_of_object(name):
        raise RunError(
            f"{name!r} is no name of {what}; write at most {_MAX_OBJECT} lower-case letters, "
            "digits, hyphens and dots, with a letter or digit first, last and beside each dot"
        )
    return str(name)


def of_namespace(name: object) -> str:
    """The name, if a namespace can have it.

    Raises:
        RunError: None can.
    """
    if not is_of_namespace(name):
        raise RunError(
            f"{name!r} is no name of a namespace; write at most {_MAX_NAMESPACE} lower-case "
            "letters, digits and hyphens, with a letter or digit first and last"
        )
    return str(name)


def _is(name: object, pattern: re.Pattern[str], longest: int) -> bool:
    return isinstance(name, str) and len(name) <= longest and pattern.fullmatch(name) is not None
