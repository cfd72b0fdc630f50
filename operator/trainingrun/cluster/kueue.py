"""What a run waits for in a queue of Kueue's, in Kueue's own words.

Kueue keeps a Workload for each RayJob and says in its conditions why it is not admitted. It is read
while a run waits, and not watched: a watch would have every Workload of the cluster in memory.
"""

import logging
from collections.abc import Mapping
from typing import Any

from ..api.v1alpha1 import KUEUE
from .api_client import ClusterError, Connection, text_of
from .object_store import Object

log = logging.getLogger(__name__)

JOB_UID = f"{KUEUE}/job-uid"
"""Label of a Workload: the UID of what it is for."""


async def what_it_waits_for(connection: Connection, job: Object) -> str | None:
    """What the Workload of a RayJob says; empty: there is none.

    None: that is not known, since Kueue is not installed, the right to list Workloads is missing,
    or the API server does not answer.
    """
    metadata = job["metadata"]
    try:
        group = await connection.request("GET", f"/apis/{KUEUE}")
        # Its webhook converts others to the one that is stored, which is the preferred one.
        url = f"/apis/{group['preferredVersion']['groupVersion']}"
        url += f"/namespaces/{metadata['namespace']}/workloads"
        query = {"labelSelector": f"{JOB_UID}={metadata['uid']}"}
        workloads, _ = await connection.list_objects(url, query, 1)
        return why_not_admitted(workloads[0]) if workloads else ""
    except ClusterError as error:
        log.debug("no Workload was read: %s", text_of(error))
    except (AttributeError, KeyError, TypeError):  # a CRD of that name that is not Kueue's
        log.debug("a Workload of namespace %s is not as Kueue writes it", metadata["namespace"])
    return None


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
