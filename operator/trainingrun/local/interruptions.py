"""What each interruption cost, from the successive progress documents. Pure."""

from dataclasses import dataclass, field

from ..api.progress import Progress, RecordKind


@dataclass(frozen=True, slots=True)
class Interruption:
    """One time that training stopped and continued."""

    stopped_step: int
    """The last step before it."""
    restored_step: int
    """The step of the checkpoint from which training continued."""
    seconds: float
    """From the last step before it to the first one after it."""
    reason: str | None = None
    """Why the ranks that were left saved no later step, where that is known."""

    @property
    def steps_lost(self) -> int:
        """Steps that were done twice."""
        return max(self.stopped_step - self.restored_step, 0)


@dataclass(slots=True)
class Interruptions:
    """Collects them; call `record` with every document, in order."""

    ended: list[Interruption] = field(default_factory=list)
    """Those after which training continued, oldest first."""
    first_step_time: float | None = None
    """Unix time at which the first step was seen."""
    _last_step: int = 0
    _last_time: float = 0.0
    _restored: int | None = None
    _reason: str | None = None
    _records: tuple[int, int, int] = (0, 0, 0)

    def record(self, progress: Progress) -> Interruption | None:
        """Evaluate one document; the interruption that ends with it, if one does."""
        for record in progress.records:
            number = (progress.attempt, progress.fencing_token, record.number)
            if number <= self._records:
                continue
            self._records = number
            if record.kind is RecordKind.RESTORED and self.first_step_time is not None:
                # Restored again before any step was done: the former restored step is obsolete.
                self._restored, self._reason = record.step or 0, record.reason
        done = progress.step_time
        if done is None or done <= self._last_time:
            return None
        over = None
        if self._restored is not None:
            seconds = done - self._last_time
            over = Interruption(self._last_step, self._restored, seconds, self._reason)
            self.ended.append(over)
            self._restored = None
        if self.first_step_time is None:
            self.first_step_time = done
        self._last_step, self._last_time = progress.step, done
        return over
