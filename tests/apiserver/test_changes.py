from typing import Any

import pytest

from support.apiserver import ApiError, ApiServer
from support.constraints import minimal_run
from trainingrun.api.v1alpha1 import IMMUTABLE, RunSpec

FROZEN: list[tuple[str, dict[str, Any]]] = [
    ("image", {"image": "train:2"}),
    ("training", {"training": {"function": "other:train"}}),
    ("training", {"training": {"function": "examples.digits:train", "config": {"lr": 2}}}),
    ("training", {"training": {"script": {"configMap": "code"}}}),
    ("training", {"training": {"function": "examples.digits:train", "requirements": ["a"]}}),
    (
        "training",
        {"training": {"function": "examples.digits:train", "code": {"uri": "s3://runs/a.zip"}}},
    ),
    ("workers", {"workers": {"count": 2}}),
    ("workers", {"workers": {"podTemplate": {"spec": {"hostname": "b"}}}}),
    ("head", {"head": {"resources": {"cpu": "2"}}}),
    ("podTemplate", {"podTemplate": {"spec": {"serviceAccountName": "trainer"}}}),
    ("storage", {"storage": {"uri": "s3://elsewhere"}}),
    ("storage", {"storage": {"uri": "s3://runs/team-a", "region": "eu-west-1"}}),
    ("storage", {"storage": {"uri": "s3://runs/team-a", "restoreFrom": {"run": "other"}}}),
    ("tracking", {"tracking": {"wandb": {"project": "digits"}}}),
    ("tracking", {"tracking": {"mlflow": {"uri": "https://mlflow.example.com"}}}),
    ("tracking", {"tracking": {"tensorboard": {}}}),
    (
        "sweep",
        {
            "sweep": {
                "samples": 2,
                "metric": "loss",
                "mode": "min",
                "space": [{"name": "lr", "values": [0.1]}],
            }
        },
    ),
    ("scheduling", {"scheduling": {"priorityClassName": "high"}}),
]
FREE: list[tuple[str, dict[str, Any]]] = [
    ("suspend", {"suspend": True}),
    ("budget", {"budget": {"amount": 800}}),
    ("failures", {"failures": {"maxRestarts": 9, "backoff": {"initialSeconds": 1}}}),
    ("checkpoints", {"checkpoints": {"keep": 5, "best": {"metric": "loss"}}}),
    ("checkpoints", {"checkpoints": {"everySeconds": "auto", "everySteps": 1000}}),
    (
        "notify",
        {"notify": [{"events": ["Failed"], "webhook": {"secretRef": {"name": "a", "key": "url"}}}]},
    ),
    ("activeDeadlineSeconds", {"activeDeadlineSeconds": 60}),
    ("ttlSecondsAfterFinished", {"ttlSecondsAfterFinished": 60}),
]


@pytest.mark.parametrize(("field", "change"), FROZEN, ids=lambda part: str(part)[:40])
def test_what_checkpoints_depend_on_cannot_change(
    apiserver: ApiServer, namespace: str, field: str, change: dict[str, Any]
):
    apiserver.create(minimal_run(namespace))
    with pytest.raises(ApiError) as refused:
        apiserver.apply(minimal_run(namespace, **change))
    assert f"{field} cannot change after creation; delete this TrainingRun" in str(refused.value)


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"hostname": "b", "containers": [{"name": "proxy", "image": "a"}]}},
        {"spec": {"hostname": "a", "containers": [{"name": "proxy", "image": "b"}]}},
    ],
    ids=str,
)
def test_nor_can_what_of_a_pod_template_only_kubernetes_knows(
    apiserver: ApiServer, namespace: str, change: dict[str, Any]
):
    template = {"spec": {"hostname": "a", "containers": [{"name": "proxy", "image": "a"}]}}
    apiserver.create(minimal_run(namespace, podTemplate=template))
    with pytest.raises(ApiError, match="podTemplate cannot change after creation"):
        apiserver.apply(minimal_run(namespace, podTemplate=change))


def test_an_optional_field_cannot_be_taken_away(apiserver: ApiServer, namespace: str):
    run = apiserver.create(minimal_run(namespace, image="train:1"))
    del run["spec"]["image"]
    with pytest.raises(ApiError, match="image cannot change after creation"):
        apiserver.replace(run)


@pytest.mark.parametrize(("field", "change"), FREE, ids=lambda part: str(part)[:40])
def test_everything_else_can_change_and_change_back(
    apiserver: ApiServer, namespace: str, field: str, change: dict[str, Any]
):
    before = apiserver.create(minimal_run(namespace))
    changed = apiserver.apply(minimal_run(namespace, **change))
    assert changed["spec"][field] != before["spec"].get(field)
    changed["spec"] = before["spec"]
    assert apiserver.replace(changed)["spec"] == before["spec"]


def test_the_same_manifest_can_be_applied_again(apiserver: ApiServer, namespace: str):
    run = minimal_run(namespace, workers={"count": 2}, image="train:1")
    first = apiserver.apply(run)
    assert apiserver.apply(run)["metadata"]["generation"] == first["metadata"]["generation"]


@pytest.mark.parametrize(
    ("field", "before", "after"),
    [
        ("workers", {"resources": {"cpu": 4}}, {"resources": {"cpu": "4"}}),
        ("workers", {"resources": {"cpu": "500m"}}, {"resources": {"cpu": "0.5"}}),
        ("workers", {"resources": {"memory": "2Gi"}}, {"resources": {"memory": "2048Mi"}}),
        ("head", {"resources": {"cpu": "2", "memory": "4Gi"}}, {"resources": {"cpu": 2}}),
        (
            "workers",
            {"resources": {"memory": "2Gi", "sharedMemory": "1Gi"}},
            {"resources": {"memory": "2Gi", "sharedMemory": "1024Mi"}},
        ),
    ],
    ids=str,
)
def test_the_same_quantity_written_otherwise_is_no_change(
    apiserver: ApiServer,
    namespace: str,
    field: str,
    before: dict[str, Any],
    after: dict[str, Any],
):
    run = apiserver.create(minimal_run(namespace, **{field: before}))
    run["spec"][field] = minimal_run(namespace, **{field: after})["spec"][field]
    apiserver.replace(run)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"resources": {"cpu": 4}}, {"resources": {"cpu": "4m"}}),
        ({"resources": {"cpu": 4}}, {"resources": {"cpu": 5}}),
        ({"resources": {"memory": "2Gi"}}, {"resources": {"memory": "2G"}}),
        ({"resources": {"memory": "2Gi", "sharedMemory": "1Gi"}}, {"resources": {}}),
        ({"resources": {"dataCpus": 1}}, {"resources": {"dataCpus": 2}}),
        ({"placement": "Pack"}, {"placement": "Spread"}),
        ({"capacity": {"type": "Spot"}}, {"capacity": {"type": "PreferSpot"}}),
        ({"podTemplate": {"spec": {"serviceAccountName": "a"}}}, {}),
    ],
    ids=str,
)
def test_another_value_of_a_worker_is_a_change(
    apiserver: ApiServer, namespace: str, before: dict[str, Any], after: dict[str, Any]
):
    run = apiserver.create(minimal_run(namespace, workers=before))
    run["spec"]["workers"] = after
    with pytest.raises(ApiError, match="workers cannot change after creation"):
        apiserver.replace(run)


def test_a_malformed_quantity_gets_its_own_sentence(apiserver: ApiServer, namespace: str):
    run = apiserver.create(minimal_run(namespace, workers={"resources": {"cpu": 4}}))
    run["spec"]["workers"]["resources"]["cpu"] = "four"
    with pytest.raises(ApiError, match="must be a quantity of cores"):
        apiserver.replace(run)


def test_every_field_is_known_to_be_frozen_or_free():
    tried = {field for field, _ in FROZEN + FREE}
    assert tried == {field.alias for field in RunSpec.model_fields.values()}
    assert {field for field, _ in FROZEN} == set(IMMUTABLE)
