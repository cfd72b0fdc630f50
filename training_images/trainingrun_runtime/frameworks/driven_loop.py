"""A session's loop that is driven from outside: by the hooks of a framework that has its own.

Its data loaders begin in the middle of an epoch, without loading what was trained on before.
"""

import itertools
from collections.abc import Callable, Generator, Iterator
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

from ..data.position import ResumableLoader
from ..session.session import Session
from ..worker.worker import this_worker

ENDLESS = 2**31
"""Epochs of a training that names no number of them."""


class Ended(RuntimeError):
    """The framework begins a step, and the session has none left."""


class DrivenLoop:
    """Epochs and steps of a session, each of which begins when a hook says so.

    Args:
        session: whose steps they are.
        epochs: how many the training has.
        steps: tells how many steps the epoch has that begins now.
        ends_early: whether a training of one epoch that had ended before its last step, as by early
            stopping, does no further step after a loss. Otherwise each step is done that the
            framework begins.
    """

    def __init__(
        self,
        session: Session,
        epochs: int,
        steps: Callable[[], int],
        *,
        ends_early: bool = False,
    ) -> None:
        self._session, self._epochs, self._length = session, epochs, steps
        self._ends_early = ends_early
        self._epoch = 0
        self._steps = self._run()
        # What follows a step's gradients takes a framework long, so a rank is often lost in it.
        session.noted_steps.driven = True

    def begin_step(self, epoch: int) -> None:
        """The former step is over, and the next one begins.

        Between them the session makes the checkpoint that is due, or that a notice asks for.

        Args:
            epoch: of the step that begins, from 0.

        Raises:
            Preempted, Resized, Suspended: a checkpoint was made and this worker group ends; let it
                through.
            Ended: the former step was the session's last one.
        """
        self._epoch = epoch
        try:
            next(self._steps)
        except StopIteration:  # which the loop of a framework would take for its data's end
            raise Ended(self._why()) from None

    def end(self) -> None:
        """The last step is over; the session saves it when the training function returns."""
        self._steps.close()

    def _run(self) -> Generator[None, None, None]:
        for epoch in self._session.epochs(self._epochs):
            # A checkpoint of an epoch's last step is of that epoch, and the framework begins the
            # next one. That may have another length, so the end of this loop cannot tell.
            if epoch < self._epoch:
                continue
            for _ in self._steps_left():
                yield
                if self._epoch != epoch:  # the framework has left the former epoch early
                    break
            if self._ends_early or self._session.stopped:  # within this epoch, as a checkpoint says
                return

    def _steps_left(self) -> Iterator[int]:
        """Those of the epoch under way."""
        length, done = self._length(), self._session.steps_of_epoch
        yield from self._session.steps(length)
        # The last step of a framework is always one in which its loop was left, see `end`. A
        # resumed run does not go on in such a loop, but in a further one to the same end: a second
        # one, or a later one where runs that went on in this epoch have ended within it as well.
        while self._session.steps_of_epoch == done < length and not (
            self._ends_early or self._session.stopped
        ):
            yield from self._session.steps(length)

    def _why(self) -> str:
        step = self._session.step
        if self._session.stopped:
            return (
                f"the framework begins a step after step {step}, where session.stop() has ended "
                "the training; end the framework's own loop instead, as in Transformers by "
                "control.should_training_stop = True"
            )
        return (
            f"the framework begins a step of its epoch {self._epoch} after step {step}, and the "
            f"session's {self._epochs} epochs are over, as where the run of the checkpoint had "
            "fewer steps in each; give the trainer that run's batch size and data, or more epochs"
        )


def require_usable(loader: Any) -> None:
    """Refuse a loader that a framework's trainer cannot use.

    Raises:
        TypeError: it is one of this package, whose position only a session's own loop can know.
    """
    if isinstance(loader, ResumableLoader):
        raise TypeError(
            f"the trainer's loader is a {type(loader).__name__}, which only a loop over "
            "session.batches() can use; pass a torch.utils.data.DataLoader: it is continued where "
            "the checkpoint was made, too"
        )


def require_repeatable(loader: Any, shuffle: str | None = None) -> None:
    """Refuse a loader whose order in an epoch does not follow from the epoch's number.

    One that is drawn anew at each start, also from a generator with a seed, which begins with its
    first order again: a resumed run would leave out other samples than were trained on.

    Args:
        loader: a `DataLoader` of PyTorch's or of a framework; another one has to know by itself.
        shuffle: what to do where it only shuffles; None: as with all others.

    Raises:
        ValueError: with one sentence.
    """
    drawing = [each for each in samplers_of(loader) if _draws(each)]
    if not drawing:
        return
    if shuffle is not None and type(drawing[-1]) is RandomSampler:
        raise ValueError(
            f"the loader shuffles in an order that a resumed run cannot repeat; {shuffle}"
        )
    raise ValueError(
        f"the loader takes its order from a {type(drawing[-1]).__name__}, which a resumed run "
        "cannot repeat; give the loader a sampler that has set_epoch(epoch) and takes its order "
        "from that number alone, such as torch.utils.data.DistributedSampler"
    )


def samplers_of(loader: Any) -> list[Any]:
    """What decides the order of a loader's samples, from the outermost to what that wraps."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return []
    found = [loader.sampler if loader.batch_sampler is None else loader.batch_sampler]
    for each in found:  # which grows meanwhile
        own = getattr(each, "__dict__", {})
        of_dataset = getattr(own.get("dataset"), "__dict__", {})  # so Lightning's wrapper keeps it
        held = [it for key, it in own.items() if key in _WRAPPED or isinstance(it, Sampler)]
        held += [it for it in of_dataset.values() if isinstance(it, Sampler)]
        found += [it for it in held if all(it is not other for other in found)]
    return found


_WRAPPED = ("sampler", "batch_sampler")
"""Attributes of batch samplers with what they wrap, which may be of any type."""


def _draws(sampler: Any) -> bool:
    """Whether its own order, beside that of what it wraps, may be another one in a resumed run."""
    if isinstance(sampler, SequentialSampler | list | tuple | range | _FirstLeftOut):
        return False
    if callable(getattr(sampler, "set_epoch", None)):
        return False
    kind = type(sampler)
    wraps = getattr(kind, "__iter__", None) is BatchSampler.__iter__
    # Accelerate's, which deal batches to the ranks and leave out the first ones.
    return not wraps and not (
        kind.__module__.startswith("accelerate.") and issubclass(kind, BatchSampler)
    )


def refuse_other_numbers(loop: str) -> None:
    """Refuse a loop that leaves out batches by their number, where the number of ranks may change.

    With other ranks the same number of batches is of other samples.

    Args:
        loop: what it is, such as "Lightning's loop".

    Raises:
        ValueError: with one sentence.
    """
    if this_worker().most_workers is not None:
        raise ValueError(
            f"{loop} leaves out by their number the batches that were trained on, and with "
            "workers.minimum the number of workers changes, so samples would be trained on twice "
            "or never; leave workers.minimum out, or loop over session.batches() of a "
            "ResumableDataLoader"
        )


def refuse_other_samples(session: Session, left_out: int, loop: str) -> None:
    """Refuse a checkpoint within an epoch of a run that had another number of ranks.

    As `restoreFrom` may name one.

    Args:
        session: which has restored it.
        left_out: batches of the epoch under way that the loop leaves out by their number.
        loop: what it is, such as "Lightning's loop".

    Raises:
        ValueError: with one sentence.
    """
    if left_out and (changed := session.world_changed) is not None:
        before, now = changed
        raise ValueError(
            f"the checkpoint of step {session.step} is of {before} workers within an epoch, and "
            f"{loop} leaves out by their number the batches that were trained on, which with {now} "
            f"workers are of other samples; begin with {before} workers, or from the last "
            "checkpoint of a run that has ended with a whole epoch"
        )


def begin_at(loader: Any, epoch: int, batches: int) -> bool:
    """Have a loader's next iteration be that of an epoch, from a batch on.

    The order of the epoch has to follow from its number, as that of a DistributedSampler does.

    Args:
        loader: a `DataLoader` of PyTorch's or of a framework.
        epoch: number of the epoch, from 0.
        batches: how many of its batches are left out.

    Returns:
        Whether it does; otherwise the batches have to be drawn and dropped.
    """
    sampler = getattr(loader, "sampler", None)
    inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    for each in {id(sampler): sampler, id(inner): inner}.values():
        if set_epoch := getattr(each, "set_epoch", None):
            set_epoch(epoch)
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return not batches
    if loader.batch_sampler is None:
        return not batches
    # A DataLoader refuses the assignment, since one that is under way would not see it.
    object.__setattr__(loader, "batch_sampler", _FirstLeftOut(loader.batch_sampler, batches))
    # With persistent workers a loader has one iterator for all epochs, which Lightning's trainer
    # makes before: it would take the order of the former batch sampler for ever.
    if loader._iterator is not None:
        loader._iterator._index_sampler = loader.batch_sampler
    return True


class _FirstLeftOut:
    """A batch sampler whose first iteration leaves out its first batches."""

    def __init__(self, batches: Any, left_out: int) -> None:
        self.batch_sampler, self._left_out = batches, left_out

    def __iter__(self) -> Iterator[Any]:
        left_out, self._left_out = self._left_out, 0
        return itertools.islice(iter(self.batch_sampler), left_out, None)

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.batch_sampler, name)
