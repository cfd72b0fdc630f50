"""A driver that says nothing: what that means, and what it does not.

Silence alone ends nothing. Polls fail for many reasons that leave the training well: an operator
that has just started, a NetworkPolicy or a mesh in between, another token. Then the status says so.
An attempt is given up only where KubeRay says that it never submitted a driver.
"""

from ..api.status import Attempt
from . import pods
from .diagnosis import Trouble
from .draft import Draft
from .model import Manifest
from .moments import seconds_since, written
from .scene import Scene

SILENT_S = 60.0
"""Seconds of this process's own polls without an answer, before anybody is told."""

NOT_SUBMITTED = ("", "PENDING")
"""RayJob's status.jobStatus before its driver runs."""


def never_submitted(scene: Scene, draft: Draft, attempt: Attempt, job: Manifest) -> str | None:
    """Why the attempt is given up: every pod runs for long, and no driver was ever submitted.

    Two signs: this process asks the head and gets no document, and KubeRay calls no job running.
    The time is kept in the ledger, so that a restarted operator goes on counting, but it has to
    have asked for a while itself.
    """
    if scene.unknown("RayJob", "Pod"):
        return None
    waits = (
        (job_status(job) in NOT_SUBMITTED)
        and scene.word(attempt.number) is None
        and every_pod_runs(scene, draft, attempt)
    )
    if not waits:
        if draft.ledger.hung_since is not None:
            draft.note(hung_since=None)
        return None
    if draft.ledger.hung_since is None:
        draft.note(hung_since=written(scene.now))
    deadline_s = scene.settings.startup_deadline_s
    waited_s = seconds_since(draft.ledger.hung_since or written(scene.now), scene.now)
    asked_s = scene.observed.progress_asked_s
    if waited_s < deadline_s or asked_s is None or asked_s < SILENT_S:
        return None
    return (
        f"Every pod ran for {round(deadline_s)} s and KubeRay submitted no driver; look at the log "
        "of KubeRay's operator and of the head pod"
    )


def trouble(scene: Scene, draft: Draft, attempt: Attempt) -> Trouble | None:
    """What the status says of a driver that cannot be heard though nothing else is wrong."""
    head, job = scene.head(attempt.number), scene.job(attempt.number)
    if head is None or not pods.running(head) or scene.taken_back(attempt.number):
        return None
    failing_s, asked_s = scene.observed.progress_failing_s, scene.observed.progress_asked_s
    runs = job is not None and job_status(job) == "RUNNING"
    if failing_s is not None and failing_s >= SILENT_S and runs:
        why = scene.observed.progress_error or "it does not answer"
        return Trouble(
            "DriverSilent",
            f"The progress of pod {pods.name(head)} cannot be read, though KubeRay calls its job "
            f"RUNNING: {why}; nothing is ended for that. Let the operator reach port 8484 of the "
            "head pod (NetworkPolicy, service mesh), with the token of the run's own Secret",
        )
    unheard = scene.word(attempt.number) is None and asked_s is not None
    if unheard and runs and (asked_s or 0.0) >= scene.settings.startup_deadline_s:
        return Trouble(
            "DriverSilent",
            f"The driver has told nothing for {round(scene.settings.startup_deadline_s)} s, though "
            f"KubeRay calls its job RUNNING; look at its log in pod {pods.name(head)}",
        )
    return None


def job_status(job: Manifest) -> str:
    """RayJob's status.jobStatus; "": KubeRay has told none."""
    return str((job.get("status") or {}).get("jobStatus") or "")


def every_pod_runs(scene: Scene, draft: Draft, attempt: Attempt) -> bool:
    """Whether the attempt has all of its pods, and each of them runs."""
    index = scene.index(attempt.number)
    if len(index.all) < wanted_pods(scene, draft):
        return False
    return all(pods.running(pod) for pod in index.unwell)


def wanted_pods(scene: Scene, draft: Draft) -> int:
    """Pods of the current attempt: its workers as they were rendered, and the head."""
    return (draft.ledger.workers or scene.run.spec.workers.count) + 1
