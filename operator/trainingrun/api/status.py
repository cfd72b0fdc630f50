"""What the operator writes back: where a run stands and what the losses cost.

Times are RFC 3339 in UTC with whole seconds; durations are seconds. Fields of a newer operator are
ignored, so that an older one that takes over again loses no more than those.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from trainingrun_protocol.failure_rules import MOST_RULES
from trainingrun_protocol.progress import (
    MOST_LAST_LINES,
    MOST_RANKS,
    MOST_SIZES,
    MOST_TRIALS,
    MOST_WARNINGS,
    HungRank,
    RankMemory,
    RankRow,
    SlowestRank,
    TrialRow,
)
from trainingrun_protocol.wire import Wire

from .base import Newest, list_by
from .defaults import AppliedDefaults
from .pods_spec import MOST_PREEMPTIONS

MOST_ATTEMPTS = 20
"""Attempts in a status, the newest."""
MOST_EXCLUDED_NODES = 20
"""Nodes excluded for what happened there, the newest."""
MOST_RANKED = 20
"""Trials in `status.result`, the best."""
MOST_LOSSES = MOST_PREEMPTIONS
"""Losses in a status, the newest."""
MOST_AVOIDED = 16
"""Zones and instance types that new workers avoid."""
MOST_WORKER_NODES = 32
"""Worker pods whose nodes are in a status."""


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


Budget = Literal["application", "infrastructure", "hang", "none"]
"""What an ended attempt or a loss is counted against: failures.maxRestarts,
failures.maxPreemptions, failures.maxHangs or none of them."""


class LossReason(StrEnum):
    """Why an attempt, or a part of one, ended. `budget` says what it is counted against."""

    PREEMPTED = "Preempted"
    NODE_LOST = "NodeLost"
    HEAD_LOST = "HeadLost"
    WORKER_LOST = "WorkerLost"
    EVICTED = "Evicted"
    OUT_OF_MEMORY = "OutOfMemory"
    HANG = "Hang"
    APPLICATION_ERROR = "ApplicationError"
    INFRASTRUCTURE_ERROR = "InfrastructureError"
    STORAGE_ERROR = "StorageError"
    SUSPENDED = "Suspended"

    @property
    def budget(self) -> Budget:
        """What it is counted against."""
        if self in (LossReason.APPLICATION_ERROR, LossReason.OUT_OF_MEMORY):
            return "application"
        if self is LossReason.HANG:
            return "hang"
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
    failed_rank: int | None = None
    """The rank that failed first, where one ended the attempt."""
    rule: int | None = None
    """Number of the rule of failures.rules that its end has met, from 1; none: it met none."""
    last_lines: Annotated[list[str], Newest(MOST_LAST_LINES)] | None = None
    """What that rank has printed last, at most 5 lines of 200 characters; 50 of them are in the
    run's folder, and `trainingrun logs` shows all."""

    @model_validator(mode="before")
    @classmethod
    def _ended_as_lost(cls, found: Any) -> Any:
        """An attempt of which `salvage` has left out a later version's outcome has been Lost, if it
        has ended: as Running it would be ended once more, by the absence of its RayJob. Lost blames
        no code, charges nothing once the end is written, ends no run and begins no attempt by
        itself. Suspended would free pods that failures.keepFailedPodsSeconds keeps.
        """
        if isinstance(found, dict) and found.get("endTime") and found.get("outcome") is None:
            return {**found, "outcome": "Lost"}
        return found


class RuleUse(Wire):
    """How often a rule of spec.failures.rules was met."""

    rule: int
    """Its number: 1 is the first."""
    then: str
    """What it says."""
    matches: int = 0
    """Failures that met it. A rule whose `when` or `then` is changed counts anew."""
    used: int = 0
    """Those of them that count against its maxRestarts: since they were last refilled."""
    last_time: str | None = None
    """When the last one was counted; none: none was."""


class ExcludedNode(Wire):
    """A node that the run's pods exclude although it is well."""

    node: str
    """Its name."""
    since: str
    """When it was excluded. It is taken back after 6 hours, or once pods have found no node for 10
    minutes."""
    reason: str
    """Why."""


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
    ranks: Annotated[list[RankRow], Newest(MOST_RANKS)] | None = Field(
        default=None, json_schema_extra=list_by("rank")
    )
    """The ranks by number, while they train; of more than 16 those that are slowest, wait most for
    data, have the fullest memory or the idlest accelerators. Measurements of
    memory are renewed when they differ by 2%."""
    warnings: Annotated[list[str], Newest(MOST_WARNINGS)] | None = None
    """What slows the training or is about to end it, in at most 5 sentences: a rank that is far
    slower than the others, memory that grows up to its limit within an hour, accelerators that
    have computed less than a tenth of the last 5 minutes."""
    metrics: dict[str, Any] = Field(default_factory=dict)
    """Latest reported metrics."""
    update_time: str | None = None
    """When the training last reported."""


class WorkersAtSize(Wire):
    """For how long an elastic run trained with so many workers."""

    workers: int
    """Number of workers."""
    seconds: float = 0
    """Seconds in steps that counted."""


class WorkersStatus(Wire):
    """How many workers a run with workers.minimum or workers.standby has, and had."""

    wanted: int = 0
    """All of them: workers.count."""
    ready: int = 0
    """Workers whose pods are ready."""
    training: int = 0
    """Workers that train now; 0: none does."""
    standby: int | None = None
    """Standby pods that are ready and wait; none: workers.standby is not set."""
    sizes: Annotated[list[WorkersAtSize], Newest(MOST_SIZES)] = Field(
        default_factory=list, json_schema_extra=list_by("workers")
    )
    """How long so many of them trained, by number; of more than 100 numbers those with the most
    time."""


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


class Loss(Wire):
    """One loss, and what it cost."""

    number: int
    """1, 2, 3 … in the order in which they were seen. One that proved to be a part of another loss
    is left out, with its number."""
    time: str
    """When it was seen, or when the driver recorded it."""
    attempt: int
    """Attempt during which it happened."""
    reason: LossReason
    """Its class."""
    pods: list[str] = Field(default_factory=list)
    """The pods that were lost, at most 8; empty: not known, or no pod was lost."""
    node: str | None = None
    """Node on which it happened, where known."""
    zone: str | None = None
    """That node's topology.kubernetes.io/zone, where known."""
    instance_type: str | None = None
    """That node's node.kubernetes.io/instance-type, where known."""
    capacity: Literal["OnDemand", "Spot"] | None = None
    """That node's capacity by the labels of the operator's platform, where they are known."""
    since: str | None = None
    """When the pods that were lost got that node; of several the first. None: not known."""
    signs: str = ""
    """What showed it, in a sentence."""
    step: int | None = None
    """Last step before it, as far as the operator had read it."""
    lost_steps: int | None = None
    """Steps that were done again because of it; none: not known, or not yet."""
    lost_seconds: float | None = None
    """Seconds of training that it cost: the steps done again, and the time up to the first new one.
    Losses that end with one restart share it: the first of them has both numbers, the others 0.
    None: not known, as in a sweep or before the first step, or not yet."""
    action: str = ""
    """What was done about it, in a sentence; empty: the training has not continued yet."""


WorkerNodes = Literal["OnDemand", "Spot", "Any"]
"""Where new workers go; Any: spot is preferred."""


class WorkerNode(Wire):
    """Where a worker pod runs."""

    pod: str
    """Its name."""
    node: str
    """Its node."""
    capacity: Literal["OnDemand", "Spot"]
    """The node's capacity by the labels of the operator's platform."""
    since: str
    """When the pod got the node."""


class AvoidedNodes(Wire):
    """Spot nodes that new workers do not go to, since several of them were lost."""

    label: str
    """topology.kubernetes.io/zone or node.kubernetes.io/instance-type."""
    value: str
    """Of that label."""
    losses: int
    """How many of them were lost."""
    until: str
    """When new workers may go there again."""


class CapacityStatus(Wire):
    """Which nodes new worker pods go to, and on which nodes the workers are."""

    type: WorkerNodes
    """The capacity of new worker pods; Any: spot is preferred."""
    product: str | None = None
    """The accelerator's product that they go to; none: the first that the spec names, or any."""
    since: str
    """Since when."""
    message: str = ""
    """Why this is not the first choice of the spec, in a sentence; empty: it is."""
    return_time: str | None = None
    """When new pods go to the first choice again; none: at no time."""
    avoided: Annotated[list[AvoidedNodes], Newest(MOST_AVOIDED)] = Field(default_factory=list)
    """Zones and instance types whose spot nodes were lost again and again: new workers go to other
    spot nodes for a while."""
    spot: int = 0
    """Worker pods that are on spot nodes."""
    on_demand: int = 0
    """Worker pods that are on on-demand nodes."""
    workers: Annotated[list[WorkerNode], Newest(MOST_WORKER_NODES)] = Field(
        default_factory=list, json_schema_extra=list_by("pod")
    )
    """Each worker pod that has a node of which the labels are known; of more than 32 those that got
    theirs last."""


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
    hangs: int = 0
    """Worker groups that stood still and were restarted: what uses up failures.maxHangs."""
    out_of_memory: int = 0
    """Containers ended for exceeding their memory limit."""
    application_errors: int = 0
    """Exceptions of the training code: the only ones that use up failures.maxRestarts, with
    outOfMemory."""
    history: Annotated[list[Loss], Newest(MOST_LOSSES)] = Field(
        default_factory=list, json_schema_extra=list_by("number")
    )
    """Each loss, oldest first; the newest 50. Pods that run out of memory together are one failure
    in outOfMemory, and an entry each here. The driver writes those that it sees to `history/` in
    the run's folder, which has all of them."""


class HangStatus(Wire):
    """The latest hang: where each rank stood."""

    time: str
    """When it was found."""
    seconds: float
    """For how long no step had been done."""
    message: str
    """Which ranks waited, and which one hung, in a sentence."""
    ranks: Annotated[list[HungRank], Newest(MOST_RANKS)] = Field(
        default_factory=list, json_schema_extra=list_by("rank")
    )
    """The ranks by number; of more than 16 those that hung come first."""
    stacks: str | None = None
    """Folder in the bucket with the stack of each rank; `trainingrun stacks` prints them."""


class LostSeconds(Wire):
    """Seconds in which the run did not train, by cause."""

    queue: float = 0
    """Waiting for admission or capacity."""
    startup: float = 0
    """From pods to the first step; in a sweep also the start of each further trial."""
    lost_work: float = 0
    """Steps done again because they were after the last checkpoint."""
    recovery: float = 0
    """Time without training after the first step: from the last step before a loss, or before the
    run is suspended, to the next one, and what a driver did that the operator could not ask."""
    checkpoint: float = 0
    """Training stopped for checkpoints."""
    fewer_workers: float = 0
    """Training with fewer workers than workers.count: of its time the missing workers' share."""


class Goodput(Wire):
    """The share of time that went into steps that counted."""

    percent: int = 0
    """productiveSeconds in percent of seconds, rounded down."""
    seconds: float = 0
    """The time from the start to the last step or, once the driver has told its end, to the end of
    the run, suspended time left out. It is the sum of productiveSeconds and of each of lostSeconds,
    to a tenth of a second."""
    productive_seconds: float = 0
    """Seconds in steps that counted and between their loops, as in evaluations; with fewer workers
    than all, the share of those that train."""
    lost_seconds: LostSeconds = Field(default_factory=LostSeconds)
    """The rest, by cause."""


class AcceleratorSeconds(Wire):
    """Seconds for which the workers' accelerators were held, by cause. Two workers with four GPUs
    each hold eight accelerator seconds a second. Without accelerators each worker counts as one.
    """

    training: float = 0
    """In steps that counted."""
    saving: float = 0
    """Training stopped for checkpoints."""
    lost: float = 0
    """In steps that were done again, and held without training after the first step, until the last
    pod is gone."""
    starting: float = 0
    """Before the first step of the run, once every pod had a node; in a sweep also at the start of
    each further trial."""
    waiting: float = 0
    """Held by some pods while others had no node, and by standby pods."""


class Cost(Wire):
    """What the run has used, and the money that the operator's prices make of it: from its first
    pod until the last step or, once it has ended, until its pods are gone.
    """

    unit: Literal["accelerator", "worker"] = "accelerator"
    """What is counted: the workers' accelerators or, in a run without them, its workers."""
    total_seconds: float = 0
    """Seconds for which they were held: the sum of `seconds`, to a tenth of a second."""
    seconds: AcceleratorSeconds = Field(default_factory=AcceleratorSeconds)
    """The same by cause."""
    currency: str | None = None
    """Of all amounts; none: the operator has no prices."""
    amount: float | None = None
    """What all pods, the head too, have cost by the prices of their nodes, each by its share of the
    node; none: the operator has no price for some of them."""
    at_least: float | None = None
    """The same for those that have a price."""
    wasted: float | None = None
    """The share of `amount` that did not go into steps that counted, by accelerator seconds."""
    saved_by_spot: float | None = None
    """By how much on-demand nodes would have cost more; none: the prices do not say it."""


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
    trials: Annotated[list[TrialRow], Newest(MOST_TRIALS)] = Field(
        default_factory=list, json_schema_extra=list_by("number")
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
    trials: Annotated[list[TrialRow], Newest(MOST_RANKED, is_last=False)] | None = Field(
        default=None, json_schema_extra=list_by("number")
    )
    """Of a sweep the 20 best trials, the best one first; those that were trained to their end come
    before those that were stopped. status.sweep has all of them."""


class RunStatus(Wire):
    """Where the run stands."""

    observed_generation: int | None = None
    """The spec's generation that this describes; -1: no operator has seen the run yet."""
    phase: Phase | None = None
    """One word, derived from the conditions."""
    conditions: Annotated[list[Condition], Newest(len(ConditionType))] = Field(
        default_factory=list, json_schema_extra=list_by("type")
    )
    """Accepted, Ready, Suspended, Waiting, Stalled, Succeeded, Failed."""
    attempt: int = 0
    """Number of the current or last attempt."""
    attempts: Annotated[list[Attempt], Newest(MOST_ATTEMPTS)] = Field(
        default_factory=list, json_schema_extra=list_by("number")
    )
    """The newest attempts, oldest first; at most 20 are kept."""
    restarts: int = 0
    """Retries of failures.maxRestarts used so far, since they were last refilled."""
    failure_rules: Annotated[list[RuleUse], Newest(MOST_RULES)] | None = Field(
        default=None, json_schema_extra=list_by("rule")
    )
    """How often each rule of failures.rules was met; none: there are no rules."""
    excluded_nodes: Annotated[list[ExcludedNode], Newest(MOST_EXCLUDED_NODES)] | None = Field(
        default=None, json_schema_extra=list_by("node")
    )
    """Nodes that pods exclude because of a rule, a bad GPU or a rank that was slow there; none:
    there are none. Those that are excluded because they were lost are not among them."""
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
    workers: WorkersStatus | None = None
    """How many workers the run has, and had; none: neither workers.minimum nor
    workers.standby is set."""
    checkpoint: CheckpointStatus | None = None
    """The newest committed checkpoint."""
    defaults: AppliedDefaults | None = None
    """What the run has from TrainingDefaults and ClusterTrainingDefaults, since before its first
    attempt; later changes of them do not touch it. None: there were none."""
    restored_from: RestoredFrom | None = None
    """The other run from which this one begins: spec.storage.restoreFrom."""
    disruptions: Disruptions = Field(default_factory=Disruptions)
    """What was lost so far, by kind."""
    capacity: CapacityStatus | None = None
    """Which nodes new worker pods go to; none: spec.workers.capacity is OnDemand, and
    accelerator.products names no second product."""
    hang: HangStatus | None = None
    """The latest hang; none: none was found."""
    goodput: Goodput | None = None
    """The share of time that went into steps that counted."""
    cost: Cost | None = None
    """What the run has used, and what it has cost."""
    sweep: SweepStatus | None = None
    """The trials of spec.sweep. Steps in status are then sums over all trials."""
    result: RunResult | None = None
    """What a successful run leaves; where its driver's last document was not read, the run's folder
    alone has that, and this has no metrics and no checkpoint."""
    report_uri: str | None = None
    """The page of the run that the last driver to end has written, `report.html` in the run's
    folder; none: none has ended and written one. A head that is lost writes none."""
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
    def end_seen_time(self) -> str | None:
        """When the run's end was seen, by an operator that was away later than it ended; None: it
        has not ended.
        """
        last = self.last_attempt
        return self.completion_time and max(self.completion_time, (last and last.end_time) or "")

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended; it stays ended."""
        return self.completion_time is not None
