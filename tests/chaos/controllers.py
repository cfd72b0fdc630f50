"""What happens to the operator and to KubeRay."""

from collections.abc import Iterator
from contextlib import contextmanager

from e2e import outages
from e2e.cluster import SYSTEM
from e2e.installing import DEPLOYMENT
from e2e.kube import wait_for
from e2e.runs import Run

from .acting import FORCED, a_head, a_worker


@contextmanager
def operator_deleted(run: Run) -> Iterator[None]:
    """The operator's pod is deleted by force; a new one comes at once."""
    outages.replace_operator(run.cluster)
    yield


@contextmanager
def operator_killed(run: Run) -> Iterator[None]:
    """`kill -9` of the operator's process: it gives no Lease back."""
    leader = wait_for("an operator that leads", lambda: outages.leader(run.cluster), timeout=60)
    outages.kill_operator(run.cluster, leader)
    yield


@contextmanager
def operator_away(run: Run) -> Iterator[None]:
    """No operator for a while."""
    with outages.deployment_away(run.kubectl.within(SYSTEM), DEPLOYMENT):
        yield


@contextmanager
def operator_away_and_worker_deleted(run: Run) -> Iterator[None]:
    """A worker pod goes while there is no operator."""
    with operator_away(run):
        run.kubectl.delete("pod", a_worker(run))
        yield


@contextmanager
def operator_away_and_head_deleted(run: Run) -> Iterator[None]:
    """The head goes while there is no operator."""
    with operator_away(run):
        run.kubectl.delete("pod", a_head(run), *FORCED)
        yield


@contextmanager
def kuberay_deleted(run: Run) -> Iterator[None]:
    """KubeRay's pod is deleted by force; a new one comes at once."""
    selector = "--selector=app.kubernetes.io/name=kuberay-operator"
    run.kubectl.within("default")("delete", "pods", "--wait=false", selector, *FORCED)
    yield


@contextmanager
def kuberay_away_and_worker_deleted(run: Run) -> Iterator[None]:
    """A worker pod goes while there is no KubeRay."""
    with outages.deployment_away(run.kubectl.within("default"), "kuberay-operator"):
        run.kubectl.delete("pod", a_worker(run))
        yield


@contextmanager
def permissions_away(run: Run) -> Iterator[None]:
    """The operator may do nothing."""
    with outages.permissions_deleted(run.cluster):
        yield


@contextmanager
def permissions_away_and_worker_deleted(run: Run) -> Iterator[None]:
    """A worker pod goes while the operator may do nothing."""
    with outages.permissions_deleted(run.cluster):
        run.kubectl.delete("pod", a_worker(run))
        yield


@contextmanager
def pods_and_jobs_unreadable(run: Run) -> Iterator[None]:
    """The operator may see neither pods nor RayJobs."""
    others = ("trainingruns", "trainingruns/status", "secrets", "networkpolicies", "events")
    with outages.permissions_deleted(run.cluster, but=others):
        yield
