"""What several tests share: an operator, what it works with, and what rights it has."""

import base64
import itertools
from collections.abc import Callable

import pytest

from support.operators import (
    OPERATOR_NAMESPACE,
    PlaysHead,
    PlaysKubeRay,
    configuration_of,
    settings_for,
)
from trainingrun.api.v1alpha1 import API_VERSION, KIND
from trainingrun.cluster.api_client import Connection
from trainingrun.controller.operator import Operator
from trainingrun.controller.tokens import KEY_SECRET, Tokens

RBAC = "rbac.authorization.k8s.io/v1"


@pytest.fixture
def status(apiserver, namespace):
    """Reads the status of a run in the test's namespace; {} before the first is written."""

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
        configuration = await configuration_of(apiserver)
        return Operator(settings_for(namespace, **settings), configuration, head.target)

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
    """Every request of the operator is made as this user."""
    name, real = f"operator-of-{namespace}", Connection._headers

    async def headers(self, content_type):
        return {**await real(self, content_type), "Impersonate-User": name}

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
