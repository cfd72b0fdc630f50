"""spec.scheduling: queue and priority of the pods."""

from typing import ClassVar, Literal

from pydantic import Field

from .base import Model, Rule, object_name


class Queue(Model):
    """The queue that admits the run's pods."""

    kind: Literal["Kueue", "Volcano", "YuniKorn", "KAI"]
    """Which scheduler or queue controller owns the queue."""
    name: str = Field(max_length=63)
    """Name of the (local) queue; the pods carry it as a label, which holds 63 characters."""

    rules: ClassVar[tuple[Rule, ...]] = (object_name("name", "queue"),)


class Scheduling(Model):
    """How the pods are admitted and ordered."""

    queue: Queue | None = None
    """The queue that admits the run's pods. Default: none, pods are scheduled at once. Kueue's
    labels may be on the TrainingRun as well, as on a Job: `kueue.x-k8s.io/queue-name` instead of
    this field, and `kueue.x-k8s.io/priority-class`."""
    priority_class_name: str | None = Field(default=None, max_length=253)
    """PriorityClass of every pod. Default: the cluster's."""

    rules: ClassVar[tuple[Rule, ...]] = (
        object_name("priority_class_name", "PriorityClass"),
        Rule(
            "!has(self.queue) || !has(self.queue.kind) || self.queue.kind != 'Volcano' || "
            "!has(self.priorityClassName) || size(self.priorityClassName) <= 63",
            "must have at most 63 characters with a Volcano queue, which reads it from a label",
            lambda scheduling: (
                scheduling.queue is None
                or scheduling.queue.kind != "Volcano"
                or len(scheduling.priority_class_name or "") <= 63
            ),
            "priority_class_name",
        ),
    )
