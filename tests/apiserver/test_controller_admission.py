"""Admission that is slow, or that changes what the operator makes, on a real API server."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from support.apiserver import ApiServer, running_apiserver
from support.goldens import a_run as parsed_run
from support.goldens import rendered
from support.operators import (
    PlaysKubeRay,
    a_run,
    credentials_of,
    eventually,
    reconciled_again,
    running,
    settings_for,
    settled,
)
from support.webhooks import EVENTS, HeldWebhook
from trainingrun.api.v1alpha1 import API_VERSION, KIND
from trainingrun.controller.leadership import WRITE_S
from trainingrun.controller.operator import Operator

RUNS = 20


@pytest.fixture
def other_namespace(apiserver):
    return apiserver.new_namespace()


async def test_runs_behind_a_slow_webhook_begin_and_hold_up_no_run_of_another_namespace(
    apiserver, namespace, other_namespace, kuberay, head, tmp_path
):
    """The webhook answers only after a leader's whole time to write, which it renews meanwhile."""
    settings = settings_for(namespace, other_namespace)
    operator = Operator(settings, credentials_of(apiserver), head.target)
    other = PlaysKubeRay(apiserver, other_namespace)
    async with (
        HeldWebhook().listening(apiserver, namespace, tmp_path) as webhook,
        running(operator),
    ):
        for number in range(RUNS):
            apiserver.create(a_run(namespace, f"slow-{number}"))
        await eventually(lambda: len(webhook.held) >= settings.operator.workers)
        apiserver.create(a_run(other_namespace))
        await eventually(lambda: other.jobs() == ["digits-1"])
        assert kuberay.jobs() == [], "it began while all the others waited"
        await eventually(lambda: webhook.held_for_s() > WRITE_S + 1)
        webhook.released.set()
        await eventually(lambda: len(kuberay.jobs()) == RUNS)
        assert len(webhook.held) == RUNS, "none was given up and sent again"


async def test_a_slow_webhook_on_events_holds_up_no_reconcile(
    apiserver, namespace, kuberay, new_operator, tmp_path
):
    """It answers none of them, and the API server would wait for it for 30 s."""
    async with (
        HeldWebhook().listening(apiserver, namespace, tmp_path, EVENTS) as webhook,
        running(await new_operator()) as operator,
    ):
        apiserver.create(a_run(namespace))
        await eventually(lambda: webhook.held)
        assert kuberay.jobs() == ["digits-1"], "events come last"
        await reconciled_again(operator, (namespace, "digits"))
        assert webhook.held_for_s() < 20, "5 s, on a busy machine longer"


@pytest.fixture(scope="module")
def mutating() -> Iterator[ApiServer]:
    """A server with policies that mutate, which are behind a gate until 1.36."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(
                running_apiserver(
                    feature_gates="MutatingAdmissionPolicy=true",
                    runtime_config="admissionregistration.k8s.io/v1beta1=true",
                )
            )
        except RuntimeError:  # the gate is gone where nothing can turn it off
            server = stack.enter_context(running_apiserver())
        server.install_crds()
        yield server


def a_policy(server: ApiServer, name: str, resources: str, patch: str) -> Iterator[dict[str, Any]]:
    """The policy and its binding, in the newest version that the server has."""
    group = server.request("GET", "/apis/admissionregistration.k8s.io")
    served = {version["groupVersion"] for version in group["versions"]}
    for version in sorted(served, key=lambda served: "beta" in served):
        kinds = {one["kind"] for one in server.request("GET", f"/apis/{version}")["resources"]}
        if "MutatingAdmissionPolicy" in kinds:
            break
    rule = {"apiGroups": ["ray.io"], "apiVersions": ["*"], "resources": [resources]}
    yield {
        "apiVersion": version,
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {
                "resourceRules": [rule | {"operations": ["CREATE", "UPDATE"]}],
            },
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "mutations": [
                {
                    "patchType": "ApplyConfiguration",
                    "applyConfiguration": {"expression": patch},
                }
            ],
        },
    }
    yield {
        "apiVersion": version,
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name},
    }


@pytest.mark.kubernetes(34)
async def test_a_ray_job_that_a_policy_changes_is_made_once_and_left_as_it_is(
    mutating: ApiServer, head: Any
):
    """The platform's own annotation and time to live: the operator does not put its own back, and
    does not take the changed RayJob for another one.
    """
    server = mutating
    namespace = server.new_namespace()
    patch = (
        'Object{metadata: Object.metadata{annotations: {"platform.example.com/team": "vision"}}, '
        "spec: Object.spec{ttlSecondsAfterFinished: 77}}"
    )
    for manifest in a_policy(server, namespace, "rayjobs", patch):
        server.create(manifest)
    kuberay = PlaysKubeRay(server, namespace)

    def changed() -> bool:
        """A policy holds a moment after it is made."""
        probe = rendered(parsed_run(namespace=namespace))[-1]
        made = server.create(probe, dry_run=True)
        return made["spec"].get("ttlSecondsAfterFinished") == 77

    await eventually(changed)
    operator = Operator(settings_for(namespace), credentials_of(server), head.target)
    async with running(operator):
        run = server.create(a_run(namespace))
        (name,) = await eventually(kuberay.jobs)
        kuberay.starts(run)
        await settled(operator, (namespace, "digits"))
        before = kuberay.job(name)
        assert before["metadata"]["annotations"]["platform.example.com/team"] == "vision"
        await settled(operator, (namespace, "digits"))
        status = server.get(API_VERSION, KIND, "digits", namespace)["status"]
    assert kuberay.job(name)["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    assert (kuberay.jobs(), status["attempts"][-1]["number"]) == ([name], 1)
    assert "Failed" not in {c["type"] for c in status["conditions"] if c["status"] == "True"}
