"""Whose an object is: the chain of its controllers, by UID. Labels alone decide nothing.

Whoever copies an object copies its labels: `kubectl debug --copy-to --keep-labels`, a backup that
is restored, a manifest that is exported and created again.
"""

from typing import NamedTuple

from .model import Object


class Controller(NamedTuple):
    """The object that controls another one."""

    uid: str
    name: str


def controller(owned: Object, kind: str) -> Controller | None:
    """The object of that kind that controls it; None: none does."""
    for owner in owned["metadata"].get("ownerReferences") or ():
        if owner.get("controller") and owner.get("kind") == kind:
            return Controller(str(owner.get("uid")), str(owner.get("name")))
    return None


def controller_uid(owned: Object, kind: str) -> str | None:
    """UID of the object of that kind that controls it; None: none does."""
    found = controller(owned, kind)
    return found.uid if found else None
