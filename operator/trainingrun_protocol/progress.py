"""What the driver reports: the head pod answers `GET /progress` with a `Progress`, in which the
`SweepTable` has the trials of a sweep.

Unknown fields are ignored on reading, so that either side can be newer. A word that only a newer
side has is read as one that ends nothing and blames no code.
"""

import math
from collections.abc import Collection
from enum import StrEnum
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from .failure_rules import FailureFacts
from .wire import (
    Count,
    Duration,
    EndOfText,
    LogLine,
    Metrics,
    Name,
    Sentence,
    Share,
    UnixTime,
    Uri,
    Wire,
    the_last,
)

MOST_RECORDS = 100
"""Records in a document; of more, the newest are read."""
MOST_NODES = 1000
"""Lost nodes in a document."""
MOST_WARNINGS = 5
"""Warnings in a document; of more, the newest are read."""
MOST_RANKS = 16
"""Ranks in a document."""
MOST_LAST_LINES = 5
"""Lines of the rank that failed first."""
MOST_SPARE_PODS = 64
"""Pods without a rank in a document; of more, the newest are read."""
MOST_RESIZES = 100
"""Resizes in a document; of more, the newest are read."""
MOST_SIZES = 100
"""World sizes in a document."""
MOST_TRIALS = 200
"""Trials in a document, and of a sweep."""


class RunState(StrEnum):
    """What the driver is doing."""

    STARTING = "Starting"
    TRAINING = "Training"
    RECOVERING = "Recovering"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def final(self) -> bool:
        """Whether the driver has ended, or is about to."""
        return self in (RunState.SUSPENDED, RunState.SUCCEEDED, RunState.FAILED)

    @property
    def phase(self) -> str:
        """The word that `status.phase` has for it."""
        return "Running" if self is RunState.TRAINING else self.value


class RecordKind(StrEnum):
    """What happened inside an attempt."""

    PREEMPTED = "Preempted"
    WORKER_LOST = "WorkerLost"
    HANG = "Hang"
    OUT_OF_MEMORY = "OutOfMemory"
    APPLICATION_ERROR = "ApplicationError"
    INFRASTRUCTURE_ERROR = "InfrastructureError"
    CHECKPOINT_SKIPPED = "CheckpointSkipped"
    SETTING_OVERRULED = "SettingOverruled"
    RESTORED = "Restored"
    NODE_SLOW = "NodeSlow"

    @property
    def is_disruption(self) -> bool:
        """Whether the training stops by it, and begins again, by no error of its code."""
        return self in _DISRUPTIONS

    @property
    def is_loss(self) -> bool:
        """Whether the training stops by it, and begins again or ends."""
        return self.is_disruption or self is RecordKind.APPLICATION_ERROR


_DISRUPTIONS = frozenset(
    {
        RecordKind.PREEMPTED,
        RecordKind.WORKER_LOST,
        RecordKind.HANG,
        RecordKind.OUT_OF_MEMORY,
        RecordKind.INFRASTRUCTURE_ERROR,
    }
)


def _of_known_kinds(found: Any) -> Any:
    """Without records of kinds that only a newer runtime has: the others still count."""
    if not isinstance(found, list):
        return found
    known = set(RecordKind)
    return [
        one for one in found if not (isinstance(one, dict) and _is_beyond(known, one.get("kind")))
    ]


def _is_beyond(known: Collection[str], word: Any) -> bool:
    return isinstance(word, str) and word not in known  # what is no text is refused as always


def _else(word: str, known: Collection[str]) -> BeforeValidator:
    """A word that only a newer side has is read as this one."""
    return BeforeValidator(lambda found: word if _is_beyond(known, found) else found)


class Record(Wire):
    """One thing that happened inside an attempt, numbered so that it is counted once."""

    number: Count
    """1, 2, 3 … within the driver's fencing token."""
    kind: RecordKind
    """What happened."""
    time: UnixTime
    """Unix time in seconds."""
    message: Sentence = ""
    """In a sentence."""
    node: Name | None = None
    """Kubernetes node on which it happened, where known."""
    pod: Name | None = None
    """Pod on which it happened, where known."""
    step: Count | None = None
    """Step at which it happened, or that was restored."""
    group_time: UnixTime | None = None
    """Of a loss, Unix time in seconds at which the worker group began that was lost."""
    reason: Sentence | None = None
    """Why the ranks that were left saved no later step; none: they did, or it is not known."""
    facts: FailureFacts | None = None
    """Of a loss, what failures.rules ask for; none: it is not known."""


class LastCheckpoint(Wire):
    """A committed checkpoint."""

    uri: Uri
    """Where it is."""
    step: Count
    """Steps done when it was made."""
    time: UnixTime
    """Unix time of its commit, in seconds."""


class Seconds(Wire):
    """Where this driver's time went, in seconds."""

    productive: Duration = 0
    """In steps that counted, and after them between loops, as in evaluations."""
    startup: Duration = 0
    """From the driver's start to its first step."""
    lost_work: Duration = 0
    """In steps that were done again."""
    recovery: Duration = 0
    """From the last step before a disruption to the first one after it."""
    checkpoint: Duration = 0
    """Training stopped for checkpoints."""


def done_again(productive: float, first_step: int, last_step: int, resumed: int) -> float:
    """Of a driver's productive seconds those that the next driver, which resumes at step `resumed`,
    does again: by their share of its steps, which are those after `first_step` up to `last_step`.
    """
    done = last_step - first_step
    return productive * min(max(last_step - resumed, 0), done) / done if done > 0 else 0.0


_Kind = Literal["Application", "Storage", "Infrastructure"]
_Retry = Literal["Always", "UnlessRepeated", "Never"]


class Failure(Wire):
    """Why the driver gave up."""

    kind: Annotated[_Kind, _else("Infrastructure", get_args(_Kind))]
    """Whose fault it is."""
    message: Sentence
    """One sentence with the error, and what to do where that is known."""
    traceback: EndOfText = ""
    """The end of the traceback, at most 4,000 characters."""
    retry: Annotated[_Retry, _else("Always", get_args(_Retry))] = "Always"
    """Whether another attempt may end otherwise. `UnlessRepeated`: an error of the code, which is
    the same each time; after the second one before a step the run fails. `Never`: the training is
    done, and another attempt would only repeat it."""
    rank: Count | None = None
    """The rank that failed first; none: it was no rank."""
    last_lines: Annotated[list[LogLine], the_last(MOST_LAST_LINES)] = Field(default_factory=list)
    """What it has printed last."""
    node: Name | None = None
    """Kubernetes node of that rank, where known."""
    loss: Name | None = None
    """Class of the loss for which a rule ended the attempt, such as WorkerLost; none: `kind` says
    it."""
    facts: FailureFacts | None = None
    """What failures.rules ask for; none: it is not known."""


class HungRank(Wire):
    """Where one rank stands while no rank does a step."""

    rank: Count
    """Its number."""
    node: Name | None = None
    """Kubernetes node on which it runs, where known."""
    pod: Name | None = None
    """Pod in which it runs, where known."""
    where: Name
    """What it does and on which line of the user's code, such as `in all_reduce (train.py:88)`."""
    hangs: bool = False
    """Whether it is what the others wait for."""


class Hang(Wire):
    """A worker group of which no rank has done a step for too long."""

    time: UnixTime
    """Unix time in seconds at which it was found."""
    seconds: Duration
    """For how long no step had been done."""
    message: Sentence
    """Which ranks wait, and which one hangs, in a sentence."""
    ranks: Annotated[list[HungRank], the_last(MOST_RANKS)] = Field(default_factory=list)
    """The ranks by number; of more than 16 those that hang come first."""
    stacks: Uri | None = None
    """Folder with the stack of each rank."""
    under_way: bool = False
    """Whether the same worker group still stands."""


class SlowestRank(Wire):
    """The rank for which the others wait longest."""

    rank: Count
    """Its number."""
    node: Name | None = None
    """Kubernetes node on which it runs, where known."""
    own_seconds: Duration
    """What a step takes it without waiting for other ranks, as the mean of the last steps."""
    median_seconds: Duration
    """Median of the same of all other ranks."""


class RankMemory(Wire):
    """The rank whose memory is, or will first be, full."""

    rank: Count
    """Its number."""
    node: Name | None = None
    """Kubernetes node on which it runs, where known."""
    used_bytes: Count
    """Memory of its container that cannot be freed, without the cache of files; without a limit
    what its process holds."""
    limit_bytes: Count | None = None
    """The container's limit; none: it has none."""
    bytes_per_hour: Count | None = None
    """How fast it grows; none: it does not, or has not been seen for long enough."""


class RankRow(Wire):
    """What one rank has measured last; what is absent it has not, or not yet."""

    rank: Count
    """Its number."""
    node: Name | None = None
    """Kubernetes node on which it runs, where known."""
    pod: Name | None = None
    """Pod in which it runs, where known."""
    step_seconds: Duration | None = None
    """What a step takes it, as the mean of the last steps."""
    data_wait_share: Share | None = None
    """Share of the time in steps, from 0 to 1, in which it has waited for data since its worker
    group began."""
    communication_wait_share: Share | None = None
    """Share of the time in steps, from 0 to 1, in which it waits for the gradients of other ranks:
    the rank that is waited for has the smallest one."""
    used_bytes: Count | None = None
    """Memory of its container that cannot be freed, without the cache of files; without a limit
    what its process holds."""
    limit_bytes: Count | None = None
    """The container's limit; none: it has none."""
    bytes_per_hour: Count | None = None
    """How fast it grows; none: it does not, or has not been seen for long enough."""
    accelerator_share: Share | None = None
    """Share of the last 5 minutes, from 0 to 1, in which its NVIDIA GPUs computed; none: it has
    none, or parts of them (MIG)."""


class Resize(Wire):
    """A worker group began with another number of workers than the one before it."""

    number: Count
    """1, 2, 3 … within the driver's fencing token."""
    step: Count
    """Steps done when it began."""
    time: UnixTime
    """Unix time in seconds."""
    from_workers: Count
    """Workers of the group before."""
    to_workers: Count
    """Its workers."""


class TimeAtSize(Wire):
    """For how long so many workers trained."""

    workers: Count
    """World size."""
    seconds: Duration
    """Seconds in steps that counted; their sum over all sizes is `seconds.productive`."""


class TrialState(StrEnum):
    """Where a trial of a sweep stands."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    STOPPED = "Stopped"
    FAILED = "Failed"

    @property
    def final(self) -> bool:
        """Whether it is not trained any further."""
        return self in (TrialState.SUCCEEDED, TrialState.STOPPED, TrialState.FAILED)


class TrialRow(Wire):
    """One trial of a sweep."""

    number: Count
    """1, 2, 3 …"""
    state: Annotated[TrialState, _else("Running", tuple(TrialState))] = TrialState.PENDING
    """Where it stands; Stopped: by ASHA, before its end."""
    config: Metrics = Field(default_factory=dict)
    """Its values of the config that differ from trial to trial."""
    step: Count = 0
    """Steps done."""
    value: float | None = None
    """spec.sweep.metric as it was last reported."""
    checkpoint_uri: Uri | None = None
    """Its newest committed checkpoint."""
    message: Sentence = ""
    """Why it failed."""


class SweepTable(Wire):
    """All trials of a sweep."""

    metric: Name
    """Metric by which they are compared."""
    best: Count | None = None
    """Number of the best trial so far; none: none has reported the metric."""
    trials: Annotated[list[TrialRow], the_last(MOST_TRIALS)] = Field(default_factory=list)
    """Each of them, by number."""


class ProgressResult(Wire):
    """What a successful run leaves."""

    metrics: Metrics = Field(default_factory=dict)
    """Last reported metrics."""
    checkpoint_uri: Uri | None = None
    """The final checkpoint."""
    best_checkpoint_uri: Uri | None = None
    """The best checkpoint."""
    sweep: SweepTable | None = None
    """Of a sweep all trials; the rest is the best one's."""


class Progress(Wire):
    """Where the driver stands: the answer to `GET /progress`."""

    attempt: Count
    """The contract's attempt."""
    fencing_token: Count = 0
    """Of the driver's lease: it grows with every driver that takes over the run; 0 before that."""
    state: RunState = RunState.STARTING
    """What the driver is doing."""
    time: UnixTime = 0
    """Unix time of this document, in seconds."""
    resumed_from_step: Count | None = None
    """Step of the checkpoint that this driver first restored; 0 from scratch."""
    restored_from: Uri | None = None
    """That checkpoint, where it is another run's; none: it is the run's own, or there is none."""
    step: Count = 0
    """Steps done."""
    step_time: UnixTime | None = None
    """Unix time at which that step was done."""
    has_session: bool | None = None
    """Whether the training code has a session, which reports each step; false: what it has done
    since its last `ray.train.report` is not known, and done again after a loss; none: it has
    reported nothing yet."""
    total_steps: Count | None = None
    """Steps of the whole training."""
    seconds_left: Duration | None = None
    """Estimated seconds of training left."""
    checkpoint_interval_seconds: Duration | None = None
    """Seconds between periodic checkpoints that are in force now; none: not made by time."""
    world_size: Count = 0
    """Workers that train now."""
    resizes: Annotated[list[Resize], the_last(MOST_RESIZES)] = Field(default_factory=list)
    """When this driver's world size changed, newest last, at most 100."""
    sizes: Annotated[list[TimeAtSize], the_last(MOST_SIZES)] = Field(default_factory=list)
    """How long this driver trained with each world size, by size."""
    data_wait_share: Share | None = None
    """Share of the time in steps, from 0 to 1, in which the rank that waits longest has waited for
    data, since this worker group began; none: no rank measures it."""
    data_wait_rank: Count | None = None
    """That rank."""
    step_seconds: Duration | None = None
    """What a step takes, as the mean of the last steps; none: no session measures it."""
    communication_wait_share: Share | None = None
    """Share of the time in steps, from 0 to 1, in which the rank that waits longest has waited for
    gradients of other ranks; none: no rank measures it."""
    communication_wait_rank: Count | None = None
    """That rank."""
    slowest_rank: SlowestRank | None = None
    """The rank for which the others wait longest; none: not every rank measures it."""
    memory: RankMemory | None = None
    """The rank with the fullest memory; none: none has reported it."""
    ranks: Annotated[list[RankRow], the_last(MOST_RANKS)] = Field(default_factory=list)
    """The ranks by number; of more than 16 those that are slowest, wait most for data, have the
    fullest memory or the idlest accelerators."""
    warnings: Annotated[list[Sentence], the_last(MOST_WARNINGS)] = Field(default_factory=list)
    """What slows the training or is about to end it, a sentence for each."""
    metrics: Metrics = Field(default_factory=dict)
    """Latest reported metrics; NaN and infinity as strings."""
    checkpoint: LastCheckpoint | None = None
    """The newest committed checkpoint."""
    # The validator on the right comes first: only the last records are looked at.
    records: Annotated[list[Record], BeforeValidator(_of_known_kinds), the_last(MOST_RECORDS)] = (
        Field(default_factory=list)
    )
    """What happened, newest last, at most 100."""
    seconds: Seconds = Field(default_factory=Seconds)
    """Where this driver's time went."""
    lost_nodes: Annotated[list[Name], the_last(MOST_NODES)] = Field(default_factory=list)
    """Kubernetes nodes from which Ray gets no more heartbeats."""
    spare_pods: Annotated[list[Name], the_last(MOST_SPARE_PODS)] = Field(default_factory=list)
    """Pods that wait, with no rank of the worker group that trains in them, and such that have
    ended since."""
    storage_error: Sentence | None = None
    """Why the bucket does not answer at present, in a sentence; none: it does. Training continues,
    uploads and commits wait."""
    storage_error_since: UnixTime | None = None
    """Unix time in seconds since when it does not."""
    standstill: Sentence | None = None
    """Which ranks wait for which others for long, in a sentence; none: no rank does."""
    hang: Hang | None = None
    """The driver's latest hang; none: it has found none."""
    stuck_pods: Annotated[list[Name], the_last(MOST_RANKS)] = Field(default_factory=list)
    """Pods with a process of a hung rank that could not be ended: they have to be deleted."""
    paused_at_step: Count | None = None
    """Of a trial of a sweep: the step after which it waits for the others; none: it does not."""
    failure: Failure | None = None
    """Why the driver gave up, in state Failed."""
    result: ProgressResult | None = None
    """In state Succeeded."""
    sweep: SweepTable | None = None
    """Of a sweep all trials, unless the result has them. Steps and checkpoint are then sums over
    the trials."""
    report_uri: Uri | None = None
    """Where this driver has written the page of the run; none: it has not."""

    @model_validator(mode="before")
    @classmethod
    def _of_a_newer_runtime(cls, found: Any) -> Any:
        """In a state of which this side does not know whether it is final, nobody trains for sure
        and nothing has ended: the RayJob tells. A result then is none of a success.
        """
        if isinstance(found, dict) and _is_beyond(set(RunState), found.get("state")):
            return {**found, "state": RunState.RECOVERING, "result": None}
        return found

    @property
    def begins_until(self) -> float:
        """Number of the record up to which the run, or trials of it, begin under the first driver:
        where no step is restored until then, nothing is.
        """
        # Those of a sweep have no step.
        stops = (one.number for one in self.records if one.kind.is_loss or one.step is not None)
        return min(stops, default=math.inf)

    @property
    def trials(self) -> SweepTable | None:
        """Of a sweep all trials; none: it is no sweep."""
        return self.sweep or (self.result.sweep if self.result is not None else None)
