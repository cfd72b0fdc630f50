"""What the API server refuses an operator stands in the status of the run."""

import asyncio
import contextlib
import json

import pytest

from support.apiserver import ApiError
from support.operators import a_run, document, eventually, reconciled_again, running
from support.processes import wait_for
from trainingrun.controller import reconcile, write_limits


async def test_what_the_api_server_refuses_stands_in_the_status(
    apiserver, namespace, kuberay, new_operator, status
):
    """A field of a pod that is newer than KubeRay's CRD."""
    mount = {"name": "shared-memory", "mountPath": "/dev/shm", "bindMountOptions": ["nodev"]}
    broken = {"spec": {"containers": [{"name": "ray-worker", "volumeMounts": [mount]}]}}
    async with running(await new_operator()):
        apiserver.create(a_run(namespace, workers={"count": 1, "podTemplate": broken}))
        await eventually(
            lambda: [
                c
                for c in status().get("conditions", [])
                if c["type"] == "Accepted"
                and c["status"] == "False"
                and c["reason"] == "Rejected"
                and "bindMountOptions" in c["message"]
            ]
        )
    assert kuberay.jobs() == []


async def test_a_pod_template_that_kubernetes_would_not_take_stands_in_the_status(
    apiserver, namespace, kuberay, new_operator, status
):
    """What the CRD lets through; no RayJob is made of it."""
    ephemeral = {"name": "a", "ports": [{"containerPort": 2**31}]}
    wrong = {"spec": {"dnsPolicy": "clusterfirst", "ephemeralContainers": [ephemeral]}}
    async with running(await new_operator()):
        apiserver.create(a_run(namespace, workers={"count": 1, "podTemplate": wrong}))
        says = 'spec.workers.podTemplate.spec.dnsPolicy is "clusterfirst"; write ClusterFirst, '
        await eventually(lambda: condition_says(status, "InvalidSpec", says))
    (found,) = [c for c in status()["conditions"] if c["type"] == "Accepted"]
    assert "ephemeralContainers[0].ports[0].containerPort is 2147483648" in found["message"]
    assert kuberay.jobs() == []


async def test_what_only_the_operator_can_refuse_stands_in_the_status(
    apiserver, namespace, kuberay, new_operator, status
):
    """Linux takes no environment variable of 128 KiB, and CEL does not see a sweep's values."""
    values = [f"{number:03}" + "x" * 190 for number in range(100)]
    space = [{"name": name, "values": values} for name in "abcdef"]
    sweep = {"samples": 2, "metric": "loss", "mode": "min", "space": space}
    async with running(await new_operator()):
        apiserver.create(a_run(namespace, sweep=sweep))
        await eventually(lambda: condition_says(status, "InvalidSpec", "spec.training: config, "))
    (found,) = [c for c in status()["conditions"] if c["type"] == "Accepted"]
    assert "must have at most 102400 bytes together, as JSON; put larger" in found["message"]
    assert "Value error" not in found["message"]
    assert kuberay.jobs() == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            {"training": {"function": "examples.digits:train", "config": {"lr": 1, "steps": 2}}},
            {"training": {"function": "examples.digits:train", "config": {"rate": 1, "steps": 2}}},
        ),
        (
            {"podTemplate": {"spec": {"hostname": "a"}}},
            {"podTemplate": {"spec": {"serviceAccountName": "a"}}},
        ),
        (
            {"workers": {"count": 1, "podTemplate": {"spec": {"hostname": "a"}}}},
            {"workers": {"count": 1, "podTemplate": {"spec": {"serviceAccountName": "a"}}}},
        ),
    ],
    ids=["config", "podTemplate", "workers"],
)
async def test_another_field_in_the_place_of_one_that_cannot_change_is_refused(
    apiserver, namespace, kuberay, new_operator, status, before, after
):
    """The API server itself takes it."""
    async with running(await new_operator()):
        run = apiserver.create(a_run(namespace, **before))
        await eventually(lambda: "fieldNames" in status().get("seen", {}))
        for spec, reason, message in (
            (after, "InvalidSpec", "has other fields than when the run began"),
            (before, "Valid", ""),
        ):
            path = apiserver.path(run, "digits")
            parts = [
                {"op": "replace", "path": f"/spec/{part}", "value": spec[part]} for part in spec
            ]
            apiserver.request("PATCH", path, json.dumps(parts), "application/json-patch+json")
            await eventually(lambda: condition_says(status, reason, message))  # noqa: B023


QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "no-more-secrets"},
    "spec": {"hard": {"count/secrets": "0"}},
    "status": {"hard": {"count/secrets": "0"}, "used": {"count/secrets": "0"}},
}


def a_webhook(namespace: str) -> dict:
    """One that is down, for NetworkPolicies of this namespace."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": f"down-{namespace}"},
        "webhooks": [
            {
                "name": "down.example.com",
                "clientConfig": {"url": "https://127.0.0.1:9/"},
                "failurePolicy": "Fail",
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                "timeoutSeconds": 1,
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "rules": [
                    {
                        "apiGroups": ["networking.k8s.io"],
                        "apiVersions": ["v1"],
                        "operations": ["*"],
                        "resources": ["networkpolicies"],
                    }
                ],
            }
        ],
    }


def condition_says(status, *words: str) -> bool:
    return any(
        all(word in f"{c['reason']} {c.get('message')}" for word in words)
        for c in status().get("conditions", [])
    )


async def test_a_quota_that_refuses_the_token_s_secret_stands_in_the_status(
    apiserver, namespace, kuberay, new_operator, status
):
    quota = QUOTA | {"metadata": QUOTA["metadata"] | {"namespace": namespace}}
    apiserver.create(quota)
    apiserver.replace(quota, "status")  # no controller counts here
    async with running(await new_operator()):
        apiserver.create(a_run(namespace))
        await eventually(lambda: condition_says(status, "QuotaExceeded", "Secret"))
    assert kuberay.jobs() == []


async def test_a_webhook_that_is_down_for_the_network_policy_stands_in_the_status(
    apiserver, namespace, kuberay, new_operator, status
):
    webhook = a_webhook(namespace)
    apiserver.create(webhook)
    try:
        async with running(await new_operator()):
            apiserver.create(a_run(namespace))
            await eventually(
                lambda: condition_says(status, "NetworkPolicy", "failed calling webhook")
            )
        assert kuberay.jobs() == [], "no pod runs without it"
    finally:
        apiserver.request("DELETE", apiserver.path(webhook))


ADMISSION = "admissionregistration.k8s.io/v1"


@pytest.fixture
def denied(apiserver, namespace):
    """A policy that denies operations in the test's namespace, once it is in force.

    It denies every ConfigMap as well, by which the latter shows.
    """
    probe = {"apiVersion": "v1", "kind": "ConfigMap"}
    probe["metadata"] = {"name": "probe", "namespace": namespace}

    def says(message: str) -> bool:
        try:
            apiserver.create(probe, dry_run=True)
        except ApiError as error:
            return message in str(error)
        return False

    with contextlib.ExitStack() as made:

        def deny(group: str, resource: str, operation: str, unless: str, message: str) -> None:
            name = f"{namespace}-{resource.replace('/', '-')}-{operation.lower()}"
            rules = [
                {"apiGroups": [of], "apiVersions": ["*"], "resources": [what], "operations": [how]}
                for of, what, how in ((group, resource, operation), ("", "configmaps", "CREATE"))
            ]
            allowed = f"request.resource.resource != 'configmaps' && ({unless})"
            policy = {
                "apiVersion": ADMISSION,
                "kind": "ValidatingAdmissionPolicy",
                "metadata": {"name": name},
                "spec": {
                    "matchConstraints": {"resourceRules": rules},
                    "validations": [{"expression": allowed, "message": message}],
                },
            }
            selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
            binding = {
                "apiVersion": ADMISSION,
                "kind": "ValidatingAdmissionPolicyBinding",
                "metadata": {"name": name},
                "spec": {
                    "policyName": name,
                    "validationActions": ["Deny"],
                    "matchResources": {"namespaceSelector": selector},
                },
            }
            for each in (policy, binding):
                apiserver.create(each)
                made.callback(apiserver.request, "DELETE", apiserver.path(each))
            wait_for(lambda: says(message))

        yield deny


async def test_two_deletions_that_are_denied_keep_no_loss_out_of_the_status(
    apiserver, namespace, kuberay, head, new_operator, status, denied
):
    """The head is gone; a policy keeps each of its workers, whose deletion is planned."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    denied("", "pods", "DELETE", "oldObject.metadata.name.contains('head')", "pods stay here")
    async with running(await new_operator()):
        run = apiserver.create(a_run(namespace, workers={"count": 2}))
        await eventually(lambda: kuberay.jobs() == ["digits-1"])
        kuberay.starts(run)
        first = apiserver.get("v1", "Pod", "digits-1-worker", namespace)
        kept = ("labels", "ownerReferences", "namespace")
        second = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {name: first["metadata"][name] for name in kept} | {"name": "second"},
            "spec": {"containers": [{"name": "ray-worker", "image": "none"}]},
        }
        apiserver.replace(apiserver.create(second) | {"status": first["status"]}, "status")
        head.document = document(step=5, totalSteps=100, resumedFromStep=0, worldSize=2)
        await eventually(lambda: status().get("phase") == "Running")
        head.document = None
        await asyncio.to_thread(apiserver.request, "DELETE", f"{pods}/digits-1-head")
        await eventually(lambda: status()["disruptions"]["headLosses"] == 1)
        await eventually(
            lambda: condition_says(status, "Rejected", "refuses to delete the Pod", "since", "stay")
        )
        edited = {"spec": {"suspend": True}}
        path = apiserver.path(run)
        merge = "application/merge-patch+json"
        await asyncio.to_thread(apiserver.request, "PATCH", path, edited, merge)
        await eventually(lambda: status()["observedGeneration"] == 2, "edits are still read")


async def test_a_ray_job_too_large_to_be_stored_is_said_and_seldom_tried(
    apiserver, namespace, kuberay, new_operator, status
):
    """The podTemplate is in the head's template and in the workers'."""
    side = {"name": "side", "image": "none", "args": ["x" * 800_000]}
    async with running(operator := await new_operator()):
        apiserver.create(a_run(namespace, podTemplate={"spec": {"containers": [side]}}))
        await eventually(lambda: condition_says(status, "Rejected", "RayJob", "too large"))
        for _ in range(3):  # the first may be the one that is underway
            await reconciled_again(operator, (namespace, "digits"))
        tries = operator.metrics.reconcile_errors.labels("Unusable")._value.get()
    assert tries == 1
    assert kuberay.jobs() == []


async def test_an_error_in_planning_is_in_the_status_of_its_run_and_stops_no_other(
    apiserver, namespace, kuberay, new_operator, status, monkeypatch
):
    real = reconcile.decide

    def decide(seen, *others):
        if seen.run.metadata.name == "broken":
            raise ZeroDivisionError("division by zero")
        return real(seen, *others)

    monkeypatch.setattr(reconcile, "decide", decide)
    async with running(await new_operator()):
        apiserver.create(a_run(namespace, "broken"))
        apiserver.create(a_run(namespace))
        said = ("InternalError", "ZeroDivisionError: division by zero")
        await eventually(lambda: condition_says(lambda: status("broken"), *said))
        await eventually(lambda: kuberay.jobs() == ["digits-1"])


async def test_a_status_that_is_refused_is_said_in_an_event_and_nothing_is_done(
    apiserver, namespace, kuberay, new_operator, denied
):
    denied("trainingrun.dev", "trainingruns/status", "UPDATE", "false", "no status here")
    events = f"/api/v1/namespaces/{namespace}/events"
    apiserver.create(a_run(namespace))
    async with running(operator := await new_operator()):
        await eventually(
            lambda: [
                event
                for event in apiserver.request("GET", events)["items"]
                if event["reason"] == "StatusRefused" and "no status here" in event["message"]
            ]
        )
        await eventually(lambda: not operator.queue._working)
    assert kuberay.jobs() == []


def fill_up(apiserver, run: dict) -> None:
    """As whoever may change the run can, until no more fits into etcd."""
    fits, too_long = 1_540_000, 1_580_000  # etcd takes 1.5 MiB
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "uid": "u"}
    while too_long - fits > 50:
        name = "x" * ((fits + too_long) // 2)
        patch = {"metadata": {"ownerReferences": [owner | {"name": name}]}}
        try:
            apiserver.request("PATCH", apiserver.path(run), patch, "application/merge-patch+json")
            fits = len(name)
        except ApiError:
            too_long = len(name)


@pytest.mark.parametrize("limit", [{"activeDeadlineSeconds": 30}, {}], ids=["deadline", "none"])
async def test_a_run_that_is_too_large_for_its_end_does_not_run_past_its_deadline(
    apiserver, namespace, kuberay, new_operator, status, monkeypatch, limit
):
    """And is not ended where its next status, which does not fit either, says that it runs."""
    monkeypatch.setattr(write_limits, "REFUSED_S", 0.5)
    path = f"/api/v1/namespaces/{namespace}/events"

    def refusals() -> str:
        events = apiserver.request("GET", path)["items"]
        return "\n".join(each["message"] for each in events if each["reason"] == "StatusRefused")

    async with running(operator := await new_operator()):
        run = apiserver.create(a_run(namespace, **limit))
        await eventually(lambda: kuberay.jobs() == ["digits-1"])
        await asyncio.to_thread(fill_up, apiserver, run)
        assert status()["phase"] == "Starting"
        if limit:
            await eventually(lambda: kuberay.jobs() == [])
            await eventually(lambda: "RayJob digits-1 is deleted" in refusals())
        else:
            kuberay.starts(run)
        await eventually(lambda: "request is too large" in refusals())
        for _ in range(3):
            await asyncio.sleep(1)
            await reconciled_again(operator, (namespace, "digits"))
        assert kuberay.jobs() == ([] if limit else ["digits-1"])
