"""What each queue or batch scheduler requires on a RayJob and on its pods."""

from typing import NamedTuple

from ..api.v1alpha1 import KUEUE, KUEUE_QUEUE, TrainingRun
from . import names


class Queueing(NamedTuple):
    """Empty where no queue is requested."""

    job_labels: dict[str, str]
    """Labels of the RayJob; KubeRay copies them to the RayCluster."""
    pod_labels: dict[str, str]
    """Labels of every pod."""
    scheduler: str | None
    """The pods' schedulerName; None: the cluster's own."""


def queueing(run: TrainingRun, number: int) -> Queueing:
    """For the queue that the run names.

    KubeRay 1.6 passes the labels to its pods only where it was installed with that batch scheduler;
    they are on the pods as well, so that the queue is kept in any case. Gangs need that option.
    """
    chosen = _chosen(run, number)
    # Labels for Kueue that a user has put on the run, such as its priority class, mean the object
    # that Kueue admits.
    own = {key: value for key, value in run.metadata.labels.items() if key.startswith(f"{KUEUE}/")}
    return chosen._replace(job_labels={**own, **chosen.job_labels})


def _chosen(run: TrainingRun, number: int) -> Queueing:
    queue = run.spec.scheduling.queue
    if queue is None:
        return Queueing({}, {}, None)
    match queue.kind:
        case "Kueue":
            # On the RayJob alone: Kueue admits the outermost object and suspends it meanwhile.
            return Queueing({KUEUE_QUEUE: queue.name}, {}, None)
        case "Volcano":
            label = {"volcano.sh/queue-name": queue.name}
            priority = run.spec.scheduling.priority_class_name
            job = {**label, "ray.io/priority-class-name": priority} if priority else label
            return Queueing(job, label, "volcano")
        case "YuniKorn":
            application = names.ray_job_name(run, number)
            return Queueing(
                {
                    "yunikorn.apache.org/app-id": application,
                    "yunikorn.apache.org/queue": queue.name,
                    "ray.io/gang-scheduling-enabled": "true",
                },
                {"applicationId": application, "queue": queue.name},
                "yunikorn",
            )
        case "KAI":
            label = {"kai.scheduler/queue": queue.name}
            return Queueing(label, label, "kai-scheduler")
