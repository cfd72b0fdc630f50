"""The folder of the run that `storage.restoreFrom` names.

It is written to the status before the first attempt begins: what a name stands for is then decided
once, and the other TrainingRun may be deleted, or created again, without effect on this run.
"""

from ..api.reasons import ConditionReason
from ..api.status import RestoredFrom, RunStatus
from ..rendering import names
from .context import ReconcileContext
from .findings import Blocker, Findings


def find(context: ReconcileContext, status: RunStatus) -> Findings | None:
    """What is done before an attempt may begin; None: nothing is left to do."""
    wanted = context.run.spec.storage.restore_from
    if wanted is None or status.restored_from is not None:
        return None
    uri = wanted.uri or _folder_of_run(context)
    if uri is None:
        return Findings(
            blocker=Blocker(
                ConditionReason.RESTORE_SOURCE_MISSING,
                f"storage.restoreFrom.run is {wanted.run}, and namespace "
                f"{context.run.metadata.namespace} has no TrainingRun of that name; create it, or "
                "create this run again with the right name, or with the other run's folder in "
                "restoreFrom.uri",
            ),
            requeue_within_s=context.settings.poll_s,
        )
    found = RestoredFrom(uri=uri.rstrip("/"))
    # Only written now: an attempt whose RayJob exists must find the folder in the status.
    return Findings(status={"restored_from": found}, requeue_within_s=0)


def _folder_of_run(context: ReconcileContext) -> str | None:
    source = context.observed.restore_source
    if source is None:
        return None
    metadata, storage = source["metadata"], source["spec"]["storage"]
    return names.folder_below(storage["uri"], metadata["name"], metadata["uid"])
