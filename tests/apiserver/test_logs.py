"""`trainingrun logs` against a real API server, which says what a user may not do."""

import pytest

from support.apiserver import ApiServer
from support.operators import a_run
from trainingrun.rendering import names

READ = [
    {"apiGroups": ["trainingrun.dev"], "resources": ["trainingruns"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
]
LOG = {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]}
CLUSTER = {
    "apiVersion": "ray.io/v1",
    "kind": "RayCluster",
    "name": "digits-1-x",
    "uid": "0d9b7f5e",
    "controller": True,
}


@pytest.fixture
def logs_with(apiserver: ApiServer, namespace: str, call_as):
    """Calls the command as a user with these rules; exit code, output and errors."""
    run = apiserver.create(a_run(namespace))
    apiserver.replace(
        {**run, "status": {"attempt": 1, "seen": {"rayCluster": CLUSTER["uid"]}}}, "status"
    )
    labels = {names.RUN_LABEL: "digits", names.ROLE_LABEL: names.HEAD}
    container = {"name": names.HEAD_CONTAINER, "image": "none"}
    head = {
        "name": "digits-1-head",
        "namespace": namespace,
        "labels": labels,
        "ownerReferences": [CLUSTER],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": head}
    apiserver.create({**pod, "spec": {"containers": [container]}})

    return lambda rules: call_as(rules, "logs", "digits")


def test_without_the_right_to_read_logs_the_missing_right_is_said(
    logs_with, namespace: str
) -> None:
    code, output, errors = logs_with(READ)
    assert (code, output) == (1, "")
    assert errors.count("\n") == 1
    assert 'cannot get resource "pods/log"' in errors
    assert errors.endswith(f"; ask for the verb get of pods/log in namespace {namespace}\n")


def test_the_view_right_alone_reads_logs(logs_with) -> None:
    code, output, errors = logs_with([*READ, LOG])
    assert (code, output) == (0, "")  # no node runs pods here
    assert "former pods of digits printed is not shown; it is in s3://" in errors
