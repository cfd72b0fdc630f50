"""What the controller reads from a cluster and does there.

Absent is not unknown: a method answers None or an empty list only when the API server confirms it;
403, 429, 5xx and timeouts raise.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from ..api.status import RunStatus
from ..reconciling.model import Observed, Ref


class ClusterError(Exception):
    """A call to the API server failed; the same call may succeed later."""


class Rejected(ClusterError):
    """The API server refused a manifest; the text says why and is fit for a user."""


class Unusable(Rejected):
    """It is invalid or too large: only another one can be taken."""


class Conflict(ClusterError):
    """The object changed since it was read; reconcile again."""


class NotLeading(ClusterError):
    """Nothing was sent: this process does not lead, and must not change anything."""


def text_of(error: BaseException) -> str:
    """What an error says; its type where it says nothing, as a TimeoutError does."""
    return str(error) or type(error).__name__


class Cluster(Protocol):
    """One Kubernetes cluster."""

    async def observe(self, namespace: str, name: str) -> Observed | None:
        """Everything about one run, never older than our own writes; None: it does not exist."""
        ...

    async def confirm(self, namespace: str, name: str) -> None:
        """Read what the run owns, and the nodes of its pods that are not known, from the API
        server: after it, `observe` lacks nothing that existed when it began.

        Raises:
            ClusterError: it did not answer, so that nothing is confirmed.
        """
        ...

    @property
    def kuberay_namespaces(self) -> tuple[str, ...]:
        """Namespaces in which KubeRay's operator runs; empty: that is not known."""
        ...

    async def lease_ages(self, nodes: Iterable[str]) -> Mapping[str, float]:
        """Seconds since the kubelets of these nodes renewed their Leases.

        Only for nodes with another sign of failure, and again while they have it: the first answer
        about a node has no age yet. A node whose Lease cannot be read is left out. Never raises.
        """
        ...

    async def apply(self, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        """Create it, or make the run's own object of that name be as given; the result.

        An object that has no owner, or another one, is never changed.

        Raises:
            Rejected: the API server refused it as invalid, or another owner has its name.
        """
        ...

    async def find(self, manifest: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The object of this kind and name, read from the API server; None: it does not exist."""
        ...

    async def restore(self, manifest: Mapping[str, Any], uid: str) -> None:
        """Make the spec of the object with this UID be exactly the manifest's."""
        ...

    async def create(self, manifest: Mapping[str, Any]) -> bool:
        """Create it; False if one of that name is there already."""
        ...

    async def delete(self, ref: Ref, grace_s: int | None = None) -> None:
        """Delete it, in the background; absent, or of another uid, is fine."""
        ...

    async def exclude_nodes(self, ray_cluster: Ref, nodes: tuple[str, ...]) -> None:
        """Keep the pods that KubeRay makes from now on off exactly these nodes; none: off none."""
        ...

    async def write_status(self, run: Ref, status: RunStatus, resource_version: str) -> None:
        """Replace the status.

        Raises:
            Conflict: the run changed since `resource_version`.
        """
        ...

    async def emit(self, run: Ref, type_: str, reason: str, message: str) -> None:
        """Write an Event about the run; best effort: it never raises."""
        ...
