"""What happens to the bucket."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e import outages
from e2e.network import client
from e2e.runs import Run, kill_trainer

from .acting import Act, a_worker, process_stopped

STORAGE_PROXY = Path(__file__).parent / "storage_proxy.py"


@contextmanager
def storage_away(run: Run) -> Iterator[None]:
    """The bucket is unreachable."""
    with outages.storage_unreachable(run.cluster):
        yield


@contextmanager
def storage_away_and_trainer_killed(run: Run) -> Iterator[None]:
    """A process dies while the bucket is unreachable."""
    with storage_away(run):
        kill_trainer(run.kubectl, run.trainer())
        yield


@contextmanager
def storage_away_and_worker_deleted(run: Run) -> Iterator[None]:
    """A worker pod goes while the bucket is unreachable."""
    with storage_away(run):
        run.kubectl.delete("pod", a_worker(run))
        yield


@contextmanager
def storage_restarted(run: Run) -> Iterator[None]:
    """`kill -9` of the gateway before the bucket; its container begins anew."""
    storage = run.kubectl.within("storage")
    (pod,) = storage.list("pods", "app=s3")
    run.cluster.kill_container(storage, pod["metadata"]["name"], "versitygw")
    yield


@contextmanager
def storage_paused(run: Run) -> Iterator[None]:
    """The gateway before the bucket does not answer; connections stay open."""
    with process_stopped(run.cluster, run.cluster.on_demand_node, "versitygw"):
        yield


def storage_answers(mode: str) -> Act:
    """A gateway that answers badly stands before the bucket; see `storage_proxy`."""

    @contextmanager
    def act(run: Run) -> Iterator[None]:
        storage = run.kubectl.within("storage")
        (real,) = storage.list("pods", "app=s3")
        pod = client(run.cluster.on_demand_node, "chaos", {"app": "chaos"})
        (container,) = pod["spec"]["containers"]
        environment = {"TARGET": f"{real['status']['podIP']}:7070", "MODE": mode}
        pod["spec"]["containers"] = [
            {
                **container,
                "command": ["python", "-c", STORAGE_PROXY.read_text()],
                "env": [{"name": name, "value": value} for name, value in environment.items()],
                "ports": [{"name": "s3", "containerPort": 7070}],
                "readinessProbe": {"tcpSocket": {"port": "s3"}, "periodSeconds": 1},
            }
        ]
        try:
            storage.apply(pod)
            storage("wait", "pod/chaos", "--for=condition=Ready", "--timeout=60s", timeout=70)
            outages.direct_storage(run.cluster, "chaos")
            outages.forget_connections(run.cluster)
            yield
        finally:
            outages.direct_storage(run.cluster, "s3")
            outages.forget_connections(run.cluster)
            storage.delete("pod", "chaos", wait=True)

    return act
