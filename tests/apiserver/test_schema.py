from pathlib import Path
from typing import Any

import pytest

from support.apiserver import ApiError, ApiServer, said
from support.constraints import MINIMAL, minimal_run
from trainingrun.api.parse import InvalidRunError, parse
from trainingrun.api.status import Condition, RunStatus


def test_the_api_server_fills_in_the_same_defaults_as_the_models(
    apiserver: ApiServer, namespace: str
):
    served = parse(apiserver.create(minimal_run(namespace)))
    assert served.spec == parse(MINIMAL).spec


def test_a_null_is_a_field_that_is_not_set_here_and_there(apiserver: ApiServer, namespace: str):
    run = minimal_run(
        namespace,
        training={"function": "a:b", "env": None, "config": None},
        workers={"count": None, "podTemplate": None},
        failures={"hang": None},
        checkpoints=None,
        suspend=None,
    )
    run["metadata"] |= {"labels": None, "annotations": None}
    assert parse(run).spec == parse(apiserver.create(run)).spec
    run["spec"]["wrokers"] = None
    with pytest.raises(ApiError, match="unknown field"):
        apiserver.create(run)
    with pytest.raises(InvalidRunError, match="did you mean workers"):
        parse(run)


def test_a_partly_given_object_gets_the_other_defaults(apiserver: ApiServer, namespace: str):
    run = apiserver.create(
        minimal_run(namespace, workers={"count": 3}, checkpoints={"everySteps": 5})
    )
    assert run["spec"]["workers"]["resources"] == {"cpu": "1", "memory": "2Gi"}
    assert run["spec"]["checkpoints"] == {"keep": 2, "everySteps": 5}


def test_what_is_inherited_stays_unset(apiserver: ApiServer, namespace: str):
    """A default of the API server's would look as if the run had set the field."""
    run = apiserver.create(minimal_run(namespace, failures={"backoff": {"factor": 3}}))
    assert run["spec"]["failures"] == {"backoff": {"factor": 3}, "hang": {}}
    assert run["spec"]["workers"]["capacity"] == {}
    assert run["spec"]["storage"] == {"uri": "s3://runs/team-a", "output": {}}


def test_free_form_objects_keep_every_field(apiserver: ApiServer, namespace: str):
    config = {"lr": 0.1, "layers": [1, {"deep": None}], "nested": {"a": True}}
    run = apiserver.create(
        minimal_run(
            namespace,
            training={"function": "a:b", "config": config},
            workers={"podTemplate": {"spec": {"nodeSelector": {"a": "b"}}}},
        )
    )
    assert run["spec"]["training"]["config"] == config
    assert run["spec"]["workers"]["podTemplate"]["spec"]["nodeSelector"] == {"a": "b"}


@pytest.mark.parametrize("path", ["spec.wrokers", "spec.workers.replicas", "spec.storage.secret"])
def test_an_unknown_field_is_refused_by_name(apiserver: ApiServer, namespace: str, path: str):
    run = minimal_run(namespace, workers={})
    *parents, last = path.split(".")
    place: Any = run
    for part in parents:
        place = place[part]
    place[last] = {}
    with pytest.raises(ApiError, match=f'unknown field "{path}"'):
        apiserver.create(run)


def test_a_repeated_environment_variable_is_named(apiserver: ApiServer, namespace: str):
    twice = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
    with pytest.raises(ApiError) as refused:
        apiserver.create(minimal_run(namespace, training={"function": "a:b", "env": twice}))
    assert 'spec.training.env[1]: Duplicate value: {"name":"A"}' in said(refused.value)


def test_credentials_in_a_url_are_refused_without_being_repeated(
    apiserver: ApiServer, namespace: str
):
    with pytest.raises(ApiError) as refused:
        apiserver.create(minimal_run(namespace, storage={"uri": "s3://key:hunter2@runs"}))
    assert "hunter2" not in str(refused.value)
    assert "credentialsSecret" in str(refused.value)


def test_the_status_is_a_subresource_that_users_do_not_write(apiserver: ApiServer, namespace: str):
    run = minimal_run(namespace)
    created = apiserver.create({**run, "status": {"phase": "Succeeded"}})
    assert created["status"] == {"observedGeneration": -1}


def test_runs_can_be_listed_by_suspend_and_by_phase(apiserver: ApiServer, namespace: str):
    """From Kubernetes 1.31 on, see docs/gitops.md."""
    created = apiserver.create(minimal_run(namespace))
    other = minimal_run(namespace, suspend=True)
    other["metadata"]["name"] = "other"
    apiserver.create(other)
    apiserver.replace({**created, "status": {"phase": "Running"}}, "status")
    for selector, names in (
        ("spec.suspend=true", ["other"]),
        ("spec.suspend=false", ["digits"]),
        ("status.phase=Running", ["digits"]),
    ):
        path = f"{apiserver.path(other, '')}?fieldSelector={selector}"
        if apiserver.minor < 31:
            with pytest.raises(ApiError, match="field label not supported"):
                apiserver.request("GET", path)
            continue
        found = apiserver.request("GET", path)["items"]
        assert [one["metadata"]["name"] for one in found] == names, selector


def test_a_status_comes_back_as_it_was_written(apiserver: ApiServer, namespace: str):
    created = apiserver.create(minimal_run(namespace))
    condition = Condition(
        type="Ready", status="True", reason="Training", last_transition_time="2026-01-01T00:00:00Z"
    )
    status = RunStatus(
        phase="Running",
        conditions=[condition],
        seen={"pods": ["a"]},
        goodput={"productive_seconds": 1.5},
        progress={"step": 1, "ranks": [{"rank": 0, "step_seconds": 0.5}, {"rank": 1}]},
    )
    written = apiserver.replace({**created, "status": status.to_dict()}, "status")
    assert written["status"] == status.to_dict()
    assert RunStatus.model_validate(written["status"]) == status


def test_a_status_write_with_an_old_version_is_refused(apiserver: ApiServer, namespace: str):
    created = apiserver.create(minimal_run(namespace))
    apiserver.replace({**created, "status": {"phase": "Running"}}, "status")
    with pytest.raises(ApiError) as refused:
        apiserver.replace({**created, "status": {"phase": "Failed"}}, "status")
    assert refused.value.code == 409


def test_a_list_shows_where_each_run_stands(apiserver: ApiServer, namespace: str):
    created = apiserver.create(minimal_run(namespace))
    status = RunStatus(
        phase="Running",
        attempt=2,
        progress={"step": 480, "percent": 80},
        disruptions={"preemptions": 3},
        goodput={"percent": 91},
    )
    apiserver.replace({**created, "status": status.to_dict()}, "status")
    table = apiserver.request(
        "GET",
        f"/apis/trainingrun.dev/v1alpha1/namespaces/{namespace}/trainingruns",
        accept="application/json;as=Table;g=meta.k8s.io;v=v1",
    )
    shown = [column["name"] for column in table["columnDefinitions"] if not column["priority"]]
    assert shown[1:] == [
        "Phase",
        "Progress%",
        "Step",
        "Attempt",
        "Preemptions",
        "Goodput%",
        "Age",
    ]
    assert table["rows"][0]["cells"][1:7] == ["Running", 80, 480, 2, 3, 91]


def test_the_short_name_and_the_category_are_served(apiserver: ApiServer):
    resources = apiserver.request("GET", "/apis/trainingrun.dev/v1alpha1")["resources"]
    (run,) = (resource for resource in resources if resource["name"] == "trainingruns")
    assert run["shortNames"] == ["tr"]
    assert run["categories"] == ["all"]


def test_the_generated_file_can_be_applied(apiserver: ApiServer):
    folder = Path(__file__).parents[2] / "charts/trainingrun-operator/files/crds"
    apiserver.install_crd((folder / "trainingruns.yaml").read_text())
