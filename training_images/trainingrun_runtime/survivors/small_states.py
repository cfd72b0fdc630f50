"""Objects whose states are so small that they are noted at the end of each step."""

from collections.abc import Callable
from typing import Any

from torch.amp import GradScaler
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ..checkpoints import snapshot
from ..checkpoints.encoding import encode
from ..checkpoints.stateful_objects import SmallState, Stateful, generator_of
from .watched_tensors import NotCovered

_SMALL = (LRScheduler, SmallState, GradScaler)


def require_small(name: str, thing: Stateful) -> None:
    """Make sure that the object is one of these.

    Raises:
        NotCovered: it is not.
    """
    if isinstance(thing, ReduceLROnPlateau):
        raise NotCovered(f"{name} follows a metric, which may differ from rank to rank")
    if not isinstance(thing, _SMALL) and generator_of(thing) is None:
        raise NotCovered(f"{name} is a {type(thing).__name__}")


def copied(name: str, thing: Stateful) -> Callable[[], Any]:
    """Note the state; the result returns it encoded, later and in any thread."""
    if isinstance(thing, GradScaler):
        return _of_scaler(name, thing)
    if isinstance(thing, SmallState):
        own = thing.state_dict()
        return lambda: encode(own, name)
    state = snapshot.copied(encode(thing.state_dict(), name))
    return lambda: state


def _of_scaler(name: str, scaler: GradScaler) -> Callable[[], Any]:
    """Its `state_dict()` waits for the GPU, where its two numbers are; these are copied there."""
    scale, tracker = scaler._scale, scaler._growth_tracker
    if not scaler.is_enabled() or scale is None or tracker is None:
        state = dict(scaler.state_dict())
        return lambda: encode(state, name)
    scale, tracker = scale.detach().clone(), tracker.detach().clone()
    settings = {
        "growth_factor": scaler.get_growth_factor(),
        "backoff_factor": scaler.get_backoff_factor(),
        "growth_interval": scaler.get_growth_interval(),
    }

    def state_then() -> Any:
        numbers: dict[str, float | int] = {
            "scale": float(scale.item()), **settings, "_growth_tracker": int(tracker.item())
        }  # fmt: skip
        return encode(numbers, name)

    return state_then
