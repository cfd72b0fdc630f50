"""What several tests share: an operator, what it works with, and what rights it has."""

import base64
import itertools
import json
import os
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from support.operators import (
    OPERATOR_NAMESPACE,
    PlaysHead,
    PlaysKubeRay,
    credentials_of,
    settings_for,
)
from trainingrun.api.v1alpha1 import API_VERSION, KIND
from trainingrun.cli.main import app
from trainingrun.cluster import defaults
from trainingrun.cluster.api_client import Connection
from trainingrun.controller.operator import Operator
from trainingrun.controller.tokens import KEY_SECRET, Tokens

RBAC = "rbac.authorization.k8s.io/v1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """$KUBERNETES_VERSION leaves out what a test is about that its API server does not have."""
    minor = int(os.environ.get("KUBERNETES_VERSION", "1.34").split(".")[1])
    newer = [
        item for item in items for mark in item.iter_markers("kubernetes") if mark.args[0] > minor
    ]
    items[:] = [item for item in items if item not in newer]
    config.hook.pytest_deselected(items=newer)


@pytest.fixture
def status(apiserver, namespace):
    """Reads the status of a run in the test's namespace."""

    def read(name: str = "digits") -> dict:
        return apiserver.get(API_VERSION, KIND, name, namespace).get("status") or {}

    return read


@pytest.fixture
def kuberay(apiserver, namespace):
    return PlaysKubeRay(apiserver, namespace)


@pytest.fixture
async def head():
    async with PlaysHead().listening() as listening:
        yield listening


@pytest.fixture
def new_operator(apiserver, namespace, head):
    async def make(**settings) -> Operator:
        credentials = credentials_of(apiserver)
        return Operator(settings_for(namespace, **settings), credentials, head.target)

    return make


@pytest.fixture
def token_secret(apiserver):
    def name(run: dict) -> str:
        secret = apiserver.get("v1", "Secret", KEY_SECRET, OPERATOR_NAMESPACE)
        key = Tokens([base64.b64decode(secret["data"]["key"])]).keys[0]
        return f"{run['metadata']['name']}-{run['metadata']['uid'][:8]}-token-{key}"

    return name


@pytest.fixture
def user(monkeypatch, namespace) -> str:
    """Every request of the operator is made as this user. What it may not read at first it may not
    read at all: no run waits for it.
    """
    monkeypatch.setattr(defaults, "NO_ROLE_AFTER_S", 0.0)
    name, real = f"operator-of-{namespace}", Connection._headers

    def headers(self, content_type):
        return {**real(self, content_type), "Impersonate-User": name}

    monkeypatch.setattr(Connection, "_headers", headers)
    return name


@pytest.fixture
def grant(apiserver, user):
    """Gives the operator rules, in a namespace or in all; the result takes them back."""
    numbers = itertools.count()

    def give(rules: list[dict], namespace: str = "") -> Callable[[], None]:
        prefix = "" if namespace else "Cluster"
        metadata = {"name": f"{user}-{next(numbers)}"} | (
            {"namespace": namespace} if namespace else {}
        )
        role = {"apiVersion": RBAC, "kind": f"{prefix}Role", "metadata": metadata}
        apiserver.create(role | {"rules": rules})
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
        reference = {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": f"{prefix}Role",
            "name": metadata["name"],
        }
        binding = {"apiVersion": RBAC, "kind": f"{prefix}RoleBinding", "metadata": metadata}
        apiserver.create(binding | {"subjects": [subject], "roleRef": reference})
        return lambda: apiserver.request("DELETE", apiserver.path(binding)) and None

    return give


@pytest.fixture
def as_user(apiserver, namespace, tmp_path, monkeypatch):
    """The command line is a service account with these rules in the test's namespace from then."""

    def give(rules: list[dict]) -> None:
        metadata = {"name": f"caller-{len(list(tmp_path.iterdir()))}", "namespace": namespace}
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
        role = {"apiVersion": RBAC, "kind": "Role", "metadata": metadata, "rules": rules}
        group = RBAC.partition("/")[0]
        binding = {
            "apiVersion": RBAC,
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": metadata["name"]},
            "subjects": [{"kind": "ServiceAccount", **metadata}],
        }
        for manifest in (account, role, binding):
            apiserver.create(manifest)
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        answer = apiserver.request("POST", f"{apiserver.path(account)}/token", request)
        config = json.loads(apiserver.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": answer["status"]["token"]}
        path = tmp_path / metadata["name"]
        path.write_text(json.dumps(config))
        location = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
        monkeypatch.setattr(location, str(path))
        monkeypatch.setenv("KUBECONFIG", str(path))

    return give


@pytest.fixture
def call_as(as_user, namespace):
    """Calls the command line as a service account with these rules in the test's namespace."""

    def call(rules: list[dict], *arguments: str) -> tuple[int, str, str]:
        as_user(rules)
        result = CliRunner().invoke(app, [*arguments, "-n", namespace])
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result.exit_code, result.stdout, result.stderr

    return call
