"""`trainingrun logs` against a real API server, which says what a user may not do."""

import json

import pytest
from typer.testing import CliRunner

from support.apiserver import ApiServer
from support.operators import a_run
from trainingrun.cli.main import app
from trainingrun.rendering import names

RBAC = "rbac.authorization.k8s.io"
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
def logs_with(apiserver: ApiServer, namespace: str, tmp_path, monkeypatch):
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

    def call(rules: list[dict]) -> tuple[int, str, str]:
        metadata = {"name": "reader", "namespace": namespace}
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
        role = {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": rules}
        binding = {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "reader"},
            "subjects": [{"kind": "ServiceAccount", **metadata}],
        }
        for manifest in (account, role, binding):
            apiserver.create(manifest)
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        answer = apiserver.request("POST", f"{apiserver.path(account)}/token", request)
        config = json.loads(apiserver.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": answer["status"]["token"]}
        (tmp_path / "config").write_text(json.dumps(config))
        location = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
        monkeypatch.setattr(location, str(tmp_path / "config"))
        result = CliRunner().invoke(app, ["logs", "digits", "-n", namespace])
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result.exit_code, result.stdout, result.stderr

    return call


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
    assert "printed nothing of this" in errors
