import pytest

from support.apiserver import ApiError, ApiServer


def test_a_run_is_served_with_defaults_by_a_real_api_server(apiserver: ApiServer, namespace: str):
    run = apiserver.create(
        {
            "apiVersion": "trainingrun.dev/v1alpha1",
            "kind": "TrainingRun",
            "metadata": {"name": "digits", "namespace": namespace},
            "spec": {"training": {"function": "a:b"}, "storage": {"uri": "s3://runs/team-a"}},
        }
    )
    assert run["spec"]["workers"]["resources"] == {"cpu": "1", "memory": "2Gi"}


def test_kuberay_is_installed(apiserver: ApiServer, namespace: str):
    listed = apiserver.request("GET", f"/apis/ray.io/v1/namespaces/{namespace}/rayjobs")
    assert listed["kind"] == "RayJobList"


def test_rbac_is_on(apiserver: ApiServer):
    with pytest.raises(ApiError, match="forbidden") as refused:
        apiserver.request("GET", "/api/v1/nodes", as_user="nobody")
    assert refused.value.code == 403
