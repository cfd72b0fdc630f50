"""The last look at a RayJob before it is created: whether KubeRay can read it.

`api` has looked at what users write. This looks at what became of it, and at what comes from the
operator's own settings.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from ..api import pod_schema
from ..api.parse import explain
from ..api.pod_schema import Fault

_MOST_SENTENCES = 5


def unreadable(ray_job: Mapping[str, Any]) -> str:
    """What in a RayJob KubeRay cannot read, in sentences; empty: it can read all of it.

    KubeRay that cannot read one RayJob reads none, of no namespace.
    """
    found = [fault.error() for fault in _faults(ray_job["spec"]["rayClusterSpec"])]
    if not found:
        return ""
    problems = explain(ValidationError.from_exception_data("RayJob", found))
    return "; ".join(problem.sentence for problem in problems[:_MOST_SENTENCES])


def _faults(cluster: Mapping[str, Any]) -> Iterator[Fault]:
    # Without the bounds of one template: a pod is made of several, whose terms are multiplied.
    head = cluster["headGroupSpec"]["template"]
    for fault in pod_schema.faults(head, pod_schema.TEMPLATE, bounded=False):
        yield fault.below("headGroupSpec", "template")
    for index, group in enumerate(cluster["workerGroupSpecs"]):
        for fault in pod_schema.faults(group["template"], pod_schema.TEMPLATE, bounded=False):
            yield fault.below("workerGroupSpecs", index, "template")
    collector = cluster.get("historyServerOptions", {}).get("collectorOptions")
    for fault in pod_schema.of_collector(collector):
        yield fault.below("historyServerOptions", "collectorOptions")
