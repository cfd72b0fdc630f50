"""What interruptions of a run and of trials cost, from the successive progress documents. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from trainingrun_protocol.progress import Progress, Record, RecordKind, RunState, TrialState

from .terminal_text import counted


@dataclass(frozen=True, slots=True)
class Interruption:
    """One time that training stopped and continued."""

    stopped_step: int
    """The last step that was reported before it."""
    restored_step: int
    """The step of the checkpoint from which training continued; 0: from the start."""
    seconds: float
    """From the last step before it to the first one after it; of training without a session from
    the loss to the restore."""
    reason: str | None = None
    """Why the ranks that were left saved no later step, where that is known."""
    measured: bool = True
    """Whether a session reported each step; else nobody knows what was done after the last one."""

    @property
    def steps_lost(self) -> int | None:
        """Steps that were done twice; None: not known."""
        return max(self.stopped_step - self.restored_step, 0) if self.measured else None

    @property
    def cost(self) -> str:
        """What is done again, in words."""
        lost = self.steps_lost
        if lost is not None:
            since = f", since {self.reason}" if lost and self.reason else ""
            return f"{counted(lost, 'step')} lost{since}"
        if self.restored_step:
            return (
                f"it continues from the report at step {self.restored_step}, and what was done "
                "since is done again"
            )
        return "it begins again, since no checkpoint was reported"


def unsaved(progress: Progress | None) -> str:
    """What is lost of a run whose driver was ended before it had ended itself, for the end of a
    sentence; empty: its last step is in a checkpoint.

    Args:
        progress: its last document; None: it has written none.
    """
    nothing = ", without a last checkpoint"
    if progress is None:
        return nothing
    if progress.trials is not None:
        left = [row.number for row in progress.trials.trials if row.state is TrialState.RUNNING]
        trials = "trial" if len(left) == 1 else "trials"
        return f", {trials} {', '.join(map(str, left))} without a last checkpoint" if left else ""
    saved = progress.checkpoint is not None and progress.checkpoint.step >= progress.step
    # What a function without a session has done since its last report is not known.
    return "" if saved and progress.has_session is not False else nothing


class _Records:
    """The records of successive documents, each once."""

    def __init__(self) -> None:
        self._seen = (0, 0, 0)
        self._lost: set[float] = set()

    def is_loss(self, record: Record) -> bool:
        """Whether it is one that was not told before; a later record may correct its kind."""
        if not record.kind.is_disruption or record.time in self._lost:
            return False
        self._lost.add(record.time)
        return True

    def new(self, progress: Progress) -> Iterator[Record]:
        for record in progress.records:
            number = (progress.attempt, progress.fencing_token, record.number)
            if number > self._seen:
                self._seen = number
                yield record


@dataclass(slots=True)
class Interruptions:
    """Collects them; call `record` with every document, in order."""

    ended: list[Interruption] = field(default_factory=list)
    """Those after which training continued, oldest first."""
    losses: list[Record] = field(default_factory=list)
    """Why training stopped each time, oldest first."""
    first_step_time: float | None = None
    """Unix time at which the first step was seen, or that training runs without reporting any."""
    _last_step: int = 0
    _last_time: float = 0.0
    _lost_time: float | None = None
    _restored: Record | None = None
    _records: _Records = field(default_factory=_Records)

    def record(self, progress: Progress) -> Interruption | None:
        """Evaluate one document; the interruption that ends with it, if one does."""
        grown = {one.time for one in progress.resizes if one.to_workers > one.from_workers}
        for record in self._records.new(progress):
            if self._records.is_loss(record):
                self.losses.append(record)
                self._lost_time = self._lost_time or record.time
            trained = self.first_step_time is not None or self._lost_time is not None
            if self._lost_time is None and record.time in grown:
                continue  # nothing has interrupted it
            if record.kind is RecordKind.RESTORED and trained:
                # Restored again before any step was done: the former restored step is obsolete.
                self._restored = record
        done = progress.step_time or 0.0
        stepped = done > self._last_time
        over = self._over(progress, done if stepped else None)
        if over is not None:
            self.ended.append(over)
            self._restored = self._lost_time = None
        if self.first_step_time is None:
            if stepped:
                self.first_step_time = done
            elif progress.state is RunState.TRAINING:
                self.first_step_time = progress.time
        if stepped:
            self._last_step, self._last_time = progress.step, done
        return over

    def _over(self, progress: Progress, done: float | None) -> Interruption | None:
        """The interruption that is over; `done`: when a step was, if it is a new one."""
        restored = self._restored
        measured = progress.has_session is not False
        if restored is None or (measured and done is None):
            return None
        if measured:
            began, ended = self._last_time or self._lost_time, done
        else:
            began, ended = self._lost_time or self._last_time, restored.time
        seconds = max((ended or 0.0) - (began or 0.0), 0.0) if began else 0.0
        return Interruption(self._last_step, restored.step or 0, seconds, restored.reason, measured)


class TrialLosses:
    """What the trials have lost, from the successive progress documents."""

    def __init__(self) -> None:
        self.count = 0
        """Losses so far."""
        self._records = _Records()
        self._lost: set[str] = set()

    def record(self, progress: Progress) -> list[str]:
        """Evaluate one document; what is new: a loss, and where its trial continues."""
        new = []
        for record in self._records.new(progress):
            trial = record.message.partition(":")[0]
            if self._records.is_loss(record):
                self.count += 1
                self._lost.add(trial)
            elif record.kind.is_disruption:
                pass  # why it was lost is known now
            elif record.kind is not RecordKind.RESTORED or trial not in self._lost:
                continue  # that a trial begins is no loss
            else:
                self._lost.discard(trial)
            new.append(record.message)
        return new
