"""What each queue or batch scheduler requires on a RayJob and on its pods."""

from typing import NamedTuple

from ..api.v1alpha1 import TrainingRun
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
    queue = run.spec.scheduling.queue
    if queue is None:
        return Queueing({}, {}, None)
    match queue.kind:
        case "Kueue":
            # On the RayJob alone: Kueue admits the outermost object and suspends it meanwhile.
            return Queueing({"kueue.x-k8s.io/queue-name": queue.name}, {}, None)
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
