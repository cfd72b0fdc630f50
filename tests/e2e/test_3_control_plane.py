"""What watches over a run goes away and comes back: the run trains on, in the same pods.

One run goes through all of it. Each test leaves it as it found it.
"""

import json
import signal
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from e2e import installing, network, outages
from e2e.cluster import NAMESPACE, SYSTEM, namespace
from e2e.command_line import started, trainingrun
from e2e.kube import wait_for
from e2e.long_run import LongRun
from e2e.report import Row

OLD_S = 20
"""Lowered: the run's pods are older than this when an operator sees them for the first time."""
TAKEOVER_S = 15
"""In which another operator leads once the leader is gone."""
OUTSIDE = "e2e-outside"

pytestmark = pytest.mark.usefixtures("rows")

REACHED = {
    (OUTSIDE, "kuberay-operator"): set(),
    (OUTSIDE, "trainingrun-operator"): set(),
    (SYSTEM, "kuberay-operator"): set(),
    (SYSTEM, "trainingrun-operator"): {network.PROGRESS},
    ("default", "none"): set(),
    ("default", "kuberay-operator"): {network.DASHBOARD},
}
"""Which ports of a head a pod reaches, by its namespace and its label component. KubeRay is in
default."""


def test_only_operators_in_their_namespaces_reach_a_run(long_run: LongRun):
    cluster, kubectl = long_run.run.cluster, long_run.run.kubectl
    outside = namespace(cluster, OUTSIDE)
    for where, component in REACHED:
        labels = {"app.kubernetes.io/component": component}
        pod = network.client(cluster.on_demand_node, f"e2e-{component}", labels)
        network.start(kubectl.within(where), pod)
    ports = (kubectl.get("pod", long_run.run.head())["status"]["podIP"], *network.PORTS)
    dashboard = f"http://{ports[0]}:{network.DASHBOARD}/api/jobs/"

    try:
        by_plugin = network.is_enforced(cluster, outside)
        with nullcontext() if by_plugin else network.enforced(cluster, NAMESPACE):
            own = network.reached(kubectl, long_run.run.trainer(), "ray-worker", *ports)
            assert own == set(network.PORTS), "its own pods reach all of them"
            reached = {
                (where, component): network.reached(
                    kubectl.within(where), f"e2e-{component}", "client", *ports
                )
                for where, component in REACHED
            }
            assert reached == REACHED
            kuberay = (kubectl.within("default"), "e2e-kuberay-operator")
            assert network.answer(*kuberay, dashboard) == 401
            assert network.answer(*kuberay, dashboard, "x" * 64) == 403
            assert network.answer(*kuberay, dashboard, long_run.run.ray_token()) == 200
            long_run.reports_again()
    finally:
        for where, component in REACHED:
            kubectl.within(where).delete("pod", f"e2e-{component}")
        kubectl.delete("namespace", OUTSIDE)


def test_the_command_line_reaches_into_the_pods(long_run: LongRun, tmp_path: Path):
    run, kubectl = long_run.run, long_run.run.kubectl
    ranks = wait_for(
        "ranks in the status",
        lambda: run.status().get("progress", {}).get("ranks"),
        timeout=60,
        instead=run.sentence,
    )
    pods = {row["rank"]: row["pod"] for row in ranks}
    assert set(pods.values()) == set(run.workers())
    for rank, pod in pods.items():
        words = ("shell", run.name, f"--rank={rank}", "--", "printenv", "POD_NAME")
        assert trainingrun(kubectl, *words) == f"{pod}\n"
    assert "Node status" in trainingrun(kubectl, "shell", run.name, "--", "ray", "status")
    assert trainingrun(kubectl, "top", run.name).count("GiB") >= len(pods)

    archive = tmp_path / "report.tar.gz"
    trainingrun(kubectl, "report", run.name, f"--to={archive}")
    with tarfile.open(archive) as found:
        logs = [name for name in found.getnames() if "/logs/" in name]
        kept = {pod: f"{run.name}-report/logs/{pod}/ray-worker.log" for pod in pods.values()}
        kept["head"] = f"{run.name}-report/logs/{run.head()}/ray-head.log"
        head = found.extractfile(kept["head"])
        printed = head.read().decode() if head else ""
    assert set(kept.values()) <= set(logs)
    assert "[driver] " in printed
    assert "(RayTrainWorker" not in printed, "the head gets the ranks' lines"

    token = run.ray_token()
    with started(kubectl, "dashboard", run.name, "--no-browser") as dashboard:
        line = dashboard.stdout.readline()
        link = next(word for word in line.split() if word.startswith("http"))
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        assert b"url=/" in browser.open(link, timeout=20).read()
        root = link.partition("/trainingrun/")[0]
        jobs = json.load(browser.open(f"{root}/api/jobs/", timeout=20))
        assert [job["status"] for job in jobs] == ["RUNNING"]
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{root}/api/jobs/", timeout=20)
        dashboard.send_signal(signal.SIGINT)
        output, errors = dashboard.communicate(timeout=60)
    assert dashboard.returncode == 0, errors
    assert token not in line + output + errors


def test_the_operator_is_replaced_while_the_attempt_is_old(long_run: LongRun):
    with long_run.in_the_same_pods():
        since = long_run.run.steps()[-1].time
        installing.install_by_chart(long_run.run.cluster, operator__startupDeadlineSeconds=OLD_S)
        long_run.reports_again()
        long_run.train_on(12)
        long_run.reports_again()
    long_run.measure("(j) operator replaced, attempt old", since, f"startup deadline {OLD_S} s")


def test_the_leader_of_two_operators_is_killed(long_run: LongRun):
    cluster = long_run.run.cluster
    installing.install_by_chart(cluster, replicas=2)
    former = wait_for("an operator that leads", lambda: outages.leader(cluster), timeout=60)
    with long_run.in_the_same_pods():
        began = time.time()
        outages.kill_operator(cluster, former)
        wait_for(
            "another operator leads",
            lambda: outages.leader(cluster) not in ("", former),
            timeout=TAKEOVER_S,
            instead=lambda: f"{outages.leader(cluster)} leads",
        )
        took = time.time() - began
        long_run.reports_again()
    long_run.measure("(k) leading operator kill -9", began, f"another leads after {took:.0f} s")


def test_the_run_ends_as_if_all_had_been_there(
    long_run: LongRun, reference: Callable[[], str], rows: list[Row]
):
    long_run.ends_like(reference, rows)
