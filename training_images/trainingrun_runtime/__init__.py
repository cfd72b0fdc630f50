"""What runs in the training image. `Session` and `ResumableDataLoader` are the API."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .data.resumable_loader import ResumableDataLoader
    from .session import Session

__all__ = ["ResumableDataLoader", "Session"]


def __getattr__(name: str) -> Any:
    # Loaded at first use: the progress server and the coordinator must not import torch.
    if name == "Session":
        from .session import Session

        return Session
    if name == "ResumableDataLoader":
        from .data.resumable_loader import ResumableDataLoader

        return ResumableDataLoader
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
