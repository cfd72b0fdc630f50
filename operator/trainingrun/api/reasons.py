"""Every reason of a condition and of an event, with what it means and what to do.

`docs/conditions.md` is generated from these tables by `make generate`.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Literal, NamedTuple

from .status import ConditionType, Phase

Truth = Literal["True", "False", "Unknown"]


class ConditionReason(StrEnum):
    """`reason` of a condition of a TrainingRun."""

    VALID = "Valid"
    FROM_NEXT_ATTEMPT = "FromNextAttempt"
    INVALID_SPEC = "InvalidSpec"
    IN_OPERATOR_NAMESPACE = "InOperatorNamespace"
    REJECTED = "Rejected"
    TRAINING = "Training"
    NOT_TRAINING = "NotTraining"
    ENDED = "Ended"
    SUSPENDED = "Suspended"
    SUSPENDING = "Suspending"
    NOT_ASKED = "NotAsked"
    NOTHING_IS_MISSING = "NothingIsMissing"
    API_ACCESS_LOST = "ApiAccessLost"
    QUEUED = "Queued"
    KUBERAY_MISSING = "KubeRayMissing"
    KUBERAY_TOO_OLD = "KubeRayTooOld"
    MANAGED_ELSEWHERE = "ManagedElsewhere"
    KUBERAY_SILENT = "KubeRaySilent"
    KUBERAY_GAVE_UP = "KubeRayGaveUp"
    NAME_TAKEN = "NameTaken"
    RESTORE_SOURCE_MISSING = "RestoreSourceMissing"
    DEFAULTS_UNREADABLE = "DefaultsUnreadable"
    IMAGE_CANNOT_BE_PULLED = "ImageCannotBePulled"
    SECRET_MISSING = "SecretMissing"  # noqa: S105 - a condition's reason
    CONFIG_MAP_MISSING = "ConfigMapMissing"
    KEY_MISSING = "KeyMissing"
    RAY_TOKEN_MISSING = "RayTokenMissing"  # noqa: S105 - a condition's reason
    CONTAINER_CONFIG_INVALID = "ContainerConfigInvalid"
    SCRIPT_NOT_MOUNTED = "ScriptNotMounted"
    CLAIM_NOT_MOUNTED = "ClaimNotMounted"
    POD_NOT_SET_UP = "PodNotSetUp"
    POD_NOT_READY = "PodNotReady"
    QUOTA_EXCEEDED = "QuotaExceeded"
    ACTION_FAILS = "ActionFails"
    STATUS_REFUSED = "StatusRefused"
    INTERNAL_ERROR = "InternalError"
    PODS_REFUSED = "PodsRefused"
    PODS_CRASH = "PodsCrash"
    BUDGET_SPENT = "BudgetSpent"
    BUDGET_UNKNOWN = "BudgetUnknown"
    UNSCHEDULABLE = "Unschedulable"
    CAPACITY_FALLBACK = "CapacityFallback"
    FEWER_WORKERS = "FewerWorkers"
    STANDBY_MISSING = "StandbyMissing"
    STORAGE_UNAVAILABLE = "StorageUnavailable"
    RANKS_WAIT = "RanksWait"
    HANG = "Hang"
    PODS_KEPT = "PodsKept"
    FAILED_BY_RULE = "FailedByRule"
    RULE_EXHAUSTED = "RuleExhausted"
    DRIVER_SILENT = "DriverSilent"
    POD_TERMINATING = "PodTerminating"
    DELETION_HANGS = "DeletionHangs"
    FOREIGN_OBJECT = "ForeignObject"
    DONE = "Done"
    NOT_YET = "NotYet"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    RESTARTS_EXHAUSTED = "RestartsExhausted"
    NON_RETRIABLE_ERROR = "NonRetriableError"
    PREEMPTIONS_EXHAUSTED = "PreemptionsExhausted"
    HANGS_EXHAUSTED = "HangsExhausted"
    NO_PROGRESS = "NoProgress"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    DELETING = "Deleting"


class EventReason(StrEnum):
    """`reason` of an Event about a TrainingRun."""

    ATTEMPT_STARTED = "AttemptStarted"
    ATTEMPT_FAILED = "AttemptFailed"
    ATTEMPT_LOST = "AttemptLost"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    RESUMED = "Resumed"
    BUDGET_SPENT = "BudgetSpent"
    BUDGET_REFILLED = "BudgetRefilled"
    NODE_EXCLUDED = "NodeExcluded"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    PREEMPTED = "Preempted"
    EVICTED = "Evicted"
    NODE_LOST = "NodeLost"
    HEAD_LOST = "HeadLost"
    WORKER_LOST = "WorkerLost"
    STANDBY_LOST = "StandbyLost"
    INFRASTRUCTURE_ERROR = "InfrastructureError"
    OUT_OF_MEMORY = "OutOfMemory"
    HANG = "Hang"
    CAPACITY_CHANGED = "CapacityChanged"
    RESTORED = "Restored"
    CHECKPOINT_SKIPPED = "CheckpointSkipped"
    SETTING_OVERRULED = "SettingOverruled"
    MANY_EVENTS = "ManyEvents"
    STATUS_REFUSED = "StatusRefused"
    NOTIFICATION_FAILED = "NotificationFailed"


class ConditionRow(NamedTuple):
    """One reason of one condition."""

    type: ConditionType
    status: Truth
    reason: ConditionReason
    meaning: str
    remedy: str = ""
    """What to do; empty: nothing."""


class EventRow(NamedTuple):
    """One reason of an Event."""

    type: Literal["Normal", "Warning"]
    reason: EventReason
    meaning: str


_QUOTA = "A ResourceQuota of the namespace refuses a pod or another object of the run."
_REJECTED = (
    "The API server, such as an admission webhook, refuses an object of the run or its deletion."
)
_CORRECT_REJECTED = "Correct the field that the message names; the operator tries again."


def _rows(
    type_: ConditionType,
    status: Truth,
    *rows: tuple[ConditionReason, str] | tuple[ConditionReason, str, str],
) -> Iterator[ConditionRow]:
    return (ConditionRow(type_, status, *row) for row in rows)


PHASES: dict[Phase, str] = {
    Phase.PENDING: "No attempt has begun; see Accepted, Waiting and Stalled.",
    Phase.QUEUED: "Kueue has not admitted the attempt.",
    Phase.STARTING: "The first attempt starts; no step is done.",
    Phase.RUNNING: "The run trains.",
    Phase.RECOVERING: "The run has trained, or has lost an attempt, and does not train now.",
    Phase.SUSPENDED: "The run is suspended and every pod is gone.",
    Phase.SUCCEEDED: "The run has ended; its result is in the status.",
    Phase.FAILED: "The run has ended; condition Failed says why.",
    Phase.DELETING: "The run is being deleted.",
}
"""What each phase means, in a sentence."""

CONDITIONS: tuple[ConditionRow, ...] = (
    *_rows(
        ConditionType.ACCEPTED,
        "True",
        (ConditionReason.VALID, "The operator can use the spec."),
        (
            ConditionReason.FROM_NEXT_ATTEMPT,
            "The operator can use the spec; an edit of `checkpoints` applies from the next "
            "attempt on.",
            "Set `suspend: true` and then false to begin the next attempt now.",
        ),
    ),
    *_rows(
        ConditionType.ACCEPTED,
        "False",
        (
            ConditionReason.INVALID_SPEC,
            "The operator cannot use the spec, or Kubernetes its `podTemplate`: a rule that the "
            "CRD cannot express, or an older CRD.",
            "Correct the field that the message names; of an old CRD, upgrade it.",
        ),
        (
            ConditionReason.IN_OPERATOR_NAMESPACE,
            "The run is in the operator's own namespace, where its pods could use the operator's "
            "key.",
            "Create the run in another namespace.",
        ),
        (ConditionReason.REJECTED, _REJECTED, _CORRECT_REJECTED),
    ),
    *_rows(
        ConditionType.READY,
        "True",
        (
            ConditionReason.TRAINING,
            "All workers train; with `workers.minimum`, at least so many.",
        ),
        (ConditionReason.SUSPENDED, "The run is suspended, as its spec says."),
        (ConditionReason.SUCCEEDED, "The run has succeeded."),
    ),
    *_rows(
        ConditionType.READY,
        "False",
        (
            ConditionReason.NOT_TRAINING,
            "The run starts, waits, recovers or is being suspended.",
            "See `phase` and the conditions Waiting and Stalled.",
        ),
        (ConditionReason.FAILED, "The run has failed."),
        (
            ConditionReason.DELETING,
            "The TrainingRun is deleted and its pods are freed; finalizers of others hold the "
            "object.",
            "Have whoever set the finalizers remove them.",
        ),
    ),
    *_rows(
        ConditionType.SUSPENDED,
        "True",
        (
            ConditionReason.SUSPENDED,
            "`suspend` is true and every pod is gone.",
            "Set `suspend: false` to continue from the last checkpoint.",
        ),
        (
            ConditionReason.BUDGET_SPENT,
            "The run has cost `budget.amount`, and every pod is gone.",
            "Raise `budget.amount` above what the run has cost, or take `budget` out, to continue "
            "from the last checkpoint, unless the message says that a limit does not allow it.",
        ),
    ),
    *_rows(
        ConditionType.SUSPENDED,
        "False",
        (
            ConditionReason.SUSPENDING,
            "`suspend` is true, or the run has cost `budget.amount`; the runtime makes a "
            "checkpoint and the pods are deleted.",
        ),
        (ConditionReason.NOT_ASKED, "`suspend` is false."),
        (ConditionReason.ENDED, "The run has ended."),
    ),
    *_rows(
        ConditionType.WAITING,
        "False",
        (
            ConditionReason.NOTHING_IS_MISSING,
            "The operator has found nothing that the run waits for.",
        ),
    ),
    *_rows(
        ConditionType.WAITING,
        "True",
        (
            ConditionReason.API_ACCESS_LOST,
            "The operator cannot list or watch some kind of object. What runs continues.",
            "Check the operator's RBAC and its connection to the API server.",
        ),
        (
            ConditionReason.QUEUED,
            "Kueue has not admitted the RayJob, or has taken its capacity back, or the RayJob is "
            "suspended without a queue. The message has what Kueue says, where the operator may "
            "list Workloads.",
            "Wait, raise the queue's quota, or request less.",
        ),
        (
            ConditionReason.KUBERAY_SILENT,
            "Pods of the RayJob are missing for over a minute and KubeRay creates none.",
            "Check that KubeRay's operator runs, watches the namespace and keeps up.",
        ),
        (
            ConditionReason.KUBERAY_GAVE_UP,
            "KubeRay marked the RayJob as failed although its driver answers. The operator "
            "requests a checkpoint, and the next attempt continues from it.",
            "Check that KubeRay's operator can reach port 8265 of the head pod.",
        ),
        (
            ConditionReason.NAME_TAKEN,
            "A RayJob of the next attempt's name belongs to another owner, such as a deleted run "
            "of the same name.",
            "Delete that RayJob, or wait until it is gone.",
        ),
        (
            ConditionReason.RESTORE_SOURCE_MISSING,
            "The namespace has no TrainingRun of the name in `storage.restoreFrom.run`, or the "
            "folder of that run is on a claim that this one does not have.",
            "Create it, or create this run again with the right name or with `restoreFrom.uri`; "
            "copy the folder to this run's claim.",
        ),
        (
            ConditionReason.DEFAULTS_UNREADABLE,
            "The operator may no longer read `TrainingDefaults` or `ClusterTrainingDefaults`, or "
            "they are not served. A run that has not begun waits for them. Where the operator "
            "could never read them it begins without them, within a minute.",
            "Give the operator's role back what the chart gives it, and install the chart's CRDs.",
        ),
        (ConditionReason.QUOTA_EXCEEDED, _QUOTA, "Raise the quota, or request less."),
        (
            ConditionReason.BUDGET_SPENT,
            "The run has cost `budget.amount`, and `budget.action` is Warn. It continues.",
            "Suspend it, or raise `budget.amount`.",
        ),
        (
            ConditionReason.BUDGET_UNKNOWN,
            "The operator has no price for a node of the run, so that `budget` counts only the "
            "others. The run continues.",
            "Add the node's labels to the chart's `prices.nodes`.",
        ),
        (
            ConditionReason.FEWER_WORKERS,
            "Training goes on with fewer workers than `workers.count`, but with at least "
            "`workers.minimum`. The message says what the others wait for.",
            "What the message names, where it does not pass by itself.",
        ),
        (
            ConditionReason.STANDBY_MISSING,
            "All workers train, and pods of `workers.standby` are missing. The message says what "
            "they wait for.",
            "What the message names, where it does not pass by itself.",
        ),
        (
            ConditionReason.UNSCHEDULABLE,
            "The scheduler finds no node for a pod.",
            "Add nodes, request less, or correct the node selection; the message says what is "
            "short.",
        ),
        (
            ConditionReason.POD_NOT_SET_UP,
            "A pod waits for its volumes or its network for over a minute, or for an init "
            "container or its kubelet for over five, not counting pulls of images, and of workers "
            "the time without a ready head.",
            "`kubectl describe pod` names what is missing, the log of an init container what it "
            "waits for: KubeRay's `wait-gcs-ready` has to reach port 6379 of the head.",
        ),
        (
            ConditionReason.POD_NOT_READY,
            "A container of the user's own, or a readiness gate, keeps a pod from being ready for "
            "over a minute, or Ray's container for over five. KubeRay submits the driver once "
            "every pod is ready.",
            "See the probe and the log of the container that the message names.",
        ),
        (
            ConditionReason.CAPACITY_FALLBACK,
            "New worker pods go to on-demand nodes, though the spec asks for spot nodes first; the "
            "message says why, and until when. The training continues.",
        ),
        (
            ConditionReason.STORAGE_UNAVAILABLE,
            "The bucket does not answer the driver, or refuses. Training continues, or waits where "
            "it has not begun; uploads and commits wait. A refusal ends the attempt after 300 s.",
            "Check the bucket, its credentials and the network.",
        ),
        (
            ConditionReason.RANKS_WAIT,
            "Ranks wait for others for over 30 s: these do not call `ray.train.report`, work for "
            "long before they do, or do fewer or more steps. Nothing is ended for that.",
            "Have every rank do the same steps and call `ray.train.report` equally often. Wait "
            "where a rank evaluates or saves before its call.",
        ),
        (
            ConditionReason.HANG,
            "No rank has done a step for `failures.hang.afterSeconds`; the message says where each "
            "stands. With `failures.hang.action: Restart` the workers begin again from the last "
            "step; with `Report` nothing is ended.",
            "Read the stacks with `trainingrun stacks`, and correct what one rank waits for. Call "
            "`session.allow_pause(seconds)` before what may take that long.",
        ),
        (
            ConditionReason.PODS_KEPT,
            "The pods of a failed attempt are kept, and hold what they request, because of "
            "`failures.keepFailedPodsSeconds`. The message says until when.",
            "Set it to 0 to free them.",
        ),
        (
            ConditionReason.DRIVER_SILENT,
            "The operator cannot read the driver's progress although KubeRay calls the job "
            "running. Nothing is ended for that.",
            "Let the operator reach port 8484 of the head pod, and read the driver's log.",
        ),
        (
            ConditionReason.POD_TERMINATING,
            "A pod is still there over a minute after its grace period although its node is ready.",
            "Check the node's kubelet, or delete the pod with `--force`.",
        ),
        (
            ConditionReason.DELETION_HANGS,
            "The deletion of an object waits for a finalizer for over a minute.",
            "Check that KubeRay's operator runs, or remove the finalizers.",
        ),
        (
            ConditionReason.FOREIGN_OBJECT,
            "An object of an ended attempt has another owner.",
            "Delete it or remove the labels.",
        ),
        (
            ConditionReason.PODS_CRASH,
            "Pods of the head or of the workers have ended by themselves twice or more since the "
            "last new step. The attempt ends when they continue so.",
            "Read the container's message; correct the image or a `podTemplate` if that is the "
            "cause.",
        ),
        (
            ConditionReason.ACTION_FAILS,
            "Creating, changing or deleting an object of the run does not work for over 10 s: the "
            "API server or an admission webhook does not answer in time.",
            "Check the webhook or policy that the message names; the operator tries again.",
        ),
    ),
    *_rows(
        ConditionType.STALLED,
        "False",
        (
            ConditionReason.NOTHING_IS_MISSING,
            "The operator has found nothing that somebody has to correct.",
        ),
    ),
    *_rows(
        ConditionType.STALLED,
        "True",
        (
            ConditionReason.FAILED,
            "The run has failed; condition Failed says why.",
            "See condition Failed.",
        ),
        (
            ConditionReason.INVALID_SPEC,
            "As in condition Accepted, and no attempt runs.",
            "See condition Accepted.",
        ),
        (
            ConditionReason.IN_OPERATOR_NAMESPACE,
            "As in condition Accepted.",
            "See condition Accepted.",
        ),
        (
            ConditionReason.KUBERAY_MISSING,
            "The cluster has no RayJob resource.",
            "Install KubeRay 1.6 or later.",
        ),
        (
            ConditionReason.KUBERAY_TOO_OLD,
            "The RayJob resource has no submissionMode HTTPMode.",
            "Upgrade KubeRay and its CRDs to 1.6 or later.",
        ),
        (
            ConditionReason.MANAGED_ELSEWHERE,
            "The RayJob's `spec.managedBy` names another controller than KubeRay's, as of a queue "
            "that MultiKueue dispatches to other clusters: KubeRay here leaves it alone.",
            "Delete the run, and create it with a queue that admits in this cluster.",
        ),
        (
            ConditionReason.IMAGE_CANNOT_BE_PULLED,
            "A node cannot pull the training image.",
            "Check the image's name and the pull secret.",
        ),
        (
            ConditionReason.SECRET_MISSING,
            "A Secret that a pod uses does not exist.",
            "Create it; the pods then start.",
        ),
        (
            ConditionReason.CONFIG_MAP_MISSING,
            "A ConfigMap that a pod uses does not exist.",
            "Create it; the pods then start.",
        ),
        (
            ConditionReason.KEY_MISSING,
            "A Secret or ConfigMap lacks a key that a pod uses.",
            "Add the key; the pods then start.",
        ),
        (
            ConditionReason.RAY_TOKEN_MISSING,
            "KubeRay has not created the Secret with the token of Ray's API.",
            "Read the log of KubeRay's operator, or set the chart's `training.rayAuth` to "
            "`disabled`.",
        ),
        (
            ConditionReason.CONTAINER_CONFIG_INVALID,
            "The kubelet cannot create a container for another reason.",
            "Correct what the message names, mostly in a `podTemplate`.",
        ),
        (
            ConditionReason.SCRIPT_NOT_MOUNTED,
            "A pod waits for its volumes for over 30 s, its image aside, and the run trains a "
            "script of a ConfigMap.",
            "Check that the ConfigMap exists in the run's namespace and has the file as a key.",
        ),
        (
            ConditionReason.CLAIM_NOT_MOUNTED,
            "A pod waits for its volumes for over 30 s, and the run's storage is a claim.",
            "Check that the claim is ReadWriteMany, and the server of its volume.",
        ),
        (ConditionReason.REJECTED, _REJECTED, _CORRECT_REJECTED),
        (
            ConditionReason.STATUS_REFUSED,
            "The API server refuses the run's status. What runs continues; the operator does "
            "nothing. Only where the run is too large for it, what is beyond the run's deadline "
            "or budget is ended.",
            "Correct the field that the message names, take metadata off a run that is too large, "
            "or upgrade the CRD.",
        ),
        (
            ConditionReason.INTERNAL_ERROR,
            "The operator fails at this run, by an error of its own. What runs continues.",
            "Report it, with the operator's log.",
        ),
        (
            ConditionReason.PODS_REFUSED,
            "KubeRay cannot create a pod, or a node's kubelet refuses one.",
            "Correct what the message names.",
        ),
    ),
    *_rows(ConditionType.SUCCEEDED, "True", (ConditionReason.DONE, "The training is complete.")),
    *_rows(
        ConditionType.SUCCEEDED,
        "False",
        (ConditionReason.NOT_YET, "The run has not ended."),
        (ConditionReason.FAILED, "The run has failed."),
    ),
    *_rows(
        ConditionType.FAILED,
        "False",
        (ConditionReason.NOT_YET, "The run has not ended."),
        (ConditionReason.SUCCEEDED, "The run has succeeded."),
    ),
    *_rows(
        ConditionType.FAILED,
        "True",
        (
            ConditionReason.RESTARTS_EXHAUSTED,
            "The training failed by itself more often than `failures.maxRestarts`.",
            "Correct the error that the message ends with, and create the run again.",
        ),
        (
            ConditionReason.NON_RETRIABLE_ERROR,
            "Another attempt would end the same way: two in a row had the same error of the code "
            "before their first step, or the script failed after its training was done.",
            "Correct the error that the message ends with, and create the run again. Of a training "
            "that was done, the weights are in `status.checkpoint`.",
        ),
        (
            ConditionReason.PREEMPTIONS_EXHAUSTED,
            "Infrastructure was lost more often than `failures.maxPreemptions`.",
            "Use more reliable capacity, or raise the limit (-1: none).",
        ),
        (
            ConditionReason.HANGS_EXHAUSTED,
            "The training stood still more often than `failures.maxHangs`.",
            "Read `status.hang` and the stacks with `trainingrun stacks`, correct the code, or "
            "raise the limit (-1: none).",
        ),
        (
            ConditionReason.FAILED_BY_RULE,
            "A rule of `failures.rules` says `then: Fail` for what ended the run.",
            "See the message, and `status.failureRules`.",
        ),
        (
            ConditionReason.RULE_EXHAUSTED,
            "A rule of `failures.rules` was met more often than its `maxRestarts`.",
            "Correct what the message ends with, or raise the rule's `maxRestarts`.",
        ),
        (
            ConditionReason.NO_PROGRESS,
            "`failures.maxAttemptsWithoutProgress` attempts in a row made no newer checkpoint.",
            "See why the attempts end, or make checkpoints more often "
            "(`checkpoints.everySeconds`).",
        ),
        (
            ConditionReason.DEADLINE_EXCEEDED,
            "The run was active for longer than `activeDeadlineSeconds`.",
            "Raise the deadline and create the run again.",
        ),
        (
            ConditionReason.REJECTED,
            "KubeRay refuses the RayJob.",
            "Correct what the message names, mostly in a `podTemplate`, and create the run again.",
        ),
    ),
)
"""Every condition that the operator writes."""

EVENTS: tuple[EventRow, ...] = (
    EventRow("Normal", EventReason.ATTEMPT_STARTED, "An attempt began; its RayJob is named."),
    EventRow("Warning", EventReason.ATTEMPT_FAILED, "An attempt ended by the application's fault."),
    EventRow("Warning", EventReason.ATTEMPT_LOST, "An attempt ended by loss of infrastructure."),
    EventRow("Normal", EventReason.SUSPENDING, "A checkpoint and the attempt's end are requested."),
    EventRow("Normal", EventReason.SUSPENDED, "Every pod of the suspended run is gone."),
    EventRow("Normal", EventReason.RESUMED, "The run is no longer suspended."),
    EventRow("Normal", EventReason.BUDGET_REFILLED, "A budget of `spec.failures` is full again."),
    EventRow("Warning", EventReason.NODE_EXCLUDED, "Pods of the run exclude a node that is well."),
    EventRow("Warning", EventReason.BUDGET_SPENT, "The run has cost `budget.amount`."),
    EventRow("Normal", EventReason.SUCCEEDED, "The training is complete."),
    EventRow("Warning", EventReason.FAILED, "The run has failed; condition Failed says why."),
    EventRow("Warning", EventReason.PREEMPTED, "A worker pod was deleted or drained with notice."),
    EventRow("Warning", EventReason.EVICTED, "A worker pod was evicted from its node."),
    EventRow("Warning", EventReason.NODE_LOST, "A node was lost, with the pods on it."),
    EventRow("Warning", EventReason.HEAD_LOST, "The head pod was lost while its node was not."),
    EventRow("Warning", EventReason.WORKER_LOST, "A worker pod or process died without notice."),
    EventRow("Normal", EventReason.STANDBY_LOST, "A standby pod was lost; the training goes on."),
    EventRow("Warning", EventReason.HANG, "No rank did a step for long; workers were restarted."),
    EventRow(
        "Warning",
        EventReason.CAPACITY_CHANGED,
        "New worker pods go to on-demand nodes from now on.",
    ),
    EventRow(
        "Normal",
        EventReason.CAPACITY_CHANGED,
        "New worker pods go to spot nodes again, or with PreferSpot to any nodes.",
    ),
    EventRow(
        "Warning",
        EventReason.INFRASTRUCTURE_ERROR,
        "A kubelet refused a pod, or Ray's controller raised an error.",
    ),
    EventRow("Warning", EventReason.OUT_OF_MEMORY, "A container exceeded its memory limit."),
    EventRow(
        "Normal", EventReason.RESTORED, "A checkpoint was restored; why steps are done again."
    ),
    EventRow(
        "Warning", EventReason.CHECKPOINT_SKIPPED, "The driver skipped a checkpoint on restore."
    ),
    EventRow(
        "Warning", EventReason.SETTING_OVERRULED, "A setting in the training script is not used."
    ),
    EventRow("Warning", EventReason.MANY_EVENTS, "More events at once than are emitted, by count."),
    EventRow(
        "Warning", EventReason.STATUS_REFUSED, "The API server refuses every status of the run."
    ),
    EventRow(
        "Warning",
        EventReason.NOTIFICATION_FAILED,
        "A webhook of `notify` is not told of what happens to the run; the message says why, what "
        "to do, and whether it is sent again.",
    ),
)
"""Every event that the operator emits about a run."""


WAITS = frozenset(
    row.reason for row in CONDITIONS if row.type is ConditionType.WAITING and row.status == "True"
)
"""Reasons of what may pass by itself, or stops nothing: condition Waiting, where every other reason
of what is in a run's way is of condition Stalled."""
