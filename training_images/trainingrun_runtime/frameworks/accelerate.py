"""Hugging Face Accelerate: a session of what `Accelerator.prepare` has wrapped.

model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
session = prepared_session(model=model, optimizer=optimizer, seed=0)
for epoch in session.epochs(10):
    for batch in batches(session, loader):
        accelerator.backward(loss_of(model, batch))
        ...
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from accelerate import skip_first_batches
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler

from ..session.session import Session
from .driven_loop import (
    refuse_other_numbers,
    refuse_other_samples,
    require_repeatable,
    samplers_of,
)


def prepared_session(*, seed: int | None = None, **objects: Any) -> Session:
    """A session of prepared objects, without their wrappers; see `Session`.

    The scaler of the loss that an optimizer has with `mixed_precision="fp16"` is one of them, as
    `scaler`. Leave prepared loaders out: `batches` continues them.
    """
    bare = {name: _bare(thing) for name, thing in objects.items()}
    return Session(seed=seed, **bare, **_scalers(objects))


def batches(session: Session, loader: Any) -> Iterator[Any]:
    """The batches of the epoch under way that are left, in each step one.

    Args:
        session: within its `epochs()`.
        loader: a prepared one with a length, whose order follows from the number of the epoch.

    Raises:
        ValueError: its order is drawn anew at each start, or the number of workers may change, or
            is another one than that of the checkpoint within this epoch, or another loop has done
            steps of this epoch.
    """
    require_repeatable(
        loader,
        "make the accelerator with dataloader_config=DataLoaderConfiguration("
        "use_seedable_sampler=True)",
    )
    refuse_other_numbers("batches() of an Accelerate loader")
    whole = len(loader)
    done = session.steps_of_epoch
    refuse_other_samples(session, done, "batches() of an Accelerate loader")
    # Accelerate's loader reaches no batch sampler of one's own below those that it wraps it with.
    for each in (loader, *samplers_of(loader)):
        if callable(set_epoch := getattr(each, "set_epoch", None)):
            set_epoch(session.epoch)
    rest = iter(skip_first_batches(loader, done) if done else loader)
    for step in session.steps_of(loader, whole, "batches"):
        batch = next(rest)
        # The loader draws a number when it begins, and so it does in the first step of a resumed
        # run: that step's dropout would be another one.
        session._random.begin_step(step, session.epoch)
        yield batch


def _scalers(objects: Mapping[str, Any]) -> dict[str, Any]:
    """The scalers of prepared optimizers, but those that are among the objects, by name."""
    given = {id(thing) for thing in objects.values()}
    # Optimizers of one accelerator share its scaler.
    found = {
        id(thing.scaler): thing.scaler
        for thing in objects.values()
        if isinstance(thing, AcceleratedOptimizer) and thing.scaler is not None
    }
    names = (f"scaler{number or ''}" for number in itertools.count())
    free = (name for name in names if name not in objects)
    return {next(free): scaler for key, scaler in found.items() if key not in given}


def _bare(thing: Any) -> Any:
    if isinstance(thing, AcceleratedOptimizer):
        return thing.optimizer
    return thing.scheduler if isinstance(thing, AcceleratedScheduler) else thing
