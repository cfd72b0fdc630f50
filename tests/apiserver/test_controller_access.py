"""The operator works with exactly the rights that `support.permissions` lists."""

import functools

from support.operators import (
    OPERATOR_NAMESPACE,
    PlaysHead,
    PlaysKubeRay,
    a_run,
    credentials_of,
    eventually,
    running,
    settings_for,
)
from support.permissions import CLUSTER_RULES, NODE_LEASE_RULES, OPERATOR_RULES, RUN_RULES
from trainingrun.api.v1alpha1 import API_VERSION, KIND
from trainingrun.controller.operator import Operator


def remove_what_former_tests_left(apiserver) -> None:
    """Or the operator, which watches all namespaces here, would take their runs up again."""
    for run in apiserver.request("GET", f"/apis/{API_VERSION}/trainingruns")["items"]:
        apiserver.request(
            "DELETE", apiserver.path({"apiVersion": API_VERSION, "kind": KIND, **run})
        )


def status_of_run(apiserver, namespace: str) -> dict:
    return apiserver.get(API_VERSION, KIND, "digits", namespace).get("status", {})


async def finish_a_run(apiserver, namespace: str, head: PlaysHead) -> None:
    """A run succeeds, its objects go, and its own time is over a second later."""
    kuberay = PlaysKubeRay(apiserver, namespace)
    run = apiserver.create(a_run(namespace, ttlSecondsAfterFinished=1))
    await eventually(lambda: status_of_run(apiserver, namespace).get("attempt") == 1)
    kuberay.starts(run)
    head.document = {"attempt": 1, "fencingToken": 1, "state": "Succeeded", "result": {}}
    kuberay.says("digits-1", "SUCCEEDED", "Complete")
    await eventually(lambda: kuberay.jobs() == [])
    kuberay.takes_the_pods_away(run)


async def walk_through(apiserver, namespace: str, *namespaces: str) -> dict[tuple[str, str], float]:
    """A run from its beginning to its deletion by TTL; the API calls by method and code."""
    async with PlaysHead().listening() as head:
        settings = settings_for(*namespaces, lease_name="trainingrun-operator")
        if not namespaces:
            remove_what_former_tests_left(apiserver)
            settings = settings_for(namespace, lease_name="trainingrun-operator")
            settings = type(settings)(
                type(settings.operator)(kuberay_check_s=0.3), settings.render, settings.reconcile
            )
        operator = Operator(settings, credentials_of(apiserver), head.target)
        path = f"/apis/{API_VERSION}/namespaces/{namespace}/trainingruns"
        async with running(operator):
            await finish_a_run(apiserver, namespace, head)
            await eventually(lambda: not apiserver.request("GET", path)["items"])
        return {
            (sample.labels["method"], sample.labels["code"]): sample.value
            for metric in operator.metrics.registry.collect()
            if metric.name == "trainingrun_api_requests"
            for sample in metric.samples
            if sample.name.endswith("_total")
        }


async def test_with_the_cluster_wide_rules_nothing_is_refused(apiserver, namespace, grant):
    grant(RUN_RULES)
    grant(CLUSTER_RULES)
    grant(NODE_LEASE_RULES, "kube-node-lease")
    grant(OPERATOR_RULES, OPERATOR_NAMESPACE)
    calls = await walk_through(apiserver, namespace)
    assert [key for key in calls if key[1] == "403"] == []


async def test_confined_to_a_namespace_only_what_lies_in_none_is_refused(
    apiserver, namespace, grant
):
    grant(RUN_RULES, namespace)
    grant(OPERATOR_RULES, OPERATOR_NAMESPACE)
    calls = await walk_through(apiserver, namespace, namespace)
    refused = {key: number for key, number in calls.items() if key[1] == "403"}
    assert list(refused) == [("GET", "403")]
    assert refused["GET", "403"] <= 5, "reported once, not requested again and again"


async def test_a_run_that_may_not_be_deleted_after_its_time_says_so(apiserver, namespace, grant):
    def without_delete(rule: dict) -> dict:
        kept = [verb for verb in rule["verbs"] if verb != "delete"]
        return {**rule, "verbs": kept} if "trainingruns" in rule["resources"] else rule

    grant([without_delete(rule) for rule in RUN_RULES], namespace)
    grant(OPERATOR_RULES, OPERATOR_NAMESPACE)
    async with PlaysHead().listening() as head:
        settings = settings_for(namespace, lease_name="trainingrun-operator")
        operator = Operator(settings, credentials_of(apiserver), head.target)
        async with running(operator):
            await finish_a_run(apiserver, namespace, head)
            status = functools.partial(status_of_run, apiserver, namespace)
            await eventually(lambda: "delete the TrainingRun digits" in str(status()["conditions"]))
        assert status()["phase"] == "Succeeded"
