"""What a reconcile reads (`Observed`) and what it returns (`Plan`). No I/O, no clock.

Kubernetes objects are plain dicts as the API server gives them; nothing here changes them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from trainingrun_protocol.progress import Progress

from ..api.base import Model
from ..api.defaults import AppliedDefaults
from ..api.reasons import EventReason
from ..api.status import RunStatus
from ..api.v1alpha1 import TrainingRun

Object = Mapping[str, Any]
"""An object as the API server gives it."""

Manifest = Mapping[str, Any]
"""An object as it is to be applied."""

EventType = Literal["Normal", "Warning"]
"""`type` of an Event."""

DeliveryOutcome = Literal["delivered", "refused", "failed"]
"""refused: another try would end the same way; failed: it is tried again."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """The state of one node, by its Node object and its Lease."""

    name: str
    hostname: str = ""
    """Its label kubernetes.io/hostname, which on some clouds is not its name; empty: as `name`."""
    exists: bool = True
    """False: its Node object is gone."""
    ready: bool = True
    """Condition Ready is True."""
    lease_age_s: float | None = None
    """Seconds since the kubelet last renewed its Lease; None: not known, or not read,
    because there is no sign against the node."""
    taints: tuple[str, ...] = ()
    """Keys of its taints."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Those of its labels that the operator reads. Of a node that is gone: those that it had, as
    far as this process knows them."""
    allocatable: Mapping[str, float] = field(default_factory=dict)
    """What pods can request of it in all, by resource, in base units; empty: not known."""


@dataclass(frozen=True, slots=True)
class FailingAction:
    """An action that was tried and did not work. It is tried again while a plan has it."""

    verb: "Verb"
    """What is to be done with the object."""
    kind: str
    """Such as "RayJob", "Secret" or "NetworkPolicy"."""
    name: str
    """Name of the object."""
    message: str
    """The API server's message, or the error."""
    refused: bool
    """The API server has answered about this object; False: the next try may well work."""
    since: datetime
    """When it first failed."""

    @property
    def key(self) -> "ActionKey":
        """That of the action, see `key_of`."""
        return self.verb, self.kind, self.name


@dataclass(frozen=True, slots=True)
class Notice:
    """A message to a webhook of spec.notify."""

    webhook: str
    """Key of `status.seen.notified`."""
    secret: str
    """Name of the Secret with the address."""
    key: str
    """Key of that Secret."""
    id: str
    """The same whenever it is sent, and of no other one."""
    content_type: str
    body: Mapping[str, Any]
    """To be sent as JSON."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """How a notice has fared that this process has sent."""

    id: str
    """Of the notice."""
    outcome: DeliveryOutcome
    problem: str = ""
    """Why it was not delivered and what to do, in a clause without the address."""
    tries: int = 1
    """How often it was tried."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything about one run, read at one time."""

    run: TrainingRun
    """The run, with the status that was last written."""
    invalid: str | None = None
    """Why the spec cannot be used, where an older CRD let it through; `run` then has a placeholder
    spec and only its metadata and status count."""
    field_names: str | None = None
    """Digest of the names of fields that cannot change and of which the CRD knows no types."""
    defaults: AppliedDefaults | None = None
    """What the run has from the defaults of now, which count until its first attempt; None: there
    are none, or the run has begun, or its status has them."""
    defaults_unread: str | None = None
    """Why those of now cannot be read, though they could before; None: they were read."""
    repairable: bool = False
    """Whether defaults that are created or changed may repair a spec that cannot be used."""
    restore_source: Object | None = None
    """The TrainingRun that `storage.restoreFrom.run` names; None: it names none, or there is none
    of that name."""
    ray_jobs: tuple[Object, ...] = ()
    """RayJobs with the run's label, of whatever owner."""
    ray_clusters: tuple[Object, ...] = ()
    """RayClusters with the run's label."""
    pods: tuple[Object, ...] = ()
    """Pods with the run's label, terminating ones included."""
    nodes: Mapping[str, NodeState] = field(default_factory=dict)
    """The nodes that those pods are on and those in `status.seen.lostNodes`, by name."""
    progress: Progress | None = None
    """The runtime's last document, whichever attempt it is of."""
    progress_age_s: float | None = None
    """Seconds since it was fetched; None: never."""
    progress_failing_s: float | None = None
    """Seconds since polls began to fail; None: the last one worked, or none was tried."""
    progress_error: str | None = None
    """Why the last poll failed, in a sentence that names the head's answer, such as "the head
    answers 401: it has the token of another operator key"; None with `progress_failing_s`."""
    progress_polled_s: float | None = None
    """Seconds since this process first polled the head pod that is there now; None: it has not."""
    kuberay: Literal["ok", "missing", "too-old"] = "ok"
    """Whether the RayJob CRD is there, and takes what is rendered."""
    failing: tuple[FailingAction, ...] = ()
    """The actions on this run that were tried and did not work, for this generation."""
    acted: bool = True
    """Whether this process has carried out a plan of this run, so that `failing` is complete."""
    queue_wait: str | None = None
    """What Kueue says of the running attempt's RayJob, which it has not admitted; empty: it has no
    Workload for it. None: that is not known."""
    queued_since: datetime | None = None
    """Since when that Workload is not admitted; None: that is not known."""
    support: tuple[Object, ...] | None = None
    """What of `rendering.support_objects` is there, read just now; None: it was not read."""
    deliveries: Mapping[str, Delivery] = field(default_factory=dict)
    """How the notice to each webhook fares that was last planned."""
    stale: Mapping[str, str] = field(default_factory=dict)
    """Kinds, such as "Pod" or "RayJob", of which lists and watches fail at present, with
    the reason in a sentence. What is given of such a kind was read last: an object that is
    missing here may exist, and nothing may be decided on its absence."""
    confirmed: bool = False
    """Whether the run's RayJobs, RayClusters and pods, and those pods' nodes, were read from the
    API server in this reconcile. Otherwise a watch that lags may not have shown one yet."""


@dataclass(frozen=True, slots=True)
class Ref:
    """One object. With `uid`, an action on it fails without effect if it was replaced."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str | None = None


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of a manifest; idempotent."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Restore:
    """Make the spec of an object be exactly as in a manifest; `Apply` leaves what others added."""

    manifest: Manifest
    uid: str
    """Of the object."""


@dataclass(frozen=True, slots=True)
class EnsureToken:
    """Create the run's token Secret, unless it is there. Only the controller has the token."""

    secret: Manifest
    """The Secret without its data."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an object. Absent is fine."""

    ref: Ref
    grace_s: int | None = None
    """Grace period in seconds; 0: force; None: the object's own."""
    unchanged_since: str | None = None
    """Without effect if the object has another resource version by now; None: any will do."""


@dataclass(frozen=True, slots=True)
class ExcludeNodes:
    """Patch a live RayCluster so that replacement pods exclude exactly these nodes; none: no node.

    KubeRay leaves running pods alone and nothing reverts the patch.
    """

    ray_cluster: Ref
    nodes: tuple[str, ...]
    """Their hostnames (label kubernetes.io/hostname)."""


@dataclass(frozen=True, slots=True)
class PlaceWorkers:
    """Patch the worker group of a live RayCluster so that replacement pods go to other nodes.

    KubeRay leaves running pods alone and nothing reverts the patch.
    """

    ray_cluster: Ref
    template: Manifest
    """What selects the nodes, see `rendering.worker_nodes`."""


@dataclass(frozen=True, slots=True)
class ScaleWorkers:
    """Patch a live RayCluster so that KubeRay keeps so many worker pods."""

    ray_cluster: Ref
    pods: int
    """Worker pods."""
    removed: tuple[str, ...] = ()
    """Names of the pods that KubeRay deletes; without them it would choose which ones it has too
    many."""
    version: str | None = None
    """The RayCluster's resource version: one that has changed since is left alone; None: any."""


@dataclass(frozen=True, slots=True)
class RequestSuspend:
    """POST /suspend to the runtime: checkpoint, then end. Repeated until it has."""

    attempt: int


Action = (
    Apply
    | Restore
    | EnsureToken
    | Delete
    | ExcludeNodes
    | PlaceWorkers
    | ScaleWorkers
    | RequestSuspend
)


Verb = Literal["create", "delete", "change", "scale"]
"""What an action does with its object."""

ActionKey = tuple[Verb, str, str]
"""What an action does, and kind and name of the object: the same for each try of one action."""


def key_of(action: Action) -> ActionKey | None:
    """The key of an action on an object in the cluster; None: it is on none."""
    match action:
        case Apply(manifest) | EnsureToken(manifest):
            return "create", manifest["kind"], manifest["metadata"]["name"]
        case Restore(manifest):
            return "change", manifest["kind"], manifest["metadata"]["name"]
        case Delete(ref):
            return "delete", ref.kind, ref.name
        case ExcludeNodes(ref):
            return "change", ref.kind, ref.name
        case PlaceWorkers(ref):
            return "change", "worker group", f"of {ref.kind} {ref.name}"
        case ScaleWorkers(ref):
            return "scale", ref.kind, ref.name
    return None


@dataclass(frozen=True, slots=True)
class RunEvent:
    """A Kubernetes Event about the run, emitted after the status is written."""

    type: EventType
    reason: EventReason
    message: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, what to write, and when to reconcile again."""

    actions: tuple[Action, ...]
    """Carried out in order, once the status is written. After one that fails nothing is created;
    the others are carried out."""
    status: RunStatus
    """The whole next status; written once, if it differs. It holds what was observed and decided,
    and never claims an action of this plan, which may fail."""
    events: tuple[RunEvent, ...] = ()
    """Emitted after the status is written and the actions were tried."""
    requeue_after_s: float | None = None
    """Seconds until the next reconcile, unless an event comes first; None: at the next event."""
    notices: tuple[Notice, ...] | None = None
    """What is to be sent once the status is written, at most one to each webhook; None: whatever
    was planned last."""
    confirm: bool = False
    """Nothing is decided: a decision would rest on an absence that is to be confirmed first. The
    plan is to be made anew of an observation that is `confirmed`."""


class NodePrice(Model):
    """What nodes with these labels cost."""

    labels: dict[str, str] = Field(min_length=1)
    """All of these, such as node.kubernetes.io/instance-type: p5.48xlarge."""
    per_hour: float = Field(ge=0, le=1e9, allow_inf_nan=False)
    """Price of one such node for an hour."""
    on_demand_per_hour: float | None = Field(default=None, ge=0, le=1e9, allow_inf_nan=False)
    """Of spot nodes: what the same node costs as an on-demand one. Default: not known."""

    def applies_to(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels has this price."""
        return self.labels.items() <= labels.items()


@dataclass(frozen=True, slots=True)
class ReconcileSettings:
    """When something counts as lost, in seconds, and what nodes cost."""

    poll_s: float = 2.0
    """Between polls of a running attempt's progress, and reconciles while a decision is near."""
    lease_stale_s: float = 15.0
    """Age of a node's Lease that is a sign of its loss. Kubelets renew every 10 s, so a live one
    is hardly ever older than 12; alone it is not enough, see `node_loss`."""
    head_silent_s: float = 5.0
    """Failed polls of a head pod that is still Running: the second sign for its node."""
    startup_deadline_s: float = 600.0
    """An attempt whose pods all run but whose driver reports nothing for so long is lost. KubeRay
    gives up on an unreachable dashboard after 300 s, without retry."""
    suspend_deadline_s: float = 120.0
    """How long the runtime may take to checkpoint before a suspended run's pods are freed, where
    its driver or its bucket does not answer; else see `lifetime.LONGEST_SAVE_S`."""
    final_progress_s: float = 30.0
    """How long the driver's last document is awaited after its RayJob has ended."""
    terminating_late_s: float = 10.0
    """How long a pod may outstay its grace period before that is a sign that its node is gone."""
    kuberay_retry_s: float = 30.0
    """Between reconciles while KubeRay is missing or too old, or the RayJob is refused."""
    currency: str = "USD"
    """Of the prices."""
    prices: tuple[NodePrice, ...] = ()
    """What nodes cost, in JSON; of several rows that apply to a node, the first. Empty: no run has
    an amount of money."""
    notification_hosts: tuple[str, ...] = ()
    """Hosts to which notifications may be sent, separated by commas: `hooks.example.com` or
    `*.example.com`, with `:8443` for another port than 443. `http://` before it: without TLS, to
    port 80. Empty: none is sent."""
    notification_secret_names: tuple[str, ...] = ("trainingrun-notifications",)
    """Names of the Secrets that the operator may read for their addresses, separated by commas."""
