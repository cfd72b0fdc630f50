"""The operator as a whole against a real API server. The tests play KubeRay and the head pod."""

import asyncio
import base64

from support.apiserver import MERGE
from support.operators import (
    OPERATOR_NAMESPACE,
    RAY_API,
    a_run,
    document,
    eventually,
    running,
    settled,
)
from trainingrun.api.v1alpha1 import API_VERSION, KIND
from trainingrun.cluster.live_cluster import KubernetesCluster
from trainingrun.controller.progress_polling import Poller, Target
from trainingrun.controller.tokens import KEY_SECRET, Tokens


def network_policy(run: dict) -> str:
    return f"{run['metadata']['name']}-{run['metadata']['uid'][:8]}-ray"


async def test_a_run_becomes_a_ray_job_that_it_owns(
    apiserver, namespace, kuberay, new_operator, status
):
    async with running(await new_operator()):
        run = apiserver.create(a_run(namespace))
        job = await eventually(lambda: kuberay.job("digits-1"))
        await eventually(lambda: status().get("attempt") == 1)
    assert [owner["uid"] for owner in job["metadata"]["ownerReferences"]] == [
        run["metadata"]["uid"]
    ]
    policies = apiserver.request(
        "GET", f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"
    )["items"]
    assert len(policies) == 1


async def test_the_run_s_token_is_derived_from_the_operator_s_key(
    apiserver, namespace, kuberay, new_operator, status, token_secret
):
    async with running(await new_operator()):
        run = apiserver.create(a_run(namespace))
        await eventually(lambda: kuberay.job("digits-1"))
        key = apiserver.get("v1", "Secret", KEY_SECRET, OPERATOR_NAMESPACE)["data"]["key"]
        token = apiserver.get("v1", "Secret", token_secret(run), namespace)["data"]["token"]
    wanted = Tokens([base64.b64decode(key)]).of(run["metadata"]["uid"])
    assert base64.b64decode(token).decode() == wanted
    assert wanted not in str(status())


async def test_progress_is_read_with_the_token_and_shown_in_the_status(
    apiserver, namespace, kuberay, head, new_operator, status, token_secret
):
    async with running(await new_operator()):
        run = apiserver.create(a_run(namespace))
        await eventually(lambda: status().get("attempt") == 1)
        kuberay.starts(run)
        head.document = document(step=7, totalSteps=10)
        await eventually(lambda: status().get("progress", {}).get("step") == 7)
        assert status()["phase"] == "Running"
        head.document = document(step=10, totalSteps=10, state="Succeeded", result={"metrics": {}})
        kuberay.says("digits-1", "SUCCEEDED", "Complete")
        await eventually(lambda: status().get("phase") == "Succeeded")
        await eventually(lambda: kuberay.jobs() == [])
    token = apiserver.get("v1", "Secret", token_secret(run), namespace)["data"]["token"]
    assert head.tokens == {"Bearer " + base64.b64decode(token).decode()}
    assert status()["progress"]["step"] == 10


async def test_pods_of_a_failed_run_are_kept_by_one_operator_after_another(
    apiserver, namespace, kuberay, head, new_operator, status, monkeypatch
):
    forgotten, forget = [], Poller.forget
    monkeypatch.setattr(
        Poller, "forget", lambda self, key: forgotten.append(key) or forget(self, key)
    )

    def waiting() -> str:
        return next(c["reason"] for c in status()["conditions"] if c["type"] == "Waiting")

    failures = {"maxRestarts": 0, "keepFailedPodsSeconds": 3600}
    async with running(await new_operator()):
        run = apiserver.create(a_run(namespace, failures=failures))
        await eventually(lambda: status().get("attempt") == 1)
        assert kuberay.job("digits-1")["spec"]["ttlSecondsAfterFinished"] == 4200
        kuberay.starts(run)
        failure = {"kind": "Application", "message": "ValueError: no"}
        head.document = document(state="Failed", failure=failure)
        await eventually(lambda: status().get("phase") == "Failed")
        kuberay.says("digits-1", "FAILED", "Failed")
        await eventually(lambda: waiting() == "PodsKept")
    async with running(await new_operator()) as operator:
        await settled(operator, (namespace, "digits"))
        assert (kuberay.jobs(), waiting()) == (["digits-1"], "PodsKept")
        path = apiserver.path(run)
        freed = {"spec": {"failures": {"keepFailedPodsSeconds": 0}}}
        apiserver.request("PATCH", path, freed, MERGE)
        await eventually(lambda: kuberay.jobs() == [])
        forgotten.clear()
        kuberay.takes_the_pods_away(run)
        await eventually(lambda: waiting() == "NothingIsMissing")
        await eventually(lambda: (namespace, "digits") in forgotten)  # a run may stay for months


async def test_the_final_progress_is_fetched_as_soon_as_the_job_has_ended(
    apiserver, namespace, kuberay, head, new_operator, status
):
    """Polls are an hour apart here, so none of them brings it."""
    async with running(await new_operator(poll_s=3600.0)):
        run = apiserver.create(a_run(namespace))
        await eventually(lambda: status().get("attempt") == 1)
        kuberay.starts(run)
        head.document = document(step=10, totalSteps=10, state="Succeeded", result={"metrics": {}})
        kuberay.says("digits-1", "SUCCEEDED", "Complete")
        await eventually(lambda: status().get("phase") == "Succeeded")
    assert status()["progress"]["step"] == 10


async def test_a_run_waits_for_the_run_that_it_begins_from_and_keeps_its_folder(
    apiserver, namespace, kuberay, new_operator, status
):
    student = a_run(namespace, "student")
    student["spec"]["storage"]["restoreFrom"] = {"run": "teacher", "step": 40}
    async with running(await new_operator()):
        apiserver.create(student)
        await eventually(
            lambda: (
                "RestoreSourceMissing"
                in [condition["reason"] for condition in status("student").get("conditions", [])]
            )
        )
        assert kuberay.jobs() == []
        teacher = apiserver.create(a_run(namespace, "teacher"))
        job = await eventually(lambda: kuberay.job("student-1"))
        await eventually(lambda: status("student").get("attempt") == 1)
    folder = f"s3://runs/tests/teacher-{teacher['metadata']['uid'][:8]}"
    assert status("student")["restoredFrom"] == {"uri": folder}
    assert f'"restoreFrom":{{"uri":"{folder}","step":40}}' in str(job)


async def test_events_report_what_the_status_shows(
    apiserver, namespace, kuberay, new_operator, status
):
    async with running(await new_operator()):
        apiserver.create(a_run(namespace))
        await eventually(lambda: status().get("attempt") == 1)
        events = f"/api/v1/namespaces/{namespace}/events"
        await eventually(
            lambda: (
                "AttemptStarted"
                in [event["reason"] for event in apiserver.request("GET", events)["items"]]
            )
        )


async def test_twenty_runs_at_once_each_get_one_ray_job(
    apiserver, namespace, kuberay, new_operator, status
):
    names = sorted(f"run-{number:02d}" for number in range(20))
    async with running(await new_operator()):
        for name in names:
            apiserver.create(a_run(namespace, name))
        await eventually(lambda: kuberay.jobs() == [f"{name}-1" for name in names])
        for name in names:
            await eventually(lambda name=name: status(name).get("attempt") == 1)


async def test_a_bad_run_does_not_stop_the_others(
    apiserver, namespace, kuberay, new_operator, status, monkeypatch
):
    real = KubernetesCluster.observe

    async def observe(self, namespace, name):
        if name == "bad":
            raise RuntimeError("something that nobody thought of")
        return await real(self, namespace, name)

    monkeypatch.setattr(KubernetesCluster, "observe", observe)
    async with running(await new_operator(workers=1)) as operator:
        apiserver.create(a_run(namespace, "bad"))
        apiserver.create(a_run(namespace, "good"))
        await eventually(lambda: status("good").get("attempt") == 1)
        errors = operator.metrics.registry.get_sample_value(
            "trainingrun_reconcile_errors_total", {"reason": "RuntimeError"}
        )
    assert errors >= 1


async def test_a_deleted_run_is_left_alone_and_a_new_one_of_its_name_starts_afresh(
    apiserver, namespace, kuberay, new_operator, status, token_secret
):
    async with running(await new_operator()):
        old = apiserver.create(a_run(namespace))
        await eventually(lambda: status().get("attempt") == 1)
        apiserver.request("DELETE", apiserver.path(old))
        new = apiserver.create(a_run(namespace))
        await eventually(lambda: status().get("conditions"))
        assert status().get("attempt", 0) == 0, "the former run's RayJob is still there"
        # No garbage collector runs here: the test plays it.
        for kind, version, name in (
            ("RayJob", RAY_API, "digits-1"),
            ("NetworkPolicy", "networking.k8s.io/v1", network_policy(old)),
            ("Secret", "v1", token_secret(old)),
        ):
            metadata = {"name": name, "namespace": namespace}
            manifest = {"apiVersion": version, "kind": kind, "metadata": metadata}
            apiserver.request("DELETE", apiserver.path(manifest))
        await eventually(lambda: status().get("attempt") == 1)
        owner = kuberay.job("digits-1")["metadata"]["ownerReferences"][0]
        assert owner["uid"] == new["metadata"]["uid"] != old["metadata"]["uid"]


async def test_a_status_that_someone_else_changed_is_reconciled_again(
    apiserver, namespace, kuberay, new_operator, status, monkeypatch
):
    real = KubernetesCluster.write_status
    interfered = []

    async def write_status(self, run, written, version):
        if not interfered:
            interfered.append(run)
            changed = apiserver.get(API_VERSION, KIND, run.name, run.namespace)
            changed["metadata"]["annotations"] = {"someone": "else"}
            await asyncio.to_thread(apiserver.replace, changed)
        await real(self, run, written, version)

    monkeypatch.setattr(KubernetesCluster, "write_status", write_status)
    async with running(await new_operator()) as operator:
        apiserver.create(a_run(namespace))
        await eventually(lambda: status().get("attempt") == 1)
        await settled(operator, (namespace, "digits"))
    assert interfered
    assert kuberay.jobs() == ["digits-1"]
    assert len(status()["attempts"]) == 1


async def test_suspend_reaches_the_head_and_frees_the_pods(
    apiserver, namespace, kuberay, head, new_operator, status
):
    async with running(await new_operator()):
        run = apiserver.create(a_run(namespace))
        await eventually(lambda: status().get("attempt") == 1)
        kuberay.starts(run)
        head.document = document(step=3)
        await eventually(lambda: status().get("progress", {}).get("step") == 3)
        apiserver.request(
            "PATCH",
            apiserver.path(run),
            {"spec": {"suspend": True}},
            "application/merge-patch+json",
        )
        await eventually(lambda: head.suspends > 0)
        head.document = document(step=4, state="Suspended")
        kuberay.says("digits-1", "FAILED", "Failed", reason="AppFailed")
        await eventually(lambda: kuberay.jobs() == [])
        kuberay.takes_the_pods_away(run)
        await eventually(lambda: status().get("phase") == "Suspended")
    assert status()["attempts"][-1]["outcome"] == "Suspended"


async def test_a_deleted_run_that_a_finalizer_holds_frees_its_pods_and_says_so(
    apiserver, namespace, kuberay, head, new_operator, status
):
    async with running(await new_operator()) as operator:
        held = a_run(namespace)
        held["metadata"]["finalizers"] = ["example.org/someone-else"]
        run = apiserver.create(held)
        await eventually(lambda: status().get("attempt") == 1)
        kuberay.starts(run)
        head.document = document(step=3)
        await eventually(lambda: status().get("phase") == "Running")
        apiserver.request("DELETE", apiserver.path(run))
        await eventually(lambda: status().get("phase") == "Deleting")
        await eventually(lambda: kuberay.jobs() == [])
        kuberay.takes_the_pods_away(run)
        await settled(operator, (namespace, "digits"))
        ready = next(found for found in status()["conditions"] if found["type"] == "Ready")
    assert "example.org/someone-else" in ready["message"]
    assert [attempt["outcome"] for attempt in status()["attempts"]] == ["Suspended"]


async def test_edited_checkpoints_are_said_to_apply_from_the_next_attempt_on(
    apiserver, namespace, kuberay, new_operator, status
):
    async with running(await new_operator()):
        run = apiserver.create(a_run(namespace))
        await eventually(lambda: status().get("attempt") == 1)
        edit = {"spec": {"checkpoints": {"everySeconds": 60}}}
        apiserver.request("PATCH", apiserver.path(run), edit, "application/merge-patch+json")
        await eventually(
            lambda: (
                "FromNextAttempt" in [condition["reason"] for condition in status()["conditions"]]
            )
        )
        assert status()["observedGeneration"] == 2


async def test_heads_that_hang_after_the_end_hold_no_worker(
    apiserver, namespace, kuberay, new_operator, status
):
    """Ten ended runs, whose heads take requests and never answer, and one worker for all."""

    async def hang(reader, writer):
        await reader.read()  # until the operator has given up
        writer.close()

    hanging = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = hanging.sockets[0].getsockname()[1]

    def target(operator, key, uid, attempt):
        found = operator.head_of(key, uid, attempt)
        return found and Target(found.pod_uid, f"http://127.0.0.1:{port}")

    operator = await new_operator(workers=1, poll_timeout_s=2.0)
    operator._resolve = lambda *asked: target(operator, *asked)
    names = [f"bad-{number}" for number in range(10)]
    async with hanging, running(operator):
        for name in names:
            run = apiserver.create(a_run(namespace, name))
            await eventually(lambda name=name: status(name).get("attempt") == 1)
            kuberay.starts(run)
        for name in names:
            kuberay.says(f"{name}-1", "FAILED", "Failed", reason="AppFailed")
        began = asyncio.get_running_loop().time()
        apiserver.create(a_run(namespace, "good"))
        await eventually(lambda: status("good").get("attempt") == 1)
        took = asyncio.get_running_loop().time() - began
    assert took < 10, f"{took:.1f} s: 2 s for each hanging head in turn are 20"


async def test_probes_say_ready_only_once_everything_is_listed(apiserver, namespace, new_operator):
    operator = await new_operator()
    assert not operator.ready
    async with running(operator):
        await eventually(lambda: operator.ready)
        assert operator.liveness_error is None
