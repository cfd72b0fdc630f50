"""Names and labels of everything that a run owns: the one place where they are made and read."""

from collections.abc import Mapping
from typing import Any

from ..api.pods_spec import RAY_CONTAINERS
from ..api.v1alpha1 import TrainingRun

RUN_LABEL = "trainingrun.dev/run"
"""Name of the run, on everything that it owns."""
RUN_UID_LABEL = "trainingrun.dev/run-uid"
"""UID of the run: distinguishes the pods of two runs of one name."""
ATTEMPT_LABEL = "trainingrun.dev/attempt"
"""Number of the attempt, on its RayJob and pods."""
ROLE_LABEL = "trainingrun.dev/role"
"""`head` or `worker`, on pods."""
PLACEMENT_LABEL = "trainingrun.dev/placement"
"""On workers: for which nodes they were made, where a run may change that."""
TOKEN_KEY_LABEL = "trainingrun.dev/token-key"  # noqa: S105 - the label's name
"""On the head: the name of the operator's key that its token is of."""
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGER = "trainingrun-operator"
"""Value of the managed-by label, and the field manager of every server-side apply."""

NOT_INHERITED = (
    "trainingrun.dev",
    "ray.io",
    "kubernetes.io",
    "k8s.io",
    "x-k8s.io",
    "helm.sh",
    "argoproj.io",
    "fluxcd.io",
)
"""Domains of labels and annotations that pods do not get from their run."""

HEAD = "head"
WORKER = "worker"

HEAD_CONTAINER, WORKER_CONTAINER = RAY_CONTAINERS
WORKER_GROUP = "workers"
TOKEN_KEY = "token"  # noqa: S105 - the key in the Secret, not a token
SCRIPT_FOLDER = "/etc/trainingrun/script"
"""Where a script's ConfigMap is mounted."""


def ray_job_name(run: TrainingRun, number: int) -> str:
    """Name of the RayJob of attempt `number`, which counts from 1."""
    return f"{run.metadata.name}-{number}"


def token_secret_name(run: TrainingRun, key: str) -> str:
    """Name of the Secret with the bearer token that guards the run's progress.

    With the UID: a former run's Secret of one name may still wait for the garbage collector, and a
    pod that started with its token would refuse every request. With the name of the operator's
    `key` that the token is of: it may have been lost, and its Secret cannot be read to find that
    out.
    """
    return f"{run.metadata.name}-{run.metadata.uid[:8]}-token" + (f"-{key}" if key else "")


def renewed_token_secret_name(run: TrainingRun, key: str) -> str:
    """Name of the Secret that passes a new token to a head that began with one of `key`."""
    return f"{token_secret_name(run, key)}-renewed"


def network_policy_name(run: TrainingRun) -> str:
    """Name of the run's NetworkPolicy.

    With the UID, so that a run called `default-deny` never shares the name of a policy that
    another client has made.
    """
    return f"{run.metadata.name}-{run.metadata.uid[:8]}-ray"


def run_folder(run: TrainingRun) -> str:
    """URI of the run's own folder in the bucket, without a slash at its end.

    The UID keeps a run that is created again under the same name away from the former one's
    checkpoints.
    """
    return folder_below(run.spec.storage.uri, run.metadata.name, run.metadata.uid)


def folder_below(storage_uri: str, name: str, uid: str) -> str:
    """URI of the folder of the run of this name and UID below its `storage.uri`."""
    return f"{storage_uri.rstrip('/')}/{name}-{uid[:8]}"


def folder_of(run: Mapping[str, Any]) -> str:
    """`run_folder` of a run as the API server has it."""
    metadata = run["metadata"]
    return folder_below(run["spec"]["storage"]["uri"], metadata["name"], metadata["uid"])


def inherited_metadata(run: TrainingRun) -> dict[str, Any]:
    """Labels and annotations of the run, as a pod template that gives them to its pods.

    Without those of the tools in `NOT_INHERITED`, to which they mean the labelled object alone:
    Kueue would queue each pod by itself, Helm and Argo CD would take the pods for their own.
    """
    metadata = {
        "labels": inherited(run.metadata.labels),
        "annotations": inherited(run.metadata.annotations),
    }
    return {"metadata": {kind: found for kind, found in metadata.items() if found}}


def inherited(found: Mapping[str, str]) -> dict[str, str]:
    """Those of a run's labels or annotations that are of no tool in `NOT_INHERITED`."""
    return {key: value for key, value in found.items() if not _is_of_a_tool(key)}


def _is_of_a_tool(key: str) -> bool:
    domain = key.rpartition("/")[0]
    return f".{domain}".endswith(tuple(f".{tool}" for tool in NOT_INHERITED))


def labels(run: TrainingRun, number: int | None = None, role: str | None = None) -> dict[str, str]:
    """Labels of an object of the run; with the attempt and the pod's role where it has them."""
    found = {
        MANAGED_BY_LABEL: MANAGER,
        RUN_LABEL: run.metadata.name,
        RUN_UID_LABEL: run.metadata.uid,
    }
    if number is not None:
        found[ATTEMPT_LABEL] = str(number)
    if role is not None:
        found[ROLE_LABEL] = role
    return found


def selector(
    run: TrainingRun, number: int | None = None, role: str | None = None
) -> dict[str, str]:
    """The labels by which the run's pods are found: `labels` without who manages them."""
    found = labels(run, number, role)
    del found[MANAGED_BY_LABEL]
    return found


def owner(run: TrainingRun) -> dict[str, object]:
    """Owner reference to the run: what it owns is deleted with it."""
    return {
        "apiVersion": run.api_version,
        "kind": run.kind,
        "name": run.metadata.name,
        "uid": run.metadata.uid,
        "controller": True,
        # True would need the right to set finalizers, and would let a foreground deletion of the
        # run wait for pods on a dead node.
        "blockOwnerDeletion": False,
    }
