"""How fast do many runs become jobs? TrainingRun -> RayJob beside KubeRay's RayJob -> RayCluster.

    python tests/benchmarks/reconcile_rate.py [--runs 300] [--busy]

Both operators run, one after the other, as processes of their own against one bare API server
(etcd and kube-apiserver, no kubelet). Each is running before the objects are created, all at once;
the time is that from the first creation until the last child exists. Beside its RayJob a
TrainingRun gets a Secret, a NetworkPolicy, a status and an event; a RayJob gets its RayCluster,
whose pods and services KubeRay's other controller makes at the same time. The CPU time that each
operator used is printed too: what else the machine does changes it less than the rate.

With `--busy` another process per core does nothing but keep the core busy, beside both.

Needs the binaries of `make test` and `kuberay-operator` in $KUBEBUILDER_ASSETS or on PATH.
"""

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "operator"), str(ROOT / "tests")]

from benchmarks.scale import cpu_s  # noqa: E402
from support import benchmark_page  # noqa: E402
from support.apiserver import ApiServer, running_apiserver  # noqa: E402
from support.binaries import kuberay_crds, kuberay_operator  # noqa: E402
from support.operators import RAY_API, a_run, credentials_of  # noqa: E402
from trainingrun.api.crd import crd  # noqa: E402
from trainingrun.api.v1alpha1 import API_VERSION, KIND, TrainingRun  # noqa: E402
from trainingrun.cluster.api_client import Connection  # noqa: E402
from trainingrun.cluster.resources import path  # noqa: E402
from trainingrun.controller.settings import PREFIX  # noqa: E402
from trainingrun.rendering import RenderSettings, attempt  # noqa: E402

PATIENCE_S = 600


def main() -> None:
    """Measures both and prints the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--busy", action="store_true", help="beside a busy process per core")
    arguments = parser.parse_args()
    runs = arguments.runs
    binary = str(kuberay_operator())
    with (
        running_apiserver() as server,
        tempfile.TemporaryDirectory() as logs,
        busy_cores(os.cpu_count() or 1 if arguments.busy else 0),
    ):
        server.install_crd(crd())
        for file in sorted(kuberay_crds()[0].parent.glob("ray.io_*.yaml")):
            server.install_crd(file.read_text())
        ours, theirs = server.new_namespace(), server.new_namespace()
        with process(our_command(), Path(logs, "ours"), our_environment(server, ours)) as pid:
            our_s, our_cpu_s = asyncio.run(
                measure(
                    server,
                    pid,
                    [a_run(ours, f"run-{number}") for number in range(runs)],
                    path(API_VERSION, KIND, ours),
                    path(RAY_API, "RayJob", ours),
                )
            )
        say("TrainingRun -> RayJob", runs, our_s, our_cpu_s)
        command = kuberay_command(binary, server, theirs)
        with process(command, Path(logs, "kuberay"), os.environ) as pid:
            their_s, their_cpu_s = asyncio.run(
                measure(
                    server,
                    pid,
                    [a_ray_job(theirs, f"run-{number}") for number in range(runs)],
                    path(RAY_API, "RayJob", theirs),
                    path(RAY_API, "RayCluster", theirs),
                )
            )
        say("RayJob -> RayCluster", runs, their_s, their_cpu_s)
        print(f"ratio                     {their_s / our_s:.2f}")
        what = f"{runs} runs created at once" + ", a busy process per core" * arguments.busy
        rates = (f"{runs / our_s:.0f} RayJobs/s", f"KubeRay: {runs / their_s:.0f} RayClusters/s")
        benchmark_page.write("operator", [(what, *rates)])


def say(what: str, runs: int, seconds: float, of_a_core_s: float) -> None:
    each = f"{of_a_core_s / runs * 1000:.1f} ms of a core each"
    print(f"{what:<25} {runs} in {seconds:6.2f} s   {runs / seconds:6.1f}/s   {each}")


async def measure(
    server: ApiServer, pid: int, manifests: list[dict[str, Any]], parents: str, children: str
) -> tuple[float, float]:
    """Seconds from the first creation until there are as many children as parents, and those of a
    core that the process `pid` used meanwhile.

    One more object is created first, and its child awaited: the operator is up by then.
    """
    connection = Connection(credentials_of(server))
    made: set[str] = set()
    watching = asyncio.create_task(collect(connection, children, made))
    try:
        warm_up = {**manifests[0], "metadata": {**manifests[0]["metadata"], "name": "warm-up"}}
        await connection.create(parents, warm_up)
        await until(lambda: len(made) == 1)
        begin, cpu_before_s = time.monotonic(), cpu_s(pid)
        slots = asyncio.Semaphore(32)

        async def create(manifest: dict[str, Any]) -> None:
            async with slots:
                await connection.create(parents, manifest)

        await asyncio.gather(*(create(manifest) for manifest in manifests))
        await until(lambda: len(made) == len(manifests) + 1)
        return time.monotonic() - begin, cpu_s(pid) - cpu_before_s
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await connection.close()


async def collect(connection: Connection, collection: str, names: set[str]) -> None:
    """Adds the name of every object that is made in a collection."""
    query = {"watch": "true", "timeoutSeconds": str(PATIENCE_S)}
    session = connection.session_for_watches(lambda request, send: send(request))
    async with session, session.get(connection.server + collection, params=query) as answer:
        rest = b""
        async for chunk in answer.content.iter_any():
            *lines, rest = (rest + chunk).split(b"\n")
            names.update(json.loads(line)["object"]["metadata"]["name"] for line in lines if line)


async def until(holds: Callable[[], bool]) -> None:
    """Waits for it."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - a set has no event for its size
            await asyncio.sleep(0.01)


def a_ray_job(namespace: str, name: str) -> dict[str, Any]:
    """The RayJob that our operator makes of the same run, without an owner."""
    run = a_run(namespace, name)
    parsed = TrainingRun.model_validate({**run, "metadata": {**run["metadata"], "uid": "u" * 36}})
    job = attempt(parsed, 1, RenderSettings())
    del job["metadata"]["ownerReferences"]
    return job


def our_command() -> list[str]:
    return [sys.executable, "-m", "trainingrun.controller"]


def our_environment(server: ApiServer, namespace: str) -> dict[str, str]:
    settings = {
        "NAMESPACES": namespace,
        "OPERATOR_NAMESPACE": "default",  # no run is begun in the namespace of its key
        "PROBE_PORT": "18481",
        "READY_PORT": "18482",
        "METRICS_PORT": "18480",
    }
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT / "operator"),
        "KUBECONFIG": str(server.kubeconfig),
        **{PREFIX + name: value for name, value in settings.items()},
    }


def kuberay_command(binary: str, server: ApiServer, namespace: str) -> list[str]:
    return [
        binary,
        f"--kubeconfig={server.kubeconfig}",
        f"--watch-namespace={namespace}",
        "--enable-leader-election=false",
        "--metrics-addr=0",
        "--health-probe-bind-address=0",
    ]


@contextlib.contextmanager
def busy_cores(number: int) -> Iterator[None]:
    """So many processes that each keep a core busy."""
    command = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(command) for _ in range(number)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


@contextlib.contextmanager
def process(command: list[str], log: Path, environment: Any) -> Iterator[int]:
    """Runs it, with its process id; shows the end of its log if it ended by itself."""
    with log.open("wb") as output:
        running = subprocess.Popen(
            command, env=dict(environment), stdout=output, stderr=subprocess.STDOUT
        )
        try:
            yield running.pid
        finally:
            ended = running.poll() is not None
            running.terminate()
            running.wait(timeout=30)
            if ended or sys.exc_info()[0]:
                print(log.read_text()[-3000:], file=sys.stderr)


if __name__ == "__main__":
    main()
