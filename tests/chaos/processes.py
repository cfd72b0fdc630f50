"""What happens to processes in the pods of a run."""

from collections.abc import Iterator
from contextlib import contextmanager

from e2e.runs import Run, kill_trainer, signal_trainer

from .acting import other_worker, signal

DRIVER = "*python* -m trainingrun_runtime"


@contextmanager
def trainer_killed(run: Run) -> Iterator[None]:
    """`kill -9` of rank 0's process."""
    kill_trainer(run.kubectl, run.trainer())
    yield


@contextmanager
def other_rank_killed(run: Run) -> Iterator[None]:
    """`kill -9` of the process of the rank that is not 0."""
    kill_trainer(run.kubectl, other_worker(run))
    yield


@contextmanager
def both_ranks_killed(run: Run) -> Iterator[None]:
    """Both, one right after the other: nobody is left to save the last step."""
    for pod in run.workers():
        kill_trainer(run.kubectl, pod)
    yield


@contextmanager
def trainer_stopped(run: Run) -> Iterator[None]:
    """SIGSTOP of rank 0's process, which is never continued: a hang."""
    signal_trainer(run.kubectl, run.trainer(), "STOP")
    yield


@contextmanager
def trainer_paused(run: Run) -> Iterator[None]:
    """SIGSTOP of rank 0's process, and SIGCONT before it counts as hung."""
    pod = run.trainer()
    try:
        signal_trainer(run.kubectl, pod, "STOP")
        yield
    finally:
        signal_trainer(run.kubectl, pod, "CONT")


@contextmanager
def raylet_killed(run: Run) -> Iterator[None]:
    """A worker's raylet dies, and its container goes on."""
    run.cluster.kill_raylet(run.kubectl, run.trainer())
    yield


@contextmanager
def agent_killed(run: Run) -> Iterator[None]:
    """The agent beside a worker's raylet dies, and the raylet with it."""
    signal(run.kubectl, run.trainer(), "ray-worker", "ray::DashboardAgent*", "KILL")
    yield


@contextmanager
def gcs_killed(run: Run) -> Iterator[None]:
    """Ray's control store dies in the head."""
    signal(run.kubectl, run.head(), "ray-head", "*/gcs_server *", "KILL")
    yield


@contextmanager
def driver_killed(run: Run) -> Iterator[None]:
    """The driver dies without a word."""
    signal(run.kubectl, run.head(), "ray-head", DRIVER, "KILL")
    yield


@contextmanager
def driver_paused(run: Run) -> Iterator[None]:
    """SIGSTOP of the driver, and SIGCONT after a while."""
    pod = run.head()
    try:
        signal(run.kubectl, pod, "ray-head", DRIVER, "STOP")
        yield
    finally:
        signal(run.kubectl, pod, "ray-head", DRIVER, "CONT")


@contextmanager
def worker_out_of_memory(run: Run) -> Iterator[None]:
    """A process in a worker's container takes more memory than the container may have."""
    run.kubectl.execute(
        other_worker(run),
        "ray-worker",
        ["python", "-c", "taken = []\nwhile True: taken.append(b'x' * 2**26)"],
        check=False,
    )
    yield


@contextmanager
def shared_memory_full(run: Run) -> Iterator[None]:
    """/dev/shm of a worker has no byte left."""
    pod = run.trainer()
    filled = ["sh", "-c", "dd if=/dev/zero of=/dev/shm/chaos bs=1M 2>/dev/null; true"]
    try:
        run.kubectl.execute(pod, "ray-worker", filled)
        yield
    finally:
        run.kubectl.execute(pod, "ray-worker", ["rm", "-f", "/dev/shm/chaos"], check=False)
