"""What several tests share: reading a run's status, and giving the operator its rights."""

import itertools
from collections.abc import Callable

import pytest
from kubernetes.aio.client import ApiClient

from trainingrun.api.v1alpha1 import API_VERSION, KIND
from trainingrun.cluster.api_client import Connection

RBAC = "rbac.authorization.k8s.io/v1"


@pytest.fixture
def status(apiserver, namespace):
    """Reads the status of a run in the test's namespace; {} before the first is written."""

    def read(name: str = "digits") -> dict:
        return apiserver.get(API_VERSION, KIND, name, namespace).get("status") or {}

    return read


@pytest.fixture
def user(monkeypatch, namespace) -> str:
    """Every request of the operator is made as this user."""
    name, real = f"operator-of-{namespace}", Connection._headers

    async def headers(self, content_type):
        return {**await real(self, content_type), "Impersonate-User": name}

    monkeypatch.setattr(Connection, "_headers", headers)
    real_init = ApiClient.__init__

    def init(self, *arguments, **options):  # the Lease is asked for by way of the library
        real_init(self, *arguments, **options)
        self.set_default_header("Impersonate-User", name)

    monkeypatch.setattr(ApiClient, "__init__", init)
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
