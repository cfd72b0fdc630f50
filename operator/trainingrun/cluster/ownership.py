"""Whose an object is. One that is not the run's own is never changed, whatever its name."""

from collections.abc import Mapping
from typing import Any

from ..reconciling.pod_status import controller_uid


def owner_uid(found: Mapping[str, Any]) -> str | None:
    """UID of the TrainingRun that controls an object; None: none does."""
    return controller_uid(found, "TrainingRun")


def foreign(manifest: Mapping[str, Any], known: Mapping[str, Any] | None) -> str:
    """The sentence for a user whose object has the name of one of ours."""
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    of = owner_uid(known) if known else None
    whose = "of another run" if of else "not this run's"
    return (
        f"a {kind} named {name} exists and is {whose}; delete it, or create the run under another "
        "name"
    )
