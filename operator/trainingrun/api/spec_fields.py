"""Types of fields that several sections of the spec have."""

from typing import Annotated, Any

from pydantic import Strict

from .base import Rule, matching

Whole = Annotated[int, Strict()]
"""A whole number; "4" and true are none, as for the API server."""

Switch = Annotated[bool, Strict()]
"""true or false; "yes" and 1 are neither."""

Freeform = dict[str, Any]
"""Any JSON object; the CRD keeps its fields as they are."""

_OBJECT_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"


def object_name(field: str, what: str) -> Rule:
    """The field is the name of a Kubernetes object."""
    return matching(
        field,
        _OBJECT_NAME,
        f"must be the name of a {what}: lower-case letters, digits, hyphens and dots",
    )
