"""An operator that may no longer see RayJobs and pods ends nothing and begins nothing."""

from urllib.parse import urlsplit

from support.operators import (
    OPERATOR_NAMESPACE,
    PlaysHead,
    PlaysKubeRay,
    Proxy,
    a_run,
    credentials_of,
    eventually,
    running,
    settings_for,
)
from support.permissions import OPERATOR_RULES, RUN_RULES
from trainingrun.api.v1alpha1 import API_VERSION, KIND
from trainingrun.controller.operator import Operator

HIDDEN = ("rayjobs", "rayclusters", "pods")


def without_news(rules: list[dict]) -> list[dict]:
    """The rules, but for seeing what an attempt is made of."""
    return [
        rule | {"verbs": [verb for verb in rule["verbs"] if verb not in ("list", "watch")]}
        if set(rule["resources"]) & set(HIDDEN)
        else rule
        for rule in rules
    ]


async def test_a_second_attempt_never_begins_beside_one_that_cannot_be_seen(
    apiserver, namespace, grant
):
    grant(OPERATOR_RULES, OPERATOR_NAMESPACE)
    grant(without_news(RUN_RULES), namespace)
    revoke = grant(RUN_RULES, namespace)
    kuberay = PlaysKubeRay(apiserver, namespace)
    proxy = Proxy(urlsplit(apiserver.url).port)
    await proxy.up()

    def status() -> dict:
        return apiserver.get(API_VERSION, KIND, "digits", namespace).get("status", {})

    def waiting() -> dict:
        return next(c for c in status()["conditions"] if c["type"] == "Waiting")

    async with PlaysHead().listening() as head:
        credentials = credentials_of(apiserver, proxy.port)
        settings = settings_for(namespace, lease_name="trainingrun-operator")
        operator = Operator(settings, credentials, head.target)
        async with running(operator):
            run = apiserver.create(a_run(namespace))
            await eventually(lambda: status().get("attempt") == 1)
            kuberay.starts(run)
            head.document = {"attempt": 1, "fencingToken": 1, "state": "Training", "step": 7}
            head.document |= {"worldSize": 1, "time": 1.0}
            await eventually(lambda: status().get("progress", {}).get("step") == 7)
            before = kuberay.job("digits-1")["metadata"]["uid"]

            revoke()
            await proxy.down()
            await proxy.up()
            await eventually(lambda: waiting()["reason"] == "ApiAccessLost")
            assert "does not let the operator watch" in waiting()["message"]
            head.document |= {"step": 8}
            await eventually(lambda: status()["progress"]["step"] == 8)
            grant(RUN_RULES, namespace)
            await eventually(lambda: waiting()["status"] == "False")
            assert status()["attempt"] == 1
            assert status()["attempts"][0]["outcome"] == "Running"
            assert kuberay.jobs() == ["digits-1"]
            assert kuberay.job("digits-1")["metadata"]["uid"] == before
    await proxy.down()
