"""What does the operator need for 10,000 TrainingRuns in a cluster of 5,000 nodes?

    python tests/benchmarks/scale.py [--runs 10000] [--running 1000] [--nodes 5000]
        [--namespaces 100 [--each]]

A bare API server (etcd and kube-apiserver, no kubelet) holds the runs, most of them ended, the
others with RayJob, RayCluster and two pods each, at the size that real ones have. They are written
into etcd directly: through the API server that would take longer than all the rest. Another process
renews the nodes' Leases as kubelets do, each every 10 s. Then the operator is started as users run
it, and this prints

- seconds from its start until it has reconciled every run;
- the share of a core that it uses while nothing happens to any run;
- its resident memory, then and at the most.

The heads of the running attempts answer the operator's polls of their progress, without news.
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "operator"), str(ROOT / "tests")]

import aiohttp  # noqa: E402
from aiohttp import web  # noqa: E402

from benchmarks import scale_objects as objects  # noqa: E402
from support import benchmark_page  # noqa: E402
from support.apiserver import ApiError, ApiServer, running_apiserver  # noqa: E402
from support.operators import credentials_of  # noqa: E402
from trainingrun.cluster.api_client import Connection  # noqa: E402
from trainingrun.cluster.resources import PLURALS, path, path_of_manifest  # noqa: E402
from trainingrun.controller.settings import PREFIX  # noqa: E402
from trainingrun_protocol.contract import PROGRESS_PORT  # noqa: E402

Manifest = dict[str, Any]

BATCH = 64
"""Objects in one transaction of etcd: at most 128, and 1.5 MB."""
SETTLE_S = 45.0
"""After the start: what the first reconciles write comes back as news."""
RENEW_S = 10.0
METRICS_PORT = 18480


def main() -> None:
    """Fills an API server, starts the operator and measures it."""
    arguments = read_arguments()
    with running_apiserver() as server, tempfile.TemporaryDirectory() as folder:
        install(server, arguments)
        begin = time.monotonic()
        asyncio.run(fill(server, arguments))
        until(lambda: has_caught_up(server), 120)
        say(f"filled the API server in {time.monotonic() - begin:.0f} s")
        with cluster_life(server, arguments) as renewed:
            measure(server, arguments, Path(folder, "log"), renewed)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--running", type=int, help="of these; default: a tenth")
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--namespaces", type=int, default=100)
    parser.add_argument("--each", action="store_true", help="watch each namespace on its own")
    parser.add_argument("--idle-s", type=float, default=60.0, help="seconds to measure")
    found = parser.parse_args()
    found.running = found.runs // 10 if found.running is None else found.running
    return found


def measure(
    server: ApiServer, arguments: argparse.Namespace, log: Path, renewed: Callable[[], int]
) -> None:
    """Prints the figures."""
    start = time.monotonic()
    with operator(server, arguments, log) as pid:
        until(lambda: reconciles() >= arguments.runs and queued() == 0, 300)
        seen_s, start_cpu_s = time.monotonic() - start, cpu_s(pid)
        time.sleep(SETTLE_S)
        before, polls_before = reconciles(), metric("trainingrun_progress_polls_total")
        cpu, leases, begin = cpu_s(pid), renewed(), time.monotonic()
        time.sleep(arguments.idle_s)
        passed = time.monotonic() - begin
        share = (cpu_s(pid) - cpu) / passed
        now_mb, peak_mb = resident_mb(pid)
        print(f"TrainingRuns, running     {arguments.runs}, {arguments.running}")
        print(f"nodes, Lease renewals     {arguments.nodes}, {(renewed() - leases) / passed:.0f}/s")
        print(f"all seen after            {seen_s:.1f} s ({start_cpu_s:.1f} s of a core)")
        print(f"resident memory           {now_mb:.0f} MB, at most {peak_mb:.0f} MB")
        print(f"idle                      {share * 100:.1f} % of a core")
        print(f"  reconciles              {(reconciles() - before) / passed:.1f}/s")
        polls = metric("trainingrun_progress_polls_total") - polls_before
        print(f"  progress polls          {polls / passed:.1f}/s")
        runs = f"{arguments.runs} runs, {arguments.running} running, {arguments.nodes} nodes"
        found = f"{now_mb:.0f} MB; {share * 100:.1f} % of a core; all seen after {seen_s:.0f} s"
        benchmark_page.write("operator", [(runs, found, "")])


def install(server: ApiServer, arguments: argparse.Namespace) -> None:
    server.install_crds()
    for number in range(arguments.namespaces):
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"n{number}"}}
        server.create(manifest)


async def fill(server: ApiServer, arguments: argparse.Namespace) -> None:
    """Writes everything into etcd, the status too."""
    async with aiohttp.ClientSession(f"{server.etcd}/v3/kv/") as session:
        batch: list[Manifest] = []
        for manifest in everything(arguments):
            batch.append(manifest)
            if len(batch) == BATCH:
                await put(session, batch)
                batch.clear()
        await put(session, batch)


def has_caught_up(server: ApiServer) -> bool:
    """Whether the API server's own cache has all that was written into etcd."""
    try:
        newest = server.request("GET", "/api/v1/namespaces?limit=1")["metadata"]["resourceVersion"]
        query = f"limit=1&resourceVersionMatch=NotOlderThan&resourceVersion={newest}"
        for api_version, kind in PLURALS:
            server.request("GET", f"{path(api_version, kind)}?{query}")
    except ApiError:
        return False
    return True


async def put(session: aiohttp.ClientSession, batch: list[Manifest]) -> None:
    """One transaction."""
    puts = [
        {"requestPut": {"key": base64(etcd_key(found)), "value": base64(json.dumps(found))}}
        for found in batch
    ]
    async with session.post("txn", json={"success": puts}) as answer:
        answer.raise_for_status()


def everything(arguments: argparse.Namespace) -> Iterator[Manifest]:
    """Every object that the cluster has."""
    for number in range(arguments.nodes):
        yield stored(objects.node(f"node-{number}"))
        yield stored(objects.lease(f"node-{number}"))
    for number in range(arguments.runs):
        namespace, name = f"n{number % arguments.namespaces}", f"run-{number}"
        if number >= arguments.running:
            yield stored(objects.ended_run(namespace, name))
            continue
        run = stored(objects.running_run(namespace, name))
        job = stored(objects.ray_job(run))
        cluster = stored(objects.ray_cluster(run, job))
        yield from (run, job, cluster)
        for role in ("head", "worker"):
            node = f"node-{(2 * number + (role == 'head')) % arguments.nodes}"
            yield stored(objects.pod(run, cluster, role, node))


def stored(manifest: Manifest) -> Manifest:
    """With what the API server adds when an object is created."""
    manifest["metadata"] |= {
        "uid": str(uuid.uuid4()),
        "generation": 1,
        "creationTimestamp": objects.at(60),
        "managedFields": objects.MANAGED_FIELDS,
    }
    return manifest


def etcd_key(manifest: Manifest) -> str:
    """Where the API server keeps an object."""
    metadata, (group, _, _) = manifest["metadata"], manifest["apiVersion"].partition("/")
    resource = PLURALS[manifest["apiVersion"], manifest["kind"]]
    folder = {"nodes": "minions", "leases": "leases", "pods": "pods"}.get(
        resource, f"{group}/{resource}"
    )
    return "/".join(
        filter(None, ("/registry", folder, metadata.get("namespace"), metadata["name"]))
    )


def base64(text: str) -> str:
    return b64encode(text.encode()).decode()


@contextlib.contextmanager
def cluster_life(server: ApiServer, arguments: argparse.Namespace) -> Iterator[Callable[[], int]]:
    """A process that plays the kubelets and heads; how many Leases it has renewed."""
    count = multiprocessing.Value("q", 0)
    playing = multiprocessing.Process(
        target=lambda: asyncio.run(play(server, arguments, count)), daemon=True
    )
    playing.start()
    try:
        yield lambda: count.value
    finally:
        playing.kill()
        playing.join()


async def play(server: ApiServer, arguments: argparse.Namespace, count: Any) -> None:
    """Renews every node's Lease every `RENEW_S`, as evenly as this machine can; serves progress."""
    application = web.Application()
    application.add_routes([web.get("/progress", progress)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, objects.HEADS, PROGRESS_PORT).start()
    connection = Connection(credentials_of(server))
    slots = asyncio.Semaphore(32)

    async def renew(number: int) -> None:
        manifest = objects.lease(f"node-{number}")
        body = {"spec": {"renewTime": datetime.now(UTC).isoformat().replace("+00:00", "Z")}}
        async with slots:
            await connection.request(
                "PATCH",
                path_of_manifest(manifest),
                body,
                content_type="application/merge-patch+json",
            )
        with count.get_lock():
            count.value += 1

    turn = 0
    step_s = 0.1
    at_once = max(1, round(arguments.nodes / RENEW_S * step_s))
    while True:
        begin = time.monotonic()
        numbers = [(turn + one) % arguments.nodes for one in range(at_once)]
        await asyncio.gather(*(renew(number) for number in numbers))
        turn += at_once
        await asyncio.sleep(max(0.0, step_s - (time.monotonic() - begin)))


async def progress(request: web.Request) -> web.Response:
    """The document of a driver that trains; the same each time."""
    return web.json_response(objects.PROGRESS)


@contextlib.contextmanager
def operator(server: ApiServer, arguments: argparse.Namespace, log: Path) -> Iterator[int]:
    """`python -m trainingrun.controller`, and its process id."""
    settings = {"PROBE_PORT": "18481", "READY_PORT": "18482", "METRICS_PORT": str(METRICS_PORT)}
    if arguments.each:
        settings["NAMESPACES"] = ",".join(f"n{number}" for number in range(arguments.namespaces))
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT / "operator"),
        "KUBECONFIG": str(server.kubeconfig),
        **{PREFIX + name: value for name, value in settings.items()},
        PREFIX + "OPERATOR_NAMESPACE": "default",
    }
    with log.open("wb") as output:
        running = subprocess.Popen(
            [sys.executable, "-m", "trainingrun.controller"],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield running.pid
        finally:
            running.terminate()
            running.wait(timeout=30)
            lines = log.read_text().splitlines()
            say(f"the operator logged {len(lines)} lines; the last:")
            say("\n".join(lines[-5:]))


def metric(name: str) -> float:
    """A metric of the operator, added up over its labels."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{METRICS_PORT}/metrics", timeout=30) as page:
            text = page.read().decode()
    except OSError:
        return 0.0
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.M))


def reconciles() -> float:
    return metric("trainingrun_reconcile_seconds_count")


def queued() -> float:
    return metric("trainingrun_queue_depth")


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> tuple[float, float]:
    """Resident memory of a process now, and the most that it ever was."""
    text = Path(f"/proc/{pid}/status").read_text()
    now, most = (re.search(rf"{name}:\s+(\d+)", text) for name in ("VmRSS", "VmHWM"))
    assert now
    assert most
    return int(now.group(1)) / 1024, int(most.group(1)) / 1024


def until(holds: Callable[[], bool], seconds: float) -> None:
    """Waits for it."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError("the operator has not seen every run")
        time.sleep(0.5)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
