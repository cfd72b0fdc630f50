"""What the parts of a session share: its objects, how far the training is, and how ranks agree."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray.train
import torch
from torch.optim.optimizer import Optimizer

from ..checkpoints import snapshot
from ..checkpoints.downloads import files_of
from ..checkpoints.gradients import AccumulatedGradients
from ..checkpoints.restored_tensors import require_place
from ..checkpoints.sharded_state import Encoded
from ..checkpoints.snapshot import Position
from ..checkpoints.state_comparison import buffers_in
from ..checkpoints.stateful_objects import (
    NotRestorable,
    Stateful,
    optimizers_in,
    parameters_of,
    replicated,
    restorable,
)
from ..checkpoints.structures import Structure, require_same, structure_of
from ..data.kept_batch import use_microbatches
from ..data.position import ResumableLoader
from ..progress.rank_reporter import ReportRecorder
from ..survivors.noted_steps import NotedSteps, parallel
from ..worker.step_consensus import StepConsensus, StepValues
from ..worker.worker import Worker
from .microbatches import log_uneven
from .step_reporter import StepReporter


@dataclass(frozen=True)
class SessionContext:
    """Made once the session's objects are restored."""

    worker: Worker
    """This rank."""
    objects: "SavedObjects"
    """What is saved and restored."""
    consensus: StepConsensus
    """Of the ranks."""
    progress: "ProgressState"
    """How far the training is."""
    gradients: AccumulatedGradients
    """Of the session's optimizers, which a checkpoint does not hold."""
    noted_steps: NotedSteps
    """Those that this rank can save without the others."""
    reports: ReportRecorder
    """What this rank has reported."""
    reporter: StepReporter | None
    """On rank 0: tells the coordinator of steps, and has its command."""

    def __post_init__(self) -> None:
        """Some gradients are in the models."""
        self.gradients.watch_models(self.objects.models)

    def metrics_after(self, step: int) -> dict[str, Any]:
        """What a checkpoint made after that step has of this rank's metrics."""
        return self.progress.metrics_after(step, self.worker.needed_metrics)

    def can_grow(self) -> bool:
        """Whether all loaders have enough samples left in their epochs; the same on all ranks."""
        most = self.worker.most_workers or self.worker.world_size
        loaders = [t for t in self.objects.objects.values() if isinstance(t, ResumableLoader)]
        return all(loader.continues_with(most) for loader in loaders)


class SavedObjects:
    """The objects of a session: what this rank saves of them, and how they are put back.

    Args:
        objects: by name.

    Raises:
        NotRestorable: one of them cannot be restored.
    """

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self.objects: dict[str, Stateful] = restorable(dict(objects))
        """With the models' wrappers removed."""
        self.replicated = {name for name, thing in objects.items() if replicated(thing)}
        """Names of the models whose buffers are taken from rank 0 before each forward pass."""
        self.models = [thing for thing in objects.values() if isinstance(thing, torch.nn.Module)]
        """With their wrappers, and of PEFT as a whole."""
        self.of_loops_end = False
        """Whether the restored checkpoint is of a loop's last step, in which the loop was left."""
        self._wrapped = {name for name, thing in objects.items() if parallel(thing) is not None}
        # When the session was made:
        self._structures: dict[str, Structure | None] = {}
        self._sharded: dict[str, frozenset[str]] = {}

    def refuse_one_number_of_ranks(self) -> None:
        """Refuse what has a state for one number of ranks alone, in a run whose number may change.

        Raises:
            NotRestorable: with one sentence.
        """
        for name, thing in self.objects.items():
            if _is_loader(thing) and not isinstance(thing, ResumableLoader):
                raise NotRestorable(
                    f"{name} is a {type(thing).__name__}, whose position is that of one number of "
                    "ranks, and with workers.minimum this number changes; make "
                    "ResumableDataLoader(dataset, …) in its place, or leave workers.minimum out"
                )

    def require_microbatches(self, rank: int) -> None:
        """Refuse a session whose steps cannot take the batches of all workers.

        Raises:
            NotRestorable: with one sentence.
        """
        loaders = [t for t in self.objects.values() if isinstance(t, ResumableLoader)]
        if not loaders:
            raise NotRestorable(use_microbatches("this session has no ResumableDataLoader"))
        if rank == 0:
            for loader in loaders:
                log_uneven(loader.dealing)

    def states(self) -> dict[str, Encoded]:
        """What this rank may have to save, not copied yet.

        Raises:
            NotSavable: one of them cannot be saved, or not be restored by a resumed run.
        """
        found = snapshot.encoded(self.objects, self.objects.keys())
        for name, thing in self.objects.items():
            now = structure_of(thing, found[name])
            require_same(name, self._structures.setdefault(name, now), now)
            shards = frozenset(found[name].shards)
            require_place(name, thing, found[name], self._sharded.setdefault(name, shards))
        return found

    def unwrapped(self, own: set[str]) -> list[str]:
        """Models of `own`, whose state differs from rank to rank, that nothing keeps the same.

        Not one that averages another: it has the running means of that one's batch norms, which
        are each rank's own between two forward passes.
        """
        whole = own - self._wrapped - {name for name, shards in self._sharded.items() if shards}
        trained = {id(p) for each in self.optimizers().values() for p in parameters_of(each)}
        models = {
            name
            for name, thing in self.objects.items()
            if isinstance(thing, torch.nn.Module)
            and not trained.isdisjoint(map(id, thing.parameters()))
        }
        return sorted(whole & models)

    def buffers(self, states: Mapping[str, Encoded]) -> dict[str, set[str]]:
        """Places in the states of the buffers of the models in `replicated`, which are rank 0's."""
        return {
            name: buffers_in(name, thing, states[name])
            for name, thing in self.objects.items()
            if name in self.replicated and isinstance(thing, torch.nn.Module)
        }

    def optimizers(self) -> dict[str, Optimizer]:
        """Those of PyTorch among them and in their attributes, by name."""
        return optimizers_in(self.objects)

    def restore(self, worker: Worker) -> Position:
        """Put everything back as the checkpoint has it, if there is one; how far training was."""
        checkpoint = ray.train.get_checkpoint()
        if checkpoint is None:
            return Position()
        # After a report of the training function's own, it is another checkpoint.
        fetched = worker.fetched if checkpoint is worker.offered else None
        with files_of(checkpoint, fetched) as files:
            position = snapshot.restore(files, self.objects, worker.rank, worker.world_size)
        self.of_loops_end = position.step in position.left
        if worker.restored is not None:  # not another run's, whose batch was its own
            for thing in self.objects.values():
                if isinstance(thing, ResumableLoader):
                    thing.require_same_batch()
        if worker.continues is not None:
            return position
        # Another run's `stop()` was its own, and so was a loop that it had left: a run that begins
        # there trains on.
        return replace(position, stop_at=None, left=())


def _is_loader(thing: Any) -> bool:
    """Whether it is looped over, and neither a part of the model nor a list or dict of values."""
    return isinstance(thing, Iterable) and not isinstance(thing, torch.nn.Module | Collection)


class ProgressState:
    """What the parts of a session share: steps, loops, metrics, and the time spent so far.

    Args:
        began_at: the restored position.
        metrics: this rank's, as reported last before it.
    """

    def __init__(self, began_at: Position, metrics: Mapping[str, Any] | None = None) -> None:
        self.step = began_at.step
        """Steps done; a loop goes on from here."""
        self.epoch = began_at.epoch
        """Epochs done, or the number of the one under way."""
        self.epoch_began = began_at.epoch_began
        """Steps done when the epoch under way began."""
        self.stop_at = began_at.stop_at
        """Steps after which the ranks agreed to end; None: at the loop's own end."""
        self.loops = Loops(began_at.left)
        """Those of the epoch under way."""
        self.metrics: dict[str, Any] = dict(metrics or {})
        """This rank's, as reported last."""
        self.metrics_step = self.step
        """Steps done, by the time that the last ones were reported, with the one under way."""
        self.rating: dict[str, Any] = {}
        """In a trial of a sweep: the metric by which it is compared, as reported last."""
        self.productive = 0.0
        """Seconds in steps."""
        self.between = 0.0
        """Seconds of the training function between its loops, as for an evaluation."""
        self.stalled = 0.0
        """Seconds between steps in which checkpoints were made and the ranks agreed."""

    def report(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Metrics of this rank after that step; those of one step are kept together."""
        same = self.metrics if step == self.metrics_step else {}
        self.metrics, self.metrics_step = {**same, **metrics}, step

    def metrics_after(self, step: int, of_one_step: Collection[str]) -> dict[str, Any]:
        """What a checkpoint made after that step has of them.

        Args:
            step: steps done.
            of_one_step: metrics by which checkpoints are compared: those of other weights say
                nothing about these.
        """
        if step == self.metrics_step:
            return self.metrics
        return {name: value for name, value in self.metrics.items() if name not in of_one_step}

    @property
    def stopped(self) -> bool:
        """Whether the ranks agreed to end: loops do no more steps."""
        return self.stop_at is not None and self.step >= self.stop_at

    @property
    def trained(self) -> float:
        """Seconds for which this worker group has trained."""
        return self.productive + self.between + self.stalled

    @property
    def position(self) -> Position:
        """What a checkpoint says of it."""
        return Position(self.step, self.epoch, self.epoch_began, self.stop_at, self.loops.left)

    def note_stop(self, agreed: StepValues) -> None:
        """Stop one step after the one of the request: by then every rank has the result.

        Also where the result is available sooner, so that an interruption changes nothing. Of a
        loop that is being left no step follows, and a resumed run passes its end.
        """
        if agreed.stop and self.stop_at is None:
            self.stop_at = agreed.step + 1
            if self.loops.leaving:
                self.stop_at = min(self.stop_at, self.step)

    def noted(self, result: Callable[[], StepValues | None]) -> Callable[[], StepValues | None]:
        """What the ranks agree on in this step, for what notes its end as `note_stop` does.

        Args:
            result: tells it once it is known.
        """
        if not self.loops.leaving:
            return result

        def earlier() -> StepValues | None:
            agreed = result()
            return None if agreed is None else agreed._replace(step=agreed.step - 1)

        return earlier


class Loops:
    """The loops of one epoch, or of a training that counts none.

    A loop is named by its end, the number of steps done when it is over. Several may have the same
    one, as where a warm-up is left by `break` and the training follows: they count in their order.

    Args:
        left: ends of the loops that had been left before their end when the checkpoint was made.
    """

    def __init__(self, left: Sequence[int] = ()) -> None:
        self.number = 0
        """Of the latest loop, from 1."""
        self.in_step = False
        """Whether a step was handed out and is not done yet."""
        self.inside = False
        """Whether the training function is in a loop's body."""
        self.leaving = False
        """Whether the step under way is the last one of a loop that was left in it."""
        self.left = tuple(left)
        """Ends of the loops that were left before it; of each loop one."""
        self._to_pass = Counter(left)
        self._reached: set[int] = set()
        self._current: int | None = None

    def already_reached(self, end: int) -> bool:
        """Whether this end, and no other, was reached: the code counts each loop from 0."""
        return self._reached == {end}

    def was_left(self, end: int) -> bool:
        """Whether the checkpoint was made after this loop was left: it is not begun again.

        What comes after it follows. As many loops to one end are passed as were left: in a further
        one the checkpoint was made, and it goes on there.
        """
        if not self._to_pass[end]:
            return False
        self._to_pass[end] -= 1
        return True

    def begin(self, end: int) -> int:
        """A loop begins; its number."""
        self.number += 1
        self._current, self.inside = end, True
        return self.number

    def leave(self) -> None:
        """The loop under way was left in the middle of a step, which is not done yet."""
        if self._current is not None:
            self.left, self.leaving = (*self.left, self._current), True

    def end(self) -> int | None:
        """The loop under way is over; its end, None where there is none."""
        over, self._current = self._current, None
        self.inside = self.leaving = False
        return over

    def reached(self, end: int) -> None:
        """All steps of a loop were done."""
        self._reached.add(end)
