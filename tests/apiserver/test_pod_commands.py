"""`trainingrun dashboard` and `shell` against a real API server: which rights they need."""

import pytest

from support.apiserver import ApiServer
from support.operators import a_run
from trainingrun.rendering import names

READ = [
    {"apiGroups": ["trainingrun.dev"], "resources": ["trainingruns"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
]
CLUSTER = {
    "apiVersion": "ray.io/v1",
    "kind": "RayCluster",
    "name": "digits-1-x",
    "uid": "0d9b7f5e",
    "controller": True,
}
SECRETS = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}


@pytest.fixture
def head(apiserver: ApiServer, namespace: str) -> str:
    """A run whose head has Ray's token as KubeRay gives it; the name of that pod."""
    run = apiserver.create(a_run(namespace))
    reference = {"secretKeyRef": {"name": "digits-1-x", "key": "auth_token"}}
    env = [{"name": "RAY_AUTH_TOKEN", "valueFrom": reference}]
    metadata = {
        "name": "digits-1-head",
        "namespace": namespace,
        "labels": {names.RUN_LABEL: "digits", names.ROLE_LABEL: names.HEAD},
        "ownerReferences": [CLUSTER],
    }
    spec = {"containers": [{"name": names.HEAD_CONTAINER, "image": "none", "env": env}]}
    pod = apiserver.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    seen = {"rayCluster": CLUSTER["uid"], "head": pod["metadata"]["uid"]}
    apiserver.replace({**run, "status": {"seen": seen}}, "status")
    return metadata["name"]


def test_who_may_not_read_rays_token_is_told_which_right_is_missing(
    head: str, call_as, namespace: str
) -> None:
    code, output, errors = call_as(READ, "dashboard", "digits", "--no-browser")
    assert (code, output, errors.count("\n")) == (1, "", 1)
    assert errors.startswith("Ray's token cannot be read: secrets ")
    assert 'cannot get resource "secrets"' in errors
    assert errors.endswith(
        f"ask for the verb get of secrets in namespace {namespace}, or of digits-1-x alone\n"
    )


def test_a_secret_without_a_token_is_named(
    apiserver: ApiServer, head: str, call_as, namespace: str
) -> None:
    rules = [*READ, SECRETS]
    said = f"Ray's token cannot be read: there is no Secret digits-1-x in namespace {namespace}\n"
    assert call_as(rules, "dashboard", "digits") == (1, "", said)
    metadata = {"name": "digits-1-x", "namespace": namespace}
    apiserver.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
    said = (1, "", "Secret digits-1-x holds no usable auth_token\n")
    assert call_as(rules, "dashboard", "digits") == said
