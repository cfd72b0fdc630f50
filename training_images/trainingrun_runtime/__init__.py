"""What runs in the training image. `Session` and the loaders are the API."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .data.ray_loader import ResumableRayDataLoader
    from .data.resumable_loader import ResumableDataLoader
    from .session.session import Session

__all__ = ["ResumableDataLoader", "ResumableRayDataLoader", "Session"]


def __getattr__(name: str) -> Any:
    # Loaded at first use: the progress server and the coordinator must not import torch.
    if name == "Session":
        from .session.session import Session

        return Session
    if name == "ResumableDataLoader":
        from .data.resumable_loader import ResumableDataLoader

        return ResumableDataLoader
    if name == "ResumableRayDataLoader":
        from .data.ray_loader import ResumableRayDataLoader

        return ResumableRayDataLoader
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
