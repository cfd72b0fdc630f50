"""What a run waits for in a queue of Kueue's, in Kueue's own words.

Kueue keeps a Workload for each RayJob and says in its conditions why it is not admitted. It is read
while a run waits, and not watched: a watch would have every Workload of the cluster in memory.
"""

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from ..api.v1alpha1 import KUEUE
from ..reconciling.texts import parsed
from .api_client import ClusterError, Connection, text_of
from .object_store import Object

log = logging.getLogger(__name__)

JOB_UID = f"{KUEUE}/job-uid"
"""Label of a Workload: the UID of what it is for."""


_NOT_ADMITTED = (("Evicted", "True"), ("QuotaReserved", "False"), ("Admitted", "False"))
"""Type and status of its conditions that are there for as long as it is not admitted: Kueue keeps
the time of one whose message alone changes, at each try to admit it."""


class QueueWait(NamedTuple):
    """What the Workload of a RayJob says."""

    message: str | None = None
    """Why it is not admitted; empty: there is no Workload. None: that is not known, since Kueue is
    not installed, the right to list Workloads is missing, or the API server does not answer."""
    since: datetime | None = None
    """Since when it is not admitted; None: that is not known."""


async def what_it_waits_for(connection: Connection, job: Object) -> QueueWait:
    """What the Workload of a RayJob says."""
    metadata = job["metadata"]
    try:
        group = await connection.request("GET", f"/apis/{KUEUE}")
        # Its webhook converts others to the one that is stored, which is the preferred one.
        url = f"/apis/{group['preferredVersion']['groupVersion']}"
        url += f"/namespaces/{metadata['namespace']}/workloads"
        query = {"labelSelector": f"{JOB_UID}={metadata['uid']}"}
        workloads, _ = await connection.list_objects(url, query, 1)
        if not workloads:
            return QueueWait("")
        return QueueWait(why_not_admitted(workloads[0]), not_admitted_since(workloads[0]))
    except ClusterError as error:
        log.debug("no Workload was read: %s", text_of(error))
    except (AttributeError, KeyError, TypeError, ValueError):  # a CRD of that name, not Kueue's
        log.debug("a Workload of namespace %s is not as Kueue writes it", metadata["namespace"])
    return QueueWait()


def not_admitted_since(workload: Mapping[str, Any]) -> datetime | None:
    """The time of the earliest of its conditions that say so; None: none does."""
    times = [
        parsed(known["lastTransitionTime"])
        for known in (workload.get("status") or {}).get("conditions") or ()
        if (known["type"], known["status"]) in _NOT_ADMITTED and known.get("lastTransitionTime")
    ]
    return min(times, default=None)


def why_not_admitted(workload: Mapping[str, Any]) -> str | None:
    """The message of its condition QuotaReserved or, with quota, its open admission checks; None:
    it says nothing yet.
    """
    status = workload.get("status") or {}
    conditions = {known["type"]: known for known in status.get("conditions") or ()}
    reserved = conditions.get("QuotaReserved")
    if reserved is None:
        return None
    if reserved["status"] != "True":
        return reserved.get("message") or None
    checks = [
        ": ".join(filter(None, (check["name"], check.get("message"))))
        for check in status.get("admissionChecks") or ()
        if check.get("state") != "Ready"
    ]
    return (
        f"its quota is reserved, and admission checks are open: {', '.join(checks)}"
        if checks
        else None
    )
