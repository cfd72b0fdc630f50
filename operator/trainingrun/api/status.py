"""What the operator writes back: where a run stands and what the losses cost.

Times are RFC 3339 in UTC with whole seconds; durations are seconds. Fields of a newer operator are
ignored, so that an older one that takes over again loses no more than those.
"""

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from trainingrun_protocol.progress import (
    MOST_RANKS,
    MOST_TRIALS,
    MOST_WARNINGS,
    RankMemory,
    RankRow,
    SlowestRank,
    TrialRow,
)
from trainingrun_protocol.wire import Wire

from .base import list_by

MOST_ATTEMPTS = 20
"""Attempts in a status, the newest."""
MOST_RANKED = 20
"""Trials in `status.result`, the best."""


class Phase(StrEnum):
    """The state of the run in one word, derived from the conditions and the attempt."""

    PENDING = "Pending"
    QUEUED = "Queued"
    STARTING = "Starting"
    RUNNING = "Running"
    RECOVERING = "Recovering"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    DELETING = "Deleting"


Budget = Literal["application", "infrastructure", "none"]
"""What an ended attempt is counted against: failures.maxRestarts, failures.maxPreemptions or
neither."""


class LossReason(StrEnum):
    """Why an attempt, or a part of one, ended. `budget` says what it is counted against."""

    PREEMPTED = "Preempted"
    NODE_LOST = "NodeLost"
    HEAD_LOST = "HeadLost"
    WORKER_LOST = "WorkerLost"
    EVICTED = "Evicted"
    OUT_OF_MEMORY = "OutOfMemory"
    APPLICATION_ERROR = "ApplicationError"
    INFRASTRUCTURE_ERROR = "InfrastructureError"
    STORAGE_ERROR = "StorageError"
    SUSPENDED = "Suspended"

    @property
    def budget(self) -> Budget:
        """What it is counted against."""
        if self in (LossReason.APPLICATION_ERROR, LossReason.OUT_OF_MEMORY):
            return "application"
        return "none" if self is LossReason.SUSPENDED else "infrastructure"


class ConditionType(StrEnum):
    """The conditions of a run."""

    ACCEPTED = "Accepted"
    READY = "Ready"
    SUSPENDED = "Suspended"
    WAITING = "Waiting"
    STALLED = "Stalled"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class Condition(Wire):
    """A standard Kubernetes condition."""

    type: ConditionType
    """Accepted, Ready, Suspended, Waiting, Stalled, Succeeded or Failed."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: str
    """Why, in one CamelCase word."""
    message: str = ""
    """One sentence: what is so and, where something is wrong, what to do."""
    last_transition_time: str
    """When status last changed."""
    observed_generation: int = 0
    """The spec's generation that this describes."""


class Attempt(Wire):
    """One RayJob of the run."""

    number: int
    """1, 2, 3 …; the RayJob is `<run>-<number>`."""
    ray_job: str
    """Name of the RayJob."""
    capacity: str
    """The workers' capacity type."""
    outcome: Literal["Running", "Succeeded", "Failed", "Lost", "Suspended"] = "Running"
    """How it ended; Failed is the application's fault and Lost the infrastructure's."""
    reason: LossReason | None = None
    """Why it ended; none while it runs and after success."""
    message: str = ""
    """What was seen, in a sentence."""
    start_time: str
    """When the attempt was begun."""
    end_time: str | None = None
    """When its end was seen."""
    resumed_from_step: int | None = None
    """Step of the checkpoint that it restored; 0 from scratch."""
    last_step: int | None = None
    """Last step that was reported."""


class RunProgress(Wire):
    """How far the training is."""

    step: int = 0
    """Steps done."""
    total_steps: int | None = None
    """Steps of the whole training, where it reports them."""
    percent: int | None = None
    """step / totalSteps in percent, rounded down."""
    seconds_left: int | None = None
    """Estimated seconds of training left."""
    checkpoint_interval_seconds: int | None = None
    """Seconds between periodic checkpoints, as the training now makes them; with
    checkpoints.everySeconds auto it follows what checkpoints cost and how often the run is lost."""
    data_wait_share: float | None = None
    """Share of the time in steps, from 0 to 1, in which the rank that waits longest has waited for
    data since its worker group began; none: the training draws no batches through its session."""
    data_wait_rank: int | None = None
    """That rank."""
    step_seconds: float | None = None
    """What a step takes, as the mean of the last steps; none: the training has no session."""
    communication_wait_share: float | None = None
    """Share of the time in steps, from 0 to 1, in which the rank that waits longest has waited for
    the gradients of other ranks; none: the session has no model in DistributedDataParallel."""
    communication_wait_rank: int | None = None
    """That rank."""
    slowest_rank: SlowestRank | None = None
    """The rank for which the others wait longest, as the same models measure it."""
    memory: RankMemory | None = None
    """The rank whose memory is, or will first be, full."""
    ranks: list[RankRow] | None = Field(
        default=None, max_length=MOST_RANKS, json_schema_extra=list_by("rank")
    )
    """The ranks by number, while they train; of more than 16 those that are slowest, wait most for
    data, have the fullest memory or the idlest accelerators. Measurements of
    memory are renewed when they differ by 2%."""
    warnings: list[str] | None = Field(default=None, max_length=MOST_WARNINGS)
    """What slows the training or is about to end it, in at most 5 sentences: a rank that is far
    slower than the others, memory that grows up to its limit within an hour, accelerators that
    have computed less than a tenth of the last 5 minutes."""
    metrics: dict[str, Any] = Field(default_factory=dict)
    """Latest reported metrics."""
    update_time: str | None = None
    """When the training last reported."""


class CheckpointStatus(Wire):
    """The newest committed checkpoint."""

    uri: str
    """Where it is."""
    step: int
    """Steps done when it was made."""
    time: str
    """When it was committed."""


class RestoredFrom(Wire):
    """The other run from which this one begins: spec.storage.restoreFrom."""

    uri: str
    """That run's folder, found before the first attempt. It is kept if that run is deleted."""
    step: int | None = None
    """Step of the checkpoint that was restored from it; none: no driver has yet."""


class Disruptions(Wire):
    """What was lost so far, by kind."""

    preemptions: int = 0
    """Workers that left after a notice."""
    node_losses: int = 0
    """Nodes that vanished."""
    head_losses: int = 0
    """Head pods that vanished."""
    worker_failures: int = 0
    """Worker processes or pods that died without notice."""
    out_of_memory: int = 0
    """Containers ended for exceeding their memory limit."""
    application_errors: int = 0
    """Exceptions of the training code: the only ones that use up failures.maxRestarts, with
    outOfMemory."""


class LostSeconds(Wire):
    """Seconds in which the run did not train, by cause."""

    queue: float = 0
    """Waiting for admission or capacity."""
    startup: float = 0
    """From pods to the first step of the first attempt."""
    lost_work: float = 0
    """Steps done again because they were after the last checkpoint."""
    recovery: float = 0
    """From the last step before a disruption to the first one after it."""
    checkpoint: float = 0
    """Training stopped for checkpoints."""


class Goodput(Wire):
    """The share of time that went into steps that counted."""

    percent: int = 0
    """productiveSeconds of the time since the start, suspended time left out."""
    productive_seconds: float = 0
    """Seconds in steps that counted."""
    lost_seconds: LostSeconds = Field(default_factory=LostSeconds)
    """The rest, by cause."""


class SweepStatus(Wire):
    """The trials of spec.sweep."""

    pending: int = 0
    """Trials that have not begun, or wait for others."""
    running: int = 0
    """Trials that are trained now."""
    succeeded: int = 0
    """Trials that were trained to their end."""
    stopped: int = 0
    """Trials that ASHA has stopped."""
    failed: int = 0
    """Trials whose training raised an error."""
    best: int | None = None
    """Number of the best trial so far: of those that succeeded, or of all while none has."""
    trials: list[TrialRow] = Field(
        default_factory=list, max_length=MOST_TRIALS, json_schema_extra=list_by("number")
    )
    """Each trial."""


class RunResult(Wire):
    """What a successful run leaves."""

    metrics: dict[str, Any] = Field(default_factory=dict)
    """Last reported metrics."""
    checkpoint_uri: str | None = None
    """The final checkpoint."""
    best_checkpoint_uri: str | None = None
    """The best checkpoint, where checkpoints.best is set."""
    trial: int | None = None
    """Of a sweep the number of the best trial; metrics and checkpoints are that one's."""
    config: dict[str, Any] | None = None
    """Of a sweep the best trial's values of the config."""
    trials: list[TrialRow] | None = Field(
        default=None, max_length=MOST_RANKED, json_schema_extra=list_by("number")
    )
    """Of a sweep the 20 best trials, the best one first; those that were trained to their end come
    before those that were stopped. status.sweep has all of them."""


class RunStatus(Wire):
    """Where the run stands."""

    observed_generation: int | None = None
    """The spec's generation that this describes."""
    phase: Phase | None = None
    """One word, derived from the conditions."""
    conditions: list[Condition] = Field(
        default_factory=list, max_length=len(ConditionType), json_schema_extra=list_by("type")
    )
    """Accepted, Ready, Suspended, Waiting, Stalled, Succeeded, Failed."""
    attempt: int = 0
    """Number of the current or last attempt."""
    attempts: list[Attempt] = Field(
        default_factory=list, max_length=MOST_ATTEMPTS, json_schema_extra=list_by("number")
    )
    """The newest attempts, oldest first; at most 20 are kept."""
    restarts: int = 0
    """Retries of failures.maxRestarts used so far."""
    start_time: str | None = None
    """When the run was accepted."""
    completion_time: str | None = None
    """When it ended."""
    next_attempt_time: str | None = None
    """When the backoff before the next attempt ends."""
    suspended_seconds: float = 0
    """Time spent suspended before now, which no deadline counts."""
    queued_seconds: float = 0
    """Time that Kueue kept the run waiting before now, which no deadline counts."""
    progress: RunProgress | None = None
    """How far the training is."""
    checkpoint: CheckpointStatus | None = None
    """The newest committed checkpoint."""
    restored_from: RestoredFrom | None = None
    """The other run from which this one begins: spec.storage.restoreFrom."""
    disruptions: Disruptions = Field(default_factory=Disruptions)
    """What was lost so far, by kind."""
    goodput: Goodput | None = None
    """The share of time that went into steps that counted."""
    sweep: SweepStatus | None = None
    """The trials of spec.sweep. Steps in status are then sums over all trials."""
    result: RunResult | None = None
    """What a successful run leaves."""
    seen: dict[str, Any] = Field(default_factory=dict)
    """Evidence already counted (pod UIDs, the runtime's record numbers), so that an event seen
    twice, or by an operator that was restarted, is counted once."""

    @property
    def last_attempt(self) -> Attempt | None:
        """The newest attempt; None: none has begun."""
        return self.attempts[-1] if self.attempts else None

    @property
    def running_attempt(self) -> Attempt | None:
        """The attempt that is running."""
        newest = self.last_attempt
        return newest if newest and newest.outcome == "Running" else None

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended; it stays ended."""
        return self.completion_time is not None
