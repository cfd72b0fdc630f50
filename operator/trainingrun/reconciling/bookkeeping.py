"""What was counted already: the typed view of `status.seen`.

Everything here exists so that an operator that is killed between any two lines counts nothing twice
and forgets nothing. It stays small: pods are kept only while their attempt runs.
"""

from typing import Any

from pydantic import Field

from trainingrun_protocol.failure_rules import FailureFacts
from trainingrun_protocol.wire import Wire

from ..api import salvage
from ..api.status import LossReason

OF_ONE_ATTEMPT: dict[str, Any] = {
    "counted": {},
    "end_seen": None,
    "given_up": None,
    "suspend_asked": None,
    "hung_since": None,
    "incomplete_since": None,
    "workers_wait_since": None,
    "crashed_heads": 0,
    "crashed_workers": 0,
    "lost_places": [],
}
"""What is forgotten between two attempts."""


class _Entry(Wire):
    """A part of it. No object of the API, whose checks would be made of each at each reconcile."""


class CountedDisruption(_Entry):
    """One loss that was counted."""

    reason: LossReason
    """What it was counted as."""
    time: str
    """When it was first seen."""
    pod: str | None = None
    """Name of the pod, as in the runtime's records."""
    termination_message: str = ""
    """How its container ended: its exit code and the last line of its log; "" once the training
    has done a new step since."""
    collateral: bool = False
    """True: it is known, and explained by another loss that carries the count."""
    spare: bool = False
    """Whether no rank was there, so that no record is about it; `collateral` then."""
    ended: str | None = None
    """When the container ended, by the kubelet's clock; only of one that ran out of memory."""
    created_at: str | None = None
    """When its pod was created, see `members.LostPlace`; not of a head that did not run out of
    memory."""
    number: int | None = None
    """Of its entry in status.disruptions.history."""
    recorded: bool = False
    """Whether only the driver has told of it: its pod has shown no end."""
    facts: FailureFacts | None = None
    """What failures.rules ask for; only of a run with rules."""
    rule: str | None = None
    """Key of the rule that it met."""
    rule_pays: bool = False
    """Whether it uses no budget of its class because of that."""
    undecided: bool = False
    """Whether a rule ends the run for it unless more is told of it: see `Losses.settle`."""
    forgiven: bool = False
    """Whether what it used has been filled again since: nothing that is learned about it later, and
    no rule that is written later, changes what it counts as. It would be forgiven twice."""

    @property
    def charges(self) -> str | None:
        """The budget, or the rule's key, that it uses."""
        return self.rule if self.rule_pays else self.reason.budget


class Charged(_Entry):
    """Where a run was when a budget was used last."""

    step: int = 0
    """The furthest step until then."""
    productive: float = 0
    """Seconds in steps that counted until then."""


class RuleCount(_Entry):
    """How often a rule was met."""

    matches: int = 0
    """Failures that met it."""
    time: str | None = None
    """When the last one was counted."""


class AvoidedNode(_Entry):
    """A node that pods exclude although it is well."""

    time: str
    """Since when."""
    reason: str = ""
    """Why, in a phrase."""
    hostname: str = ""
    """Its label kubernetes.io/hostname."""
    move: bool = False
    """Whether the worker pods that were there are replaced."""


class Interruption(_Entry):
    """Losses whose cost is not known yet: the training has not continued since."""

    first: int
    """Number of the first of them in status.disruptions.history; later ones belong to it too."""
    fencing_token: int
    """Of the newest driver whose records were read before it."""
    record: int
    """Number of its last record that was read before it."""
    step: int
    """Last step that was read before it."""
    lost_seconds: float
    """status.goodput's lost work and recovery before it."""


class SpotLoss(_Entry):
    """The loss of a spot node, once for all of its pods."""

    time: str
    """When the first of them was seen."""
    node: str | None = None
    """Its name, where known."""
    zone: str | None = None
    """Its topology.kubernetes.io/zone, where known."""
    instance_type: str | None = None
    """Its node.kubernetes.io/instance-type, where known."""


class Held(_Entry):
    """What a run's pods take while they hold their nodes."""

    devices: int = 0
    """Accelerators of the workers; without accelerators, workers."""
    standby: int = 0
    """Of those, the ones of standby pods."""
    waits: bool = False
    """Whether other pods have no node yet; not of a sweep in which a trial trains."""
    per_hour: float = 0
    """Money for an hour, of what has a price."""
    saves_per_hour: float = 0
    """What it would cost more on on-demand nodes."""
    unpriced: str | None = None
    """One of the nodes that have no price."""
    uncompared: bool = False
    """Whether the on-demand price of some spot node is not known."""


class Meter(_Entry):
    """What a run has used until now."""

    time: str | None = None
    """Until when it is counted; none: nothing was held yet."""
    held: Held = Field(default_factory=Held)
    """What is held since then."""
    device_seconds: float = 0
    """Of all accelerators."""
    waiting: float = 0
    """Of those, while other pods had no node, and those of standby pods."""
    starting: float | None = None
    """Of those, before the first step; none: it is not done yet."""
    spent: float = 0
    """Money, of what has a price."""
    saved: float = 0
    """What on-demand nodes would have cost more."""
    unpriced: bool = False
    """Whether something had no price."""
    uncompared: bool = False
    """Whether the on-demand price of some spot node was not known."""


class TimeSpent(_Entry):
    """Where one driver's or all earlier drivers' time went, in seconds."""

    productive: float = 0
    lost_work: float = 0
    checkpoint: float = 0


class Told(_Entry):
    """What one webhook of spec.notify has been told."""

    ids: dict[str, str] = Field(default_factory=dict)
    """What has happened, by an identifier: since when it waits to be sent; "": it was sent, or is
    not to be."""
    problem: str = ""
    """Why what waits is not sent, once an event has said so."""


class Bookkeeping(Wire):
    """`status.seen`."""

    field_names: str | None = None
    """`Observed.field_names` of when the run was accepted first."""
    head: str | None = None
    """UID of the newest attempt's head pod, once KubeRay's status has named one; kept until the
    next attempt begins, as `ray_cluster`."""
    ray_cluster: str | None = None
    """UID of the newest attempt's RayCluster, once it was seen with its owner; kept until the next
    attempt begins, for what it may leave."""
    former_ray_clusters: list[str] = Field(default_factory=list)
    """UIDs of those that the attempt had before, where somebody deleted them: a pod whose kubelet
    does not answer outlives its RayCluster, and no attempt begins beside it."""
    counted: dict[str, CountedDisruption] = Field(default_factory=dict)
    """Losses of the current attempt, by pod UID, `node:<name>` or
    `record:<fencing token>/<number>`."""
    losses: int = 0
    """Number of the newest entry in status.disruptions.history."""
    interruption: Interruption | None = None
    """The losses whose cost is not known yet."""
    lost_places: list[tuple[str, str]] = Field(default_factory=list)
    """Of workers that are no longer in `counted`, when the pod was created and when its loss was
    seen: see `members.LostPlace`."""
    lost_nodes: dict[str, str] = Field(default_factory=dict)
    """Nodes that were lost, with the time; kept across attempts, for a while."""
    hostnames: dict[str, str] = Field(default_factory=dict)
    """Their label kubernetes.io/hostname, where it is not the node's name."""
    avoided: dict[str, AvoidedNode] = Field(default_factory=dict)
    """Nodes that are well and excluded all the same, by name; kept across attempts."""
    crashed_heads: int = 0
    """Heads that ended by themselves since the last new step and are no longer in `counted`."""
    crashed_workers: int = 0
    """Likewise workers."""
    workers: int = 0
    """Workers of the current attempt, as it was rendered; 0: not known, the spec counts."""
    per_pod: int = 0
    """Those in each pod; 0: not known, the spec counts."""
    checkpoints: dict[str, Any] = Field(default_factory=dict)
    """spec.checkpoints as the current attempt was rendered with it; empty: not known."""
    hung_since: str | None = None
    """Since when every pod runs and KubeRay has submitted no driver."""
    incomplete_since: str | None = None
    """Since when the attempt lacks pods and nothing says why."""
    fencing_token: int = 0
    """Of the newest driver whose records were read."""
    records: int = 0
    """Number of its last record that was read."""
    driver_fencing_token: int = 0
    """Of the newest driver that has restored; the next three fields are about it."""
    first_step: int = 0
    """Step from which that driver continued."""
    last_step: int = 0
    """Its last step."""
    driver: TimeSpent = Field(default_factory=TimeSpent)
    """Its time, as it last reported."""
    earlier: TimeSpent = Field(default_factory=TimeSpent)
    """The time of all drivers before it."""
    workers_wait_since: str | None = None
    """Since when some worker has no node."""
    spot_losses: dict[int, SpotLoss] = Field(default_factory=dict)
    """Losses of spot nodes of which status.disruptions.history has no entry any more, by the number
    of the first one; the newest. See `history.spot_losses`."""
    spot_losses_since: str | None = None
    """Losses of spot nodes up to then count no more: since then new workers go to spot again."""
    avoided_losses_since: str | None = None
    """Losses up to then have no zone or instance type avoided any more."""
    placements: int = 0
    """How often new workers were to go to other nodes than before: see `capacity`."""
    sizes: dict[int, float] = Field(default_factory=dict)
    """Of an elastic run: seconds for which that driver trained with so many workers, by number."""
    earlier_sizes: dict[int, float] = Field(default_factory=dict)
    """The same of all drivers before it."""
    world_size: int = 0
    """Of an elastic run: workers that the driver trained with last."""
    queue_seconds: float | None = None
    """Wait for the first pods to be scheduled, once they all were, and for Kueue since."""
    startup_seconds: float | None = None
    """From there to the first step of the run, once it was done; of a sweep also what its newest
    driver has told of its trials' starts."""
    meter: Meter = Field(default_factory=Meter)
    """What the run has used."""
    attempts_without_progress: int = 0
    """Attempts begun since the last newer checkpoint."""
    best_step: int = -1
    """Step of the furthest checkpoint so far: only a newer one is progress."""
    other_losses: int = 0
    """Attempts that infrastructure ended without a loss in `counted`."""
    rule_counts: dict[str, RuleCount] = Field(default_factory=dict)
    """Uses of failures.rules, by the rule's key."""
    forgiven: dict[str, int] = Field(default_factory=dict)
    """Failures that no longer, or never, count against a budget or a rule, by its name or key."""
    charged_at: dict[str, Charged] = Field(default_factory=dict)
    """When each budget or rule was used last; absent: it is full."""
    end_seen: str | None = None
    """When the RayJob was first seen to have ended, while final progress is awaited."""
    given_up: str | None = None
    """When KubeRay was first seen to have given up an attempt whose driver answers."""
    suspend_asked: str | None = None
    """When /suspend was first posted to the runtime."""
    failing_since: str | None = None
    """Since when one action after another has not worked; see `failing_actions`."""
    suspended_since: str | None = None
    """Since when every pod is gone because of `suspend: true`."""
    queued_since: str | None = None
    """Since when Kueue keeps the run waiting."""
    notified: dict[str, Told] = Field(default_factory=dict)
    """What was told, by webhook: `<secret>/<key>`. One that is not here was just added."""

    @classmethod
    def read(cls, seen: dict[str, Any]) -> "Bookkeeping":
        """From `status.seen`, as far as this version understands it: after a rollback it may have
        fields and values of a later one. What no operator wrote counts as nothing seen.
        """
        return salvage.read(cls, seen) or cls()

    def write(self) -> dict[str, Any]:
        """For `status.seen`; what is as in empty bookkeeping is left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
