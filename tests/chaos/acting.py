"""What faults of several kinds need."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from e2e.cluster import TestCluster
from e2e.kube import Kubectl, wait_for
from e2e.runs import Run

Act = Callable[[Run], AbstractContextManager[None]]
"""A fault: it is there while its block runs."""
FORCED = ("--force", "--grace-period=0")

SIGNAL = r"""
for entry in /proc/[0-9]*; do
  [ "${entry#/proc/}" = $$ ] && continue
  mapfile -d '' -t words 2>/dev/null < "$entry/cmdline"
  case "${words[*]}" in
    PATTERN) kill -NAME "${entry#/proc/}" && signaled=yes ;;
  esac
done
[ -n "$signaled" ]
"""
"""Signals the processes whose command line fits; a container has neither ps nor pkill."""


def signal(kubectl: Kubectl, pod: str, container: str, pattern: str, name: str) -> None:
    """Send a signal to the processes of a container whose command line fits the shell pattern.

    Raises:
        CommandError: none does.
    """
    kubectl.execute(pod, container, ["bash", "-c", signal_script(pattern, name)])


def signal_script(pattern: str, name: str) -> str:
    """The script for bash; it fails if no process fits."""
    quoted = "*".join(f"'{part}'" if part else "" for part in pattern.split("*"))
    return SIGNAL.replace("PATTERN", quoted).replace("NAME", name)


@contextmanager
def process_stopped(cluster: TestCluster, node: str, name: str) -> Iterator[None]:
    """SIGSTOP of a process on a node, by its name."""
    try:
        cluster.on_node(node, f"kill -STOP $(pidof {name})")
        yield
    finally:
        cluster.on_node(node, f"kill -CONT $(pidof {name})")


def of_run(run: Run) -> str:
    """The label selector of the run's objects."""
    return f"trainingrun.dev/run={run.name}"


def a_worker(run: Run) -> str:
    """Name of a worker pod: rank 0's, where it stays; one that ends where no other is there."""
    return _pod(run, "worker")


def a_head(run: Run) -> str:
    """Name of the head pod."""
    return _pod(run, "head")


def _pod(run: Run, role: str) -> str:
    """In the phases without training there may be none for a moment."""

    def there() -> list[str]:
        pods = run.pods(role)
        staying = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return [pod["metadata"]["name"] for pod in staying or pods]

    names = wait_for(f"a {role} pod of {run.name}", there, timeout=90, instead=run.sentence)
    if role == "worker" and run.steps() and (trainer := run.trainer()) in names:
        return trainer
    return names[0]


def other_worker(run: Run) -> str:
    """Name of the worker pod that has not rank 0."""
    trainer = run.trainer()
    return next(pod for pod in run.workers() if pod != trainer)


def evict(kubectl: Kubectl, pod: str) -> None:
    """Ask the eviction API for it."""
    metadata = {"name": pod, "namespace": kubectl.namespace}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    path = f"/api/v1/namespaces/{kubectl.namespace}/pods/{pod}/eviction"
    kubectl("create", f"--raw={path}", "--filename=-", stdin=json.dumps(body))


def address_of(run: Run, node: str) -> str:
    """The node's own address."""
    addresses = run.kubectl.get("node", node)["status"]["addresses"]
    return str(next(one["address"] for one in addresses if one["type"] == "InternalIP"))


def pods_of(run: Run, node: str) -> str:
    """The range of addresses of the node's pods."""
    return str(run.kubectl.get("node", node)["spec"]["podCIDR"])
