"""What runs in the training image. `Session` is the API for a training loop."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .session import Session

__all__ = ["Session"]


def __getattr__(name: str) -> Any:
    # Loaded at first use: the progress server and the coordinator must not import torch.
    if name == "Session":
        from .session import Session

        return Session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
