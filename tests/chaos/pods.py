"""What happens to containers and pods of a run."""

from collections.abc import Iterator
from contextlib import contextmanager

from e2e.runs import Run

from .acting import FORCED, a_head, a_worker, evict, of_run

IS_WORKER = "trainingrun.dev/role=worker"


@contextmanager
def worker_container_killed(run: Run) -> Iterator[None]:
    """`kill -9` of a worker container's main process."""
    run.cluster.kill_container(run.kubectl, run.trainer(), "ray-worker")
    yield


@contextmanager
def head_container_killed(run: Run) -> Iterator[None]:
    """`kill -9` of the head container's main process."""
    run.cluster.kill_container(run.kubectl, run.head(), "ray-head")
    yield


@contextmanager
def worker_deleted(run: Run) -> Iterator[None]:
    """A worker pod is deleted, with its notice."""
    run.kubectl.delete("pod", a_worker(run))
    yield


@contextmanager
def worker_force_deleted(run: Run) -> Iterator[None]:
    """A worker pod is deleted without its notice."""
    run.kubectl.delete("pod", a_worker(run), *FORCED)
    yield


@contextmanager
def both_workers_deleted(run: Run) -> Iterator[None]:
    """Both worker pods, with their notice."""
    run.kubectl("delete", "pods", "--wait=false", f"--selector={of_run(run)},{IS_WORKER}")
    yield


@contextmanager
def both_workers_force_deleted(run: Run) -> Iterator[None]:
    """Both worker pods without their notice: nobody is left to save the last step."""
    run.kubectl("delete", "pods", "--wait=false", f"--selector={of_run(run)},{IS_WORKER}", *FORCED)
    yield


@contextmanager
def head_deleted(run: Run) -> Iterator[None]:
    """The head pod is deleted, with its notice."""
    run.kubectl.delete("pod", a_head(run))
    yield


@contextmanager
def head_force_deleted(run: Run) -> Iterator[None]:
    """The head pod is deleted without its notice."""
    run.kubectl.delete("pod", a_head(run), *FORCED)
    yield


@contextmanager
def head_and_worker_deleted(run: Run) -> Iterator[None]:
    """The head and one worker at once, without their notice."""
    run.kubectl("delete", "pod", a_head(run), a_worker(run), "--wait=false", *FORCED)
    yield


@contextmanager
def every_pod_deleted(run: Run) -> Iterator[None]:
    """All pods of the run at once, without their notice."""
    run.kubectl("delete", "pods", "--wait=false", f"--selector={of_run(run)}", *FORCED)
    yield


@contextmanager
def worker_evicted(run: Run) -> Iterator[None]:
    """By the eviction API, as drains and descheduling do it."""
    evict(run.kubectl, a_worker(run))
    yield


@contextmanager
def head_evicted(run: Run) -> Iterator[None]:
    """The same of the head."""
    evict(run.kubectl, a_head(run))
    yield
