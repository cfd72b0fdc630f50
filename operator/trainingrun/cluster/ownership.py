"""Whose an object is. One that is not the run's own is never changed, whatever its name."""

from collections.abc import Mapping
from typing import Any


def owner_uid(found: Mapping[str, Any]) -> str | None:
    """UID of the TrainingRun that owns an object; None: none does."""
    for owner in found["metadata"].get("ownerReferences") or ():
        if owner.get("kind") == "TrainingRun":
            return str(owner["uid"])
    return None


def foreign(manifest: Mapping[str, Any], known: Mapping[str, Any] | None) -> str:
    """The sentence for a user whose object has the name of one of ours."""
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    of = owner_uid(known) if known else None
    whose = "of another run" if of else "not this run's"
    return (
        f"a {kind} named {name} exists and is {whose}; delete it, or create the run under another "
        "name"
    )
