"""The cluster as the operator sees it, against a real API server."""

from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import psutil
import pytest

from support.operators import RAY_API, Proxy, a_ray_job, a_run, eventually, owned_by, watching
from trainingrun.api.status import Phase, RunStatus
from trainingrun.api.v1alpha1 import API_VERSION, KIND
from trainingrun.cluster.api_client import ClusterError, Conflict, Rejected
from trainingrun.cluster.server_clock import ServerClock
from trainingrun.reconciling.model import Ref
from trainingrun.rendering.scheduling import EXCLUSION


def ref_of(found: dict) -> Ref:
    metadata = found["metadata"]
    return Ref(
        found["apiVersion"], found["kind"], metadata["namespace"], metadata["name"], metadata["uid"]
    )


def pod(run: dict, name: str, node: str | None = None) -> dict:
    spec = {"containers": [{"name": "ray-worker", "image": "none"}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": owned_by(run, name, attempt="1", role="worker"),
        "spec": spec | ({"nodeName": node} if node else {}),
    }


def node(name: str, ready: str) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


async def test_an_absent_run_is_none(apiserver, namespace):
    async with watching(apiserver, namespace) as cluster:
        assert await cluster.observe(namespace, "nobody") is None


@pytest.mark.parametrize("lost", [5, ["a", 1], {"a": "t"}])
async def test_lost_nodes_that_no_operator_wrote_do_not_hide_the_run(apiserver, namespace, lost):
    run = apiserver.create(a_run(namespace))
    apiserver.replace({**run, "status": {"seen": {"lostNodes": lost}}}, "status")
    async with watching(apiserver, namespace) as cluster:
        assert await cluster.observe(namespace, "digits") is not None


async def test_our_own_writes_are_seen_at_once(apiserver, namespace):
    """Even where the watch is late: here it brings nothing at all."""
    run = apiserver.create(a_run(namespace))
    async with watching(apiserver, namespace, deaf=True) as cluster:
        await cluster.apply(a_ray_job(run))
        seen = await cluster.observe(namespace, "digits")
        assert [job["metadata"]["name"] for job in seen.ray_jobs] == ["digits-1"]

        await cluster.delete(ref_of(dict(seen.ray_jobs[0])))
        seen = await cluster.observe(namespace, "digits")
        assert seen.ray_jobs == ()

        await cluster.write_status(
            ref_of(run), RunStatus(phase=Phase.PENDING), seen.run.metadata.resource_version
        )
        assert (await cluster.observe(namespace, "digits")).run.status.phase is Phase.PENDING


async def test_a_status_written_on_an_old_version_is_a_conflict(apiserver, namespace):
    run = apiserver.create(a_run(namespace))
    async with watching(apiserver, namespace) as cluster:
        version = run["metadata"]["resourceVersion"]
        await cluster.write_status(ref_of(run), RunStatus(phase=Phase.PENDING), version)
        with pytest.raises(Conflict):
            await cluster.write_status(ref_of(run), RunStatus(phase=Phase.FAILED), version)
    assert apiserver.get(API_VERSION, KIND, "digits", namespace)["status"]["phase"] == "Pending"


async def test_a_delete_of_an_object_made_anew_does_nothing(apiserver, namespace):
    run = apiserver.create(a_run(namespace))
    async with watching(apiserver, namespace) as cluster:
        made = dict(await cluster.apply(a_ray_job(run)))
        stale = Ref(
            RAY_API, "RayJob", namespace, "digits-1", "00000000-0000-0000-0000-000000000000"
        )
        await cluster.delete(stale)
        assert (
            apiserver.get(RAY_API, "RayJob", "digits-1", namespace)["metadata"]["uid"]
            == (made["metadata"]["uid"])
        )
        await cluster.delete(ref_of(made))
        await cluster.delete(ref_of(made))  # absent is fine


async def test_a_foreign_ray_job_of_the_same_name_is_not_taken_over(apiserver, namespace):
    run = apiserver.create(a_run(namespace))
    foreign = a_ray_job(run) | {"metadata": {"name": "digits-1", "namespace": namespace}}
    apiserver.create(foreign)
    async with watching(apiserver, namespace) as cluster:
        with pytest.raises(Rejected, match="is not this run's"):
            await cluster.apply(a_ray_job(run))


async def test_what_the_api_server_refuses_is_reported_as_it_says(apiserver, namespace):
    run = apiserver.create(a_run(namespace))
    async with watching(apiserver, namespace) as cluster:
        wrong = a_ray_job(run)
        wrong["spec"]["entrypiont"] = "x"
        with pytest.raises(Rejected, match=r"spec\.entrypiont"):
            await cluster.apply(wrong)


async def test_subscribers_get_the_run_whose_objects_changed(apiserver, namespace):
    run = apiserver.create(a_run(namespace))
    async with watching(apiserver, namespace) as cluster:
        notified = []
        cluster.stores.subscribe(lambda *key: notified.append(key))
        apiserver.create(pod(run, "digits-1-worker"))
        await eventually(lambda: (namespace, "digits") in notified)
        assert len((await cluster.observe(namespace, "digits")).pods) == 1


async def test_a_force_deleted_pod_is_gone_at_once(apiserver, namespace):
    run = apiserver.create(a_run(namespace))
    made = apiserver.create(pod(run, "digits-1-worker", node="lost"))
    async with watching(apiserver, namespace) as cluster:
        await cluster.delete(ref_of(made))
        assert (await cluster.observe(namespace, "digits")).pods[0]["metadata"]["deletionTimestamp"]
        await cluster.delete(ref_of(made), grace_s=0)
        assert (await cluster.observe(namespace, "digits")).pods == ()


async def test_a_node_wakes_its_runs_when_it_becomes_unready_but_not_by_heartbeats(
    apiserver, namespace
):
    run = apiserver.create(a_run(namespace))
    name = f"node-of-{namespace}"
    apiserver.create(node(name, "True"))
    apiserver.create(pod(run, "digits-1-worker", node=name))
    async with watching(apiserver, namespace) as cluster:
        assert (await cluster.observe(namespace, "digits")).nodes[name].ready
        notified = []
        cluster.stores.subscribe(lambda *key: notified.append(key))
        heartbeat = apiserver.get("v1", "Node", name)
        heartbeat["status"]["conditions"][0]["lastHeartbeatTime"] = "2030-01-01T00:00:00Z"
        version = apiserver.replace(heartbeat, "status")["metadata"]["resourceVersion"]
        await eventually(
            lambda: (
                cluster.stores.nodes.store.get("", name)["metadata"]["resourceVersion"] == version
            )
        )
        assert notified == []
        lost = apiserver.get("v1", "Node", name)
        lost["status"]["conditions"][0]["status"] = "Unknown"
        apiserver.replace(lost, "status")
        await eventually(lambda: (namespace, "digits") in notified)
        assert not (await cluster.observe(namespace, "digits")).nodes[name].ready


async def test_a_ray_cluster_excludes_exactly_the_nodes_given_and_is_patched_only_once(
    apiserver, namespace
):
    run = apiserver.create(a_run(namespace))
    template = {"spec": {"containers": [{"name": "ray-head", "image": "none"}]}}
    group = {
        "groupName": "workers",
        "replicas": 1,
        "minReplicas": 1,
        "maxReplicas": 1,
        "rayStartParams": {},
        "template": template,
    }
    made = apiserver.create(
        {
            "apiVersion": RAY_API,
            "kind": "RayCluster",
            "metadata": owned_by(run, "digits-1-abcde", attempt="1"),
            "spec": {
                "headGroupSpec": {"rayStartParams": {}, "template": template},
                "workerGroupSpecs": [group],
            },
        }
    )
    async with watching(apiserver, namespace) as cluster:
        await cluster.exclude_nodes(ref_of(made), ("lost-1",))
        await cluster.exclude_nodes(ref_of(made), ("lost-1", "lost-2"))
        patched = apiserver.get(RAY_API, "RayCluster", "digits-1-abcde", namespace)
        affinity = patched["spec"]["workerGroupSpecs"][0]["template"]["spec"]["affinity"]
        required = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert required["nodeSelectorTerms"] == [
            {
                "matchExpressions": [
                    {
                        "key": "kubernetes.io/hostname",
                        "operator": "NotIn",
                        "values": [EXCLUSION, "lost-1", "lost-2"],
                    }
                ]
            }
        ]
        await cluster.exclude_nodes(ref_of(made), ("lost-1", "lost-2"))
        again = apiserver.get(RAY_API, "RayCluster", "digits-1-abcde", namespace)
        assert again["metadata"]["resourceVersion"] == patched["metadata"]["resourceVersion"]
        await cluster.exclude_nodes(ref_of(made), ("lost-2",))
        await cluster.exclude_nodes(ref_of(made), ())
        lifted = apiserver.get(RAY_API, "RayCluster", "digits-1-abcde", namespace)
        assert lifted["spec"] == made["spec"]


async def test_what_happened_while_the_api_server_was_away_is_made_up_for(apiserver, namespace):
    kept = apiserver.create(a_run(namespace, "kept"))
    apiserver.create(a_run(namespace, "deleted"))
    proxy = Proxy(urlsplit(apiserver.url).port)
    await proxy.up()
    async with watching(apiserver, namespace, port=proxy.port) as cluster:
        await proxy.down()
        with pytest.raises(ClusterError):
            await cluster.apply(a_ray_job(kept, "kept-1"))
        apiserver.request("DELETE", apiserver.path(a_run(namespace, "deleted")))
        apiserver.create(a_run(namespace, "created"))
        await proxy.up()
        await eventually(
            lambda: (
                sorted(cluster.stores.run_keys()) == [(namespace, "created"), (namespace, "kept")]
            )
        )
    await proxy.down()


async def test_watches_that_end_leave_no_socket_open(apiserver, namespace):
    """One that does is closed by nobody, and warns in whatever runs then."""
    proxy = Proxy(urlsplit(apiserver.url).port)  # nobody else connects to its port
    await proxy.up()

    def open_sockets() -> int:
        connections = psutil.Process().net_connections("tcp")
        return sum(bool(found.raddr) and found.raddr.port == proxy.port for found in connections)

    async with watching(apiserver, namespace, port=proxy.port):
        assert open_sockets() > 0
    await eventually(lambda: open_sockets() == 0)  # a request under way is answered to its end
    await proxy.down()


async def test_now_is_by_the_clock_that_stamps_objects(apiserver, namespace):
    fast = timedelta(minutes=5)
    async with watching(apiserver, namespace) as cluster:
        connection = cluster._connection
        connection.clock = ServerClock(lambda: datetime.now(UTC) + fast)
        await connection.request("GET", "/version")
        made = apiserver.create(a_run(namespace))
        stamped = datetime.fromisoformat(made["metadata"]["creationTimestamp"])
        assert abs(connection.clock.now() - stamped) < timedelta(seconds=10)


async def test_events_are_about_the_run(apiserver, namespace):
    run = apiserver.create(a_run(namespace))
    async with watching(apiserver, namespace) as cluster:
        await cluster.emit(ref_of(run), "Normal", "AttemptStarted", "Attempt 1 started.")
    events = apiserver.request("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
    assert [(e["reason"], e["involvedObject"]["uid"]) for e in events] == [
        ("AttemptStarted", run["metadata"]["uid"])
    ]
