"""Accounts for the driver's time: turns step reports into a `Progress`; pure.

Time is an argument everywhere, in Unix seconds, so that a test needs no clock.
"""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainingrun_protocol.failure_rules import FailureFacts
from trainingrun_protocol.progress import (
    MOST_RESIZES,
    MOST_SIZES,
    Failure,
    LastCheckpoint,
    Progress,
    ProgressResult,
    Record,
    RecordKind,
    Resize,
    RunState,
    Seconds,
    TimeAtSize,
)

from ..error_text import in_words
from ..store.lease import LossHistory, LostDriver
from ..store.loss_documents import LossDocument

MAX_RECORDS = 100
FIRST_STEPS = 3
"""Of a worker group: code may be compiled in them, so their time says little of others."""
MAX_SAMPLES = 10_000
"""Of the productive time by steps."""
MAX_LOSSES = 1000
"""Documents of losses that are kept until they are written."""


@dataclass(frozen=True)
class StepReport:
    """Rank 0's report of its steps; sums count from the start of its worker group."""

    group: int
    """Number of the worker group, from 1; a report of a former group is ignored."""
    step: int
    """Steps done."""
    total: int | None
    """Steps of the whole training."""
    begun: float
    """When the group's first step began."""
    done: float
    """When the last step was done."""
    productive: float
    """Seconds in steps, and in what the training function does between its loops."""
    checkpoint: float
    """Seconds in which training was stopped for a checkpoint."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """Latest metrics."""
    interval: float | None = None
    """Seconds between periodic checkpoints now; none: not made by time."""
    longest_s: float = 0.0
    """Seconds of the longest of the last hundred steps."""
    in_step: bool = False
    """Whether the rank is in a step when it tells this; false where a framework drives the loop."""


class TimeAccounting:
    """The times and records of one driver.

    Args:
        attempt: the contract's attempt.
        fencing_token: of the driver's lease.
        now: when the driver started.
        former: losses and time of the run's earlier drivers.
        lost: the driver before this one, if it does not say that it has ended.
    """

    def __init__(
        self,
        attempt: int,
        fencing_token: int,
        now: float,
        former: LossHistory | None = None,
        lost: LostDriver | None = None,
    ) -> None:
        self._former, self._losses = former or LossHistory(), 0
        self._documents: dict[int, LossDocument] = {}  # by their number
        self._new_losses: list[int] = []  # no worker group has begun since
        self._open_losses: list[int] = []  # no step is done since
        self._changed_losses: dict[int, int] = {}  # number -> version
        self._lost = lost
        self._attempt, self._fencing_token, self._started = attempt, fencing_token, now
        self._state = RunState.STARTING
        self._group = 0
        self._group_began = now
        self._broken_group = -1
        self._worker_lost: tuple[int, float] | None = None  # its record, when its group began
        self._has_session: bool | None = None
        self._broken_at: float | None = None  # of a group without a session
        self._world_size = 0
        self._resizes: list[Resize] = []
        self._sizes: list[tuple[float, int]] = []  # (productive seconds before it, world size)
        self._resumed_from: int | None = None
        self._restored_from: str | None = None
        self._resumed_productive = 0.0
        self._last: StepReport | None = None
        self._last_done: float | None = None
        self._step = self._first_step = 0
        self._paced_from: tuple[int, float] | None = None  # steps done, and seconds in them
        self._total: int | None = None
        self._metrics: dict[str, Any] = {}
        self._interval: float | None = None
        self._checkpoint: LastCheckpoint | None = None
        self._saved_step = 0
        self._records: list[Record] = []
        self._seconds = Seconds()
        self._samples: list[tuple[int, float]] = []  # (step, productive seconds up to it)
        self._failure: Failure | None = None
        self._result: ProgressResult | None = None
        if lost is not None:
            on = f" in pod {lost.holder}" if lost.holder else ""
            # An attempt ends in other ways, too, and the store may be away then.
            reason, how = "DriverEnded", "ended, and its lease does not say how"
            if lost.attempt == attempt:
                reason, how = "HeadLost", "was lost with its head"
            message = f"the driver of attempt {lost.attempt}{on} {how}"
            self._lose(0, reason, lost.step_time, message, step=lost.step)

    @property
    def step(self) -> int:
        """Steps done."""
        return self._step

    @property
    def state(self) -> RunState:
        """What the driver is doing."""
        return self._state

    def metrics_of(self, step: int) -> dict[str, Any]:
        """What rank 0 has reported of that step, if it is the last one that it has reported."""
        return dict(self._metrics) if step == self._step else {}

    def group_started(
        self,
        now: float,
        world_size: int,
        resumed_step: int,
        restored_from: str | None = None,
        saved_by: Collection[int] = (),
        not_saved: str | None = None,
    ) -> int:
        """A worker group begins from `resumed_step`; its number, from 1.

        What was done after that step is done again: it moves from productive to lost work.

        Args:
            now: Unix time in seconds.
            world_size: ranks of the group.
            resumed_step: step of the checkpoint that it restores.
            restored_from: URI of that checkpoint, where it is another run's.
            saved_by: the ranks that saved that step after another one was lost, if it was so.
            not_saved: why they did not save a later one, where that is known.
        """
        self._seconds = self._seconds.model_copy(update={"checkpoint": self._stalled()})
        again = max(self._step - resumed_step, 0)
        lost_steps = again
        if self._lost is not None and self._group == 0:
            lost_steps = max(self._lost.step - resumed_step, 0)
        unmeasured = self._has_session is False and self._group > 0
        # A checkpoint that was made on a notice, or by another rank, holds the last step. What
        # code without a session did after its last report is done again, and nobody has seen it.
        self._losses += again > 0 or unmeasured
        productive = self._seconds.productive
        kept = self._productive_up_to(resumed_step)
        if self._resumed_from is None:
            self._resumed_from, self._restored_from = resumed_step, restored_from
        self._seconds = self._seconds.model_copy(
            update={
                "productive": kept,
                "lost_work": self._seconds.lost_work + max(productive - kept, 0.0),
            }
        )
        self._samples = [s for s in self._samples if s[0] < resumed_step] + [(resumed_step, kept)]
        self._group += 1
        self._group_began = now
        if unmeasured:  # its function begins, and no step will be seen
            self._state = RunState.TRAINING
        self._last = self._paced_from = None
        # Not the step of the newest checkpoint, which may be damaged: what is done between the two
        # is lost again with the head.
        self._saved_step = resumed_step
        former_size = self._resized(now, world_size, resumed_step)
        self._step = self._first_step = resumed_step
        message = f"resumed from step {resumed_step}"
        if restored_from is not None:
            message = f"restored step {resumed_step} of another run, from {restored_from}"
        if saved_by:
            message += f", which {in_words(saved_by)} saved after the loss"
        if unmeasured and resumed_step:
            message = (
                f"continues from the report at step {resumed_step}; what was done since is done "
                "again"
            )
        elif unmeasured:
            message = "begins again, since no checkpoint was reported; what was done is done again"
        elif again:
            message += f"; {again} {'step is' if again == 1 else 'steps are'} done again"
            message += f", since {not_saved}" if not_saved else ""
        if former_size not in (0, world_size):
            workers = "1 worker" if world_size == 1 else f"{world_size} workers"
            message += f"; {workers} instead of {former_size}"
        reason = not_saved if again else None
        self.record(now, RecordKind.RESTORED, message, step=resumed_step, reason=reason)
        self._settle(
            self._new_losses,  # an earlier one keeps what its own restart has cost
            restored_step=resumed_step,
            lost_steps=lost_steps,
            lost_work_seconds=round(max(productive - kept, 0.0), 3),
            action=message,
        )
        return self._group

    def _resized(self, now: float, world_size: int, step: int) -> int:
        """A group of this size begins; returns that of the group before, 0: there was none."""
        before, self._world_size = self._world_size, world_size
        if before not in (0, world_size):
            number = self._resizes[-1].number + 1 if self._resizes else 1
            resize = Resize(
                number=number, step=step, time=now, from_workers=before, to_workers=world_size
            )
            self._resizes = [*self._resizes, resize][-MOST_RESIZES:]
        # What is done again does not count for the size at which it was done first.
        productive = self._seconds.productive
        self._sizes = [one for one in self._sizes if one[0] < productive]
        if not self._sizes or self._sizes[-1][1] != world_size:
            self._sizes.append((productive, world_size))
        return before

    def _time_at_sizes(self) -> list[TimeAtSize]:
        seconds: dict[int, float] = {}
        ends = [*(start for start, _ in self._sizes[1:]), self._seconds.productive]
        for (start, workers), end in zip(self._sizes, ends, strict=False):
            seconds[workers] = seconds.get(workers, 0.0) + max(end - start, 0.0)
        return [
            TimeAtSize(workers=workers, seconds=spent) for workers, spent in sorted(seconds.items())
        ]

    def session_began(self) -> None:
        """The training code has a session, which reports each step."""
        self._has_session = True

    def runs_unmeasured(self) -> None:
        """The training function runs without a session, and has reported nothing."""
        self._has_session = False
        if self._group != self._broken_group and not self._state.final:
            self._state = RunState.TRAINING

    def reported(self, now: float, step: int, metrics: dict[str, Any]) -> None:
        """Code without a session has called `ray.train.report`."""
        self._has_session = False
        self._stepped(
            StepReport(
                group=self._group,
                step=step,
                total=None,
                begun=self._group_began,
                done=now,
                productive=now - self._group_began,
                checkpoint=0.0,
                metrics=metrics,
            )
        )

    def stepped(self, report: StepReport) -> None:
        """Rank 0 did some steps."""
        if report.group == self._group:
            self._has_session = True
        self._stepped(report)

    def _stepped(self, report: StepReport) -> None:
        if report.group != self._group or self._state.final:
            return  # a late report of a group that was replaced
        if self._last is None:
            since, cause = self._started, "startup"
            if self._broken_at is not None:
                since, cause, self._broken_at = self._broken_at, "recovery", None
            elif self._last_done is not None:
                since, cause = self._last_done, "recovery"
            self._spend(**{cause: max(report.begun - since, 0.0)})
            if self._lost is not None and self._last_done is None:
                since = self._lost.step_time
            recovery_s = round(max(report.begun - since, 0.0), 3)
            self._settle(self._open_losses, recovery_seconds=recovery_s)
            self._resumed_productive = self._seconds.productive
        if self._group != self._broken_group:  # else a rank that has not noticed yet
            self._state = RunState.TRAINING
        self._last, self._last_done = report, report.done
        self._step, self._total, self._metrics = report.step, report.total, report.metrics
        self._interval = report.interval
        if self._paced_from is None and report.step - self._first_step >= FIRST_STEPS:
            self._paced_from = (report.step, report.productive)
        productive = self._resumed_productive + report.productive
        self._seconds = self._seconds.model_copy(update={"productive": productive})
        self._sample(report.step, productive)

    def _sample(self, step: int, productive: float) -> None:
        samples = self._samples
        # Of a step that lasts, such as one with an evaluation, the begin and the end count.
        if len(samples) > 1 and samples[-1][0] == samples[-2][0] == step:
            samples.pop()
        samples.append((step, productive))
        if len(samples) > MAX_SAMPLES:
            self._samples = samples[::2]  # between two a straight line is near enough

    def history(self) -> LossHistory:
        """The run's losses and time of training, with this driver's."""
        spent = self._seconds
        trained = spent.productive + spent.lost_work + self._stalled()
        return LossHistory(
            losses=self._former.losses + self._losses,
            trained=self._former.trained + trained,
            unsaved=self._last is not None and self._step > self._saved_step,
            step=self._step,
            step_time=self._last_done,
            ended=self._state.final,
        )

    def losses_after(self, version: int) -> tuple[int, list[LossDocument]]:
        """The documents that have changed since a version of them, and the version of now."""
        newest = max(self._changed_losses.values(), default=0)
        changed = [n for n, since in sorted(self._changed_losses.items()) if since > version]
        return newest, [self._documents[number] for number in changed]

    def _lose(self, number: int, reason: str, time: float, message: str, **where: Any) -> None:
        self._new_losses.append(number)
        self._open_losses.append(number)
        self._note_loss(
            LossDocument(
                attempt=self._attempt,
                fencing_token=self._fencing_token,
                number=number,
                reason=reason,
                time=time,
                message=message,
                **where,
            )
        )
        while len(self._documents) > MAX_LOSSES:
            oldest = min(self._documents)
            del self._documents[oldest], self._changed_losses[oldest]

    def _settle(self, losses: list[int], **cost: Any) -> None:
        """What these losses cost: the first of them has the numbers, the others none."""
        for number in losses:
            if number in self._documents:
                self._note_loss(self._documents[number].model_copy(update=cost))
            cost |= {name: 0 for name in cost if name.startswith(("lost_", "recovery_"))}
        losses.clear()

    def _note_loss(self, document: LossDocument) -> None:
        self._documents[document.number] = document
        newest = max(self._changed_losses.values(), default=0)
        self._changed_losses[document.number] = newest + 1

    def _stalled(self) -> float:
        return self._seconds.checkpoint + (self._last.checkpoint if self._last is not None else 0.0)

    def _productive_up_to(self, step: int) -> float:
        """Productive seconds up to a step, between two samples by a straight line."""
        at = bisect_right(self._samples, (step, float("inf")))
        if at == 0:
            return 0.0
        low_step, low = self._samples[at - 1]
        if at == len(self._samples):
            return low
        high_step, high = self._samples[at]
        return low + (high - low) * (step - low_step) / max(high_step - low_step, 1)

    def committed(self, checkpoint: LastCheckpoint) -> None:
        """A checkpoint was committed."""
        self._checkpoint, self._saved_step = checkpoint, checkpoint.step

    def disrupted(
        self,
        now: float,
        kind: RecordKind,
        message: str,
        node: str | None = None,
        pod: str | None = None,
        facts: FailureFacts | None = None,
    ) -> None:
        """A worker was lost; training is interrupted until the next step."""
        self.interrupted(now)
        began = self._group_began
        place: dict[str, Any] = {"node": node, "pod": pod, "group_time": began}
        self.record(now, kind, message, step=self._step, facts=facts, **place)
        number = self._records[-1].number
        lost = kind is RecordKind.WORKER_LOST
        self._worker_lost = (number, began) if lost else None
        self._lose(number, kind.value, now, message, node=node, pod=pod, step=self._step)

    def ran_out_of_memory(self, message: str, node: str | None, pod: str | None) -> None:
        """The worker that was lost last was ended for want of memory, as its pod shows later.

        The record of the loss is replaced by one with a number of its own, so that it is read.
        """
        number, group_time = self._worker_lost or (0, 0.0)
        lost = next((record for record in self._records if record.number == number), None)
        if lost is None:
            return
        self._worker_lost = None
        kind, place = RecordKind.OUT_OF_MEMORY, {"node": node, "pod": pod}
        again = {"group_time": group_time, "facts": lost.facts}
        self.record(lost.time, kind, message, step=lost.step, **again, **place)
        self._records = [record for record in self._records if record is not lost]
        if number in self._documents:
            found = {"reason": kind.value, "message": message, **place}
            self._note_loss(self._documents[number].model_copy(update=found))

    def interrupted(self, now: float) -> None:
        """The worker group ended; training is interrupted until the next group's first step."""
        if self._has_session is False and self._group != self._broken_group:
            # What was done since the last report is in no checkpoint.
            self._spend(lost_work=self._since_last_report(now))
            self._broken_at = now
        self._broken_group = self._group
        if not self._state.final:
            self._state = RunState.RECOVERING

    def failed(self, now: float, failure: Failure) -> None:
        """The driver ends the attempt; the reason that was given first is kept."""
        if self._state.final:
            return
        failure = self._failure or failure
        if failure.kind == "Application":
            self.record(now, RecordKind.APPLICATION_ERROR, failure.message, step=self._step)
        number = self._records[-1].number if self._records else 0
        number += failure.kind != "Application"  # which has its record's number
        reason, action = f"{failure.kind}Error", "the attempt ended"
        self._lose(number, reason, now, failure.message, step=self._step, action=action)
        self._state, self._failure = RunState.FAILED, failure

    def concluding(self, failure: Failure | None, result: ProgressResult | None) -> None:
        """The driver is about to end so; the reason that was given first is kept."""
        if not self._state.final:
            self._failure, self._result = self._failure or failure, result or self._result

    def suspended(self) -> None:
        """The driver ends because of a suspend request, after a checkpoint."""
        self._state = RunState.SUSPENDED

    def _since_last_report(self, now: float) -> float:
        """Seconds in which code without a session has trained and not yet reported it."""
        since = self._last.done if self._last is not None else self._group_began
        return max(now - since, 0.0)

    def _spend(self, **seconds: float) -> None:
        added = {name: getattr(self._seconds, name) + value for name, value in seconds.items()}
        self._seconds = self._seconds.model_copy(update=added)

    def succeeded(self, now: float, result: ProgressResult) -> None:
        """Training is done."""
        self._has_session = bool(self._has_session)
        if not self._has_session and self._state is not RunState.SUCCEEDED:
            self._spend(productive=self._since_last_report(now))
        self._state, self._result = RunState.SUCCEEDED, result
        self._metrics = result.metrics or self._metrics

    def record(self, now: float, kind: RecordKind, message: str, **where: Any) -> None:
        """Something has happened that the operator makes an event of."""
        number = self._records[-1].number + 1 if self._records else 1
        record = Record(number=number, kind=kind, time=now, message=message, **where)
        self._records = [*self._records, record][-MAX_RECORDS:]

    def _seconds_left(self) -> float | None:
        last = self._last
        if last is None or last.total is None or not last.productive:
            return None
        step, productive = self._first_step, 0.0
        paced = self._paced_from
        if paced is not None and last.step > paced[0] and last.productive > paced[1]:
            step, productive = paced
        done = last.step - step
        if done <= 0:
            return None
        return (last.productive - productive) / done * (last.total - last.step)

    def document(self, now: float, lost_nodes: Sequence[str] = ()) -> Progress:
        """All of it, as the operator reads it."""
        return Progress(
            attempt=self._attempt,
            fencing_token=self._fencing_token,
            state=self._state,
            time=now,
            resumed_from_step=self._resumed_from,
            restored_from=self._restored_from,
            step=self._step,
            step_time=self._last_done,
            has_session=self._has_session,
            total_steps=self._total,
            seconds_left=self._seconds_left(),
            checkpoint_interval_seconds=self._interval,
            world_size=self._world_size,
            resizes=self._resizes,
            sizes=self._time_at_sizes()[-MOST_SIZES:],
            metrics=self._metrics,
            checkpoint=self._checkpoint,
            records=self._records,
            seconds=self._seconds.model_copy(update={"checkpoint": self._stalled()}),
            lost_nodes=list(lost_nodes),
            failure=self._failure,
            result=self._result,
        )
