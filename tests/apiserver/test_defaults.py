"""TrainingDefaults and ClusterTrainingDefaults on a real API server, with a real operator."""

import asyncio
import contextlib
import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.apiserver import MERGE, ApiError, ApiServer, running_apiserver, said
from support.binaries import kuberay_crds
from support.cli_server import call
from support.operators import (
    OPERATOR_NAMESPACE,
    PlaysKubeRay,
    a_ray_job,
    a_run,
    credentials_of,
    eventually,
    running,
    settings_for,
    watching,
)
from support.permissions import CLUSTER_RULES, OPERATOR_RULES, RUN_RULES
from trainingrun import Client
from trainingrun.api.crd import crd
from trainingrun.api.v1alpha1 import API_VERSION, KIND
from trainingrun.cluster import defaults as defaults_module
from trainingrun.cluster.api_client import Connection, Forbidden, Unauthorized
from trainingrun.cluster.defaults import Defaults
from trainingrun.controller.operator import Operator
from trainingrun.reconciling.attempts import lifetime

DOCUMENT = Path(__file__).parents[2] / "docs" / "defaults.md"
LOCATION = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
BUCKET = {"storage": {"uri": "s3://team/runs"}}


def of_team(namespace: str, **spec: Any) -> dict[str, Any]:
    """The TrainingDefaults of a namespace."""
    return {
        "apiVersion": API_VERSION,
        "kind": "TrainingDefaults",
        "metadata": {"name": "default", "namespace": namespace},
        "spec": spec,
    }


def of_cluster(**spec: Any) -> dict[str, Any]:
    """The ClusterTrainingDefaults."""
    return {
        "apiVersion": API_VERSION,
        "kind": "ClusterTrainingDefaults",
        "metadata": {"name": "default"},
        "spec": spec,
    }


def only_a_function(namespace: str, name: str = "digits", **spec: Any) -> dict[str, Any]:
    """A run without storage."""
    run = a_run(namespace, name, **spec)
    if "storage" not in spec:
        del run["spec"]["storage"]
    return run


@pytest.fixture
def cluster_defaults(apiserver: ApiServer) -> Iterator[Callable[..., dict[str, Any]]]:
    """Creates the ClusterTrainingDefaults; they are gone after the test."""
    yield lambda **spec: apiserver.create(of_cluster(**spec))
    with contextlib.suppress(ApiError):
        apiserver.request("DELETE", apiserver.path(of_cluster()))


def worker_of(job: dict[str, Any]) -> dict[str, Any]:
    """Spec of the worker's pod."""
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    spec: dict[str, Any] = group["template"]["spec"]
    return spec


def image_of(job: dict[str, Any]) -> str:
    return str(worker_of(job)["containers"][0]["image"])


def condition_of(status: dict[str, Any], type_: str) -> dict[str, Any]:
    return next((one for one in status.get("conditions", ()) if one["type"] == type_), {})


def accepted(status: dict[str, Any]) -> dict[str, Any]:
    return condition_of(status, "Accepted")


def test_nothing_is_required_of_them_and_one_name_alone_is_taken(
    apiserver: ApiServer, namespace: str, cluster_defaults
) -> None:
    assert apiserver.create(of_team(namespace))["spec"] == {}
    partial = {
        "storage": {"endpoint": "http://minio"},
        "failures": {"hang": {}, "backoff": {"factor": 3}},
        "budget": {"action": "Suspend"},
        "scheduling": {"queue": {"name": "team"}, "priorityClassName": "low"},
        "maximum": {"workers": 4},
    }
    assert cluster_defaults(**partial)["spec"] == partial, "and nothing is added"
    for one in (of_team(namespace), of_cluster()):
        one["metadata"]["name"] = "other"
        with pytest.raises(ApiError) as refused:
            apiserver.create(one)
        assert "metadata.name" in said(refused.value)
        assert "must be default: one object counts" in said(refused.value)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"storage": {"uri": "runs"}}, "must be a folder in a bucket"),
        ({"image": "two words"}, "must be the reference of an image"),
        ({"failures": {"maxRestarts": -1}}, "should be greater than or equal to 0"),
        ({"workers": {"count": 4}}, 'unknown field "spec.workers.count"'),
        ({"training": {"function": "a:b"}}, 'unknown field "spec.training"'),
        ({"storage": {"restoreFrom": {"run": "a"}}}, 'unknown field "spec.storage.restoreFrom"'),
        ({"podTemplate": {"spec": {"nodeName": "a"}}}, "spec.podTemplate.spec"),
        ({"maximum": {"workers": 0}}, "should be greater than or equal to 1"),
        ({"maximum": {"budgetAmount": 0}}, "must be more than 0; leave budgetAmount out"),
    ],
)
def test_their_fields_are_checked_as_those_of_a_run(
    apiserver: ApiServer, namespace: str, spec: dict[str, Any], says: str
) -> None:
    with pytest.raises(ApiError) as refused:
        apiserver.create(of_team(namespace, **spec))
    assert says in said(refused.value)


def test_a_run_that_an_earlier_crd_has_stored_with_defaults_can_be_replaced(
    apiserver: ApiServer, namespace: str
) -> None:
    """It has them as if its user had set them."""
    run = apiserver.create(
        a_run(
            namespace,
            storage={"uri": "s3://runs/tests", "output": {"maxSize": "1Gi"}},
            workers={
                "capacity": {
                    "type": "Spot",
                    "fallback": {
                        "afterPreemptions": 3,
                        "withinSeconds": 3600,
                        "returnAfterSeconds": 1800,
                    },
                }
            },
        )
    )
    manifest = copy.deepcopy(run)
    del manifest["spec"]["storage"]["output"]
    manifest["spec"]["workers"]["capacity"] = {"type": "Spot", "fallback": {}}
    run = apiserver.replace(manifest)
    assert run["spec"]["storage"]["output"] == {}
    for changed in ({"type": "OnDemand"}, {"type": "Spot", "fallback": {"afterPreemptions": 2}}):
        manifest = copy.deepcopy(run)
        manifest["spec"]["workers"]["capacity"] = changed
        with pytest.raises(ApiError, match="workers cannot change after creation"):
            apiserver.replace(manifest)


def test_the_storage_of_a_run_cannot_be_added_later(apiserver: ApiServer, namespace: str) -> None:
    run = apiserver.create(only_a_function(namespace))
    with pytest.raises(ApiError, match="storage cannot change after creation"):
        apiserver.request("PATCH", apiserver.path(run), {"spec": BUCKET}, MERGE)


async def test_a_run_has_what_its_namespace_and_the_cluster_set_and_keeps_it(
    apiserver, namespace, kuberay, head, new_operator, status, cluster_defaults
):
    cluster_defaults(image="example.com/cluster:1", failures={"maxRestarts": 7, "maxHangs": 7})
    team = of_team(
        namespace,
        **BUCKET,
        failures={"maxHangs": 8, "backoff": {"initialSeconds": 0, "maxSeconds": 0}},
        podTemplate={"spec": {"serviceAccountName": "team"}},
    )
    made = apiserver.create(team)
    async with running(await new_operator()):
        run = apiserver.create(only_a_function(namespace, failures={"maxRestarts": 2}))
        await eventually(lambda: status().get("attempt") == 1)
        job = kuberay.job("digits-1")
        assert image_of(job) == "example.com/cluster:1"
        assert worker_of(job)["serviceAccountName"] == "team"
        assert "s3://team/runs/digits-" in str(job)
        by_team, by_cluster = status()["defaults"]["sources"]
        assert by_team["resourceVersion"] == made["metadata"]["resourceVersion"]
        assert sorted(by_team["fields"]) == [
            "failures.backoff.initialSeconds",
            "failures.backoff.maxSeconds",
            "failures.maxHangs",
            "podTemplate",
            "storage.uri",
        ]
        assert by_cluster["fields"] == ["image"]
        assert status()["defaults"]["spec"]["failures"]["maxRestarts"] == 7
        stored = apiserver.get(API_VERSION, KIND, "digits", namespace)["spec"]
        assert "storage" not in stored, "the run itself stays as it was written"

        # Whatever becomes of the objects, this run goes on with what it had.
        later = copy.deepcopy(made)
        later["spec"]["podTemplate"]["spec"]["serviceAccountName"] = "later"
        later["spec"]["storage"]["uri"] = "s3://elsewhere"
        apiserver.replace(later)
        apiserver.request("DELETE", apiserver.path(of_cluster()))
        kuberay.starts(run)
        head.document = {
            "attempt": 1,
            "fencingToken": 1,
            "state": "Failed",
            "error": {"type": "ValueError", "message": "of the test", "kind": "Application"},
        }
        kuberay.says("digits-1", "FAILED", "Failed")
        await eventually(lambda: kuberay.jobs() == [])
        kuberay.takes_the_pods_away(run)
        await eventually(lambda: status().get("attempt") == 2)
        again = kuberay.job("digits-2")
        assert image_of(again) == "example.com/cluster:1"
        assert worker_of(again)["serviceAccountName"] == "team"
        assert "s3://team/runs/digits-" in str(again)
        assert "s3://elsewhere" not in str(again)

        apiserver.create(only_a_function(namespace, "other"))
        await eventually(lambda: status("other").get("attempt") == 1)
        assert worker_of(kuberay.job("other-1"))["serviceAccountName"] == "later"
        (source,) = status("other")["defaults"]["sources"]
        assert source["generation"] == 2


async def test_a_run_without_storage_is_refused_until_there_are_defaults(
    apiserver, namespace, kuberay, new_operator, status, monkeypatch
):
    monkeypatch.setattr(lifetime, "DEFAULTS_S", 0.3)
    async with running(await new_operator()):
        apiserver.create(only_a_function(namespace))
        condition = await eventually(lambda: accepted(status()))
        assert (condition["status"], condition["reason"]) == ("False", "InvalidSpec")
        assert condition["message"].startswith("spec.storage is missing; add it: the bucket in")
        assert "have TrainingDefaults of its namespace set storage.uri" in condition["message"]
        assert kuberay.jobs() == []
        apiserver.create(of_team(namespace, **BUCKET))
        await eventually(lambda: status().get("attempt") == 1)
        assert accepted(status())["status"] == "True"


async def test_a_run_beyond_a_limit_does_not_begin_and_says_whose_limit_it_is(
    apiserver, namespace, kuberay, new_operator, status, monkeypatch
):
    monkeypatch.setattr(lifetime, "DEFAULTS_S", 0.3)
    team = apiserver.create(of_team(namespace, maximum={"workers": 2}))
    async with running(await new_operator()):
        apiserver.create(a_run(namespace, workers={"count": 3}))
        condition = await eventually(lambda: accepted(status()))
        assert condition["status"] == "False"
        assert condition["message"] == (
            "spec.workers.count is 3; TrainingDefaults default allows at most 2 workers"
        )
        assert kuberay.jobs() == []
        team["spec"]["maximum"]["workers"] = 3
        apiserver.replace(team)
        await eventually(lambda: status().get("attempt") == 1)


async def test_a_ray_job_of_a_former_run_of_its_name_takes_no_run_its_limits(
    apiserver, namespace, kuberay, new_operator, status
):
    former = apiserver.create(a_run(namespace))
    left = a_ray_job(former)
    left["metadata"]["finalizers"] = ["example.com/held"]
    left = apiserver.create(left)
    apiserver.request("DELETE", apiserver.path(left))
    apiserver.request("DELETE", apiserver.path(former))
    apiserver.create(of_team(namespace, maximum={"workers": 2}))
    apiserver.create(a_run(namespace, workers={"count": 3}))
    async with running(await new_operator()):
        condition = await eventually(lambda: accepted(status()))
        assert condition["message"] == (
            "spec.workers.count is 3; TrainingDefaults default allows at most 2 workers"
        )
    apiserver.request("PATCH", apiserver.path(left), {"metadata": {"finalizers": None}}, MERGE)


async def test_a_run_without_defaults_is_as_before(
    apiserver, namespace, kuberay, new_operator, status
):
    async with running(await new_operator()):
        apiserver.create(a_run(namespace))
        await eventually(lambda: status().get("attempt") == 1)
        assert "defaults" not in status()
        apiserver.create(of_team(namespace, image="example.com/later:1"))
        apiserver.create(a_run(namespace, "other"))
        await eventually(lambda: status("other").get("attempt") == 1)
        assert image_of(kuberay.job("other-1")) == "example.com/later:1"
        assert "defaults" not in status(), "the run that had begun has none later either"


async def test_a_confined_operator_goes_by_the_namespace_s_alone(
    apiserver, namespace, kuberay, new_operator, status, grant, cluster_defaults
):
    cluster_defaults(image="example.com/cluster:1")
    apiserver.create(of_team(namespace, podTemplate={"spec": {"serviceAccountName": "team"}}))
    grant(RUN_RULES, namespace)
    grant(OPERATOR_RULES, OPERATOR_NAMESPACE)
    async with running(await new_operator(lease_name="trainingrun-operator")):
        apiserver.create(a_run(namespace))
        await eventually(lambda: status().get("attempt") == 1)
        job = kuberay.job("digits-1")
    assert worker_of(job)["serviceAccountName"] == "team"
    assert image_of(job) != "example.com/cluster:1"


async def test_an_operator_whose_role_is_of_before_begins_runs_as_before(
    apiserver, namespace, kuberay, new_operator, status, grant, monkeypatch
):
    monkeypatch.setattr(defaults_module, "NO_ROLE_AFTER_S", 1.0)
    monkeypatch.setattr(lifetime, "DEFAULTS_S", 0.3)
    apiserver.create(of_team(namespace, image="example.com/team:1"))
    grant([rule for rule in RUN_RULES if rule["resources"] != ["trainingdefaults"]], namespace)
    grant(OPERATOR_RULES, OPERATOR_NAMESPACE)
    async with running(await new_operator(lease_name="trainingrun-operator")):
        apiserver.create(a_run(namespace))
        await eventually(lambda: status().get("attempt") == 1)
        assert image_of(kuberay.job("digits-1")) != "example.com/team:1"


async def test_a_run_waits_where_the_first_read_of_its_defaults_is_refused_and_then_has_them(
    apiserver, namespace, kuberay, new_operator, status, grant, monkeypatch
):
    """As by an API server that is just starting, which knows no roles yet."""
    monkeypatch.setattr(defaults_module, "NO_ROLE_AFTER_S", 60.0)
    monkeypatch.setattr(lifetime, "DEFAULTS_S", 0.3)
    apiserver.create(of_team(namespace, image="example.com/team:1", maximum={"workers": 4}))
    of_defaults = [rule for rule in RUN_RULES if rule["resources"] == ["trainingdefaults"]]
    grant([rule for rule in RUN_RULES if rule not in of_defaults], namespace)
    grant(CLUSTER_RULES)
    grant(OPERATOR_RULES, OPERATOR_NAMESPACE)
    async with running(await new_operator(lease_name="trainingrun-operator")):
        apiserver.create(a_run(namespace))
        waiting = await eventually(lambda: condition_of(status(), "Waiting"))
        assert (waiting["status"], waiting["reason"]) == ("True", "DefaultsUnreadable")
        assert kuberay.jobs() == []
        grant(of_defaults, namespace)
        await eventually(lambda: status().get("attempt") == 1)
        assert image_of(kuberay.job("digits-1")) == "example.com/team:1"


async def test_credentials_that_are_not_taken_say_nothing_of_the_right_to_read_defaults(
    apiserver, namespace, monkeypatch
):
    monkeypatch.setattr(defaults_module, "NO_ROLE_AFTER_S", 0.0)
    apiserver.create(of_team(namespace, image="example.com/team:1"))
    apiserver.create(a_run(namespace))
    real = Connection._headers
    async with watching(apiserver, namespace) as cluster:
        refused = {"Authorization": "Bearer wrong"}
        with monkeypatch.context() as patched:
            patched.setattr(Connection, "_headers", lambda *of: {**real(*of), **refused})
            with pytest.raises(Unauthorized, match="trainingdefaults/default: 401"):
                await cluster.observe(namespace, "digits")
        observed = await cluster.observe(namespace, "digits")
        assert observed.run.spec.image == "example.com/team:1"


async def test_whether_those_of_the_cluster_may_be_read_is_found_out_before_there_are_runs(
    apiserver, namespace, grant, monkeypatch
):
    """Else the first run after each start of a confined operator would wait for it."""
    monkeypatch.setattr(defaults_module, "NO_ROLE_AFTER_S", 0.5)
    monkeypatch.setattr(defaults_module, "FIND_OUT_S", 0.1)
    grant(RUN_RULES, namespace)
    connection = Connection(credentials_of(apiserver))
    try:
        confined = Defaults(connection, confined=True)
        with pytest.raises(Forbidden):
            await confined.of(namespace)
        async with asyncio.timeout(30):
            await confined.find_out()
        assert await confined.of(namespace) == ()
    finally:
        await connection.close()


async def test_a_run_waits_while_defaults_that_could_be_read_before_cannot(
    apiserver, namespace, kuberay, new_operator, status, grant, monkeypatch
):
    monkeypatch.setattr(lifetime, "DEFAULTS_S", 0.3)
    apiserver.create(of_team(namespace, image="example.com/team:1", **BUCKET))
    of_defaults = [rule for rule in RUN_RULES if rule["resources"] == ["trainingdefaults"]]
    grant([rule for rule in RUN_RULES if rule not in of_defaults], namespace)
    take_back = grant(of_defaults, namespace)
    grant(OPERATOR_RULES, OPERATOR_NAMESPACE)
    async with running(await new_operator(lease_name="trainingrun-operator")):
        apiserver.create(only_a_function(namespace))
        await eventually(lambda: status().get("attempt") == 1)
        take_back()
        apiserver.create(only_a_function(namespace, "other"))
        waiting = await eventually(lambda: condition_of(status("other"), "Waiting"))
        assert (waiting["status"], waiting["reason"]) == ("True", "DefaultsUnreadable")
        assert 'trainingdefaults.trainingrun.dev "default" is forbidden' in waiting["message"]
        assert accepted(status("other")) == {}, "nothing is known of its spec"
        grant(of_defaults, namespace)
        await eventually(lambda: status("other").get("attempt") == 1)
        assert image_of(kuberay.job("other-1")) == "example.com/team:1"
        assert condition_of(status("other"), "Waiting")["status"] == "False"


async def test_a_role_that_one_namespace_lacks_takes_no_other_one_its_defaults(apiserver, grant):
    lacking, having = apiserver.new_namespace(), apiserver.new_namespace()
    grant(RUN_RULES, having)
    apiserver.create(of_team(having, image="example.com/team:1"))
    connection = Connection(credentials_of(apiserver))
    try:
        confined = Defaults(connection, confined=True)
        for _ in range(2):
            assert await confined.of(lacking) == ()
            (found,) = await confined.of(having)
            assert found["spec"]["image"] == "example.com/team:1"
        confined = Defaults(connection, confined=True)
        assert await confined.of(having)
        assert await confined.of(lacking) == (), "nor is it held up by another's"
    finally:
        await connection.close()


@pytest.fixture
def before(apiserver: ApiServer) -> Iterator[ApiServer]:
    """A server with the CRDs of before, which has neither kind. Asks for `apiserver` so that it
    skips, or not, alike.
    """
    with running_apiserver() as server:
        for file in kuberay_crds():
            server.install_crd(file.read_text())
        server.install_crd(crd())
        yield server


async def test_where_the_kinds_are_not_installed_runs_begin_as_before(before: ApiServer, head: Any):
    namespace = before.new_namespace()
    kuberay = PlaysKubeRay(before, namespace)
    operator = Operator(settings_for(namespace), credentials_of(before), head.target)
    async with running(operator):
        before.create(a_run(namespace))
        await eventually(lambda: kuberay.jobs() == ["digits-1"])


async def test_the_example_of_the_docs_begins_as_they_say(
    apiserver, namespace, kuberay, new_operator, status, cluster_defaults, monkeypatch, tmp_path
):
    """Each YAML of docs/defaults.md, applied to a namespace of this test."""
    monkeypatch.setattr(LOCATION, str(apiserver.kubeconfig))
    blocks = DOCUMENT.read_text().split("```yaml\n")[1:]
    of_all, team, run = (
        found for block in blocks for found in yaml.safe_load_all(block.partition("```")[0])
    )
    team["metadata"]["namespace"] = run["metadata"]["namespace"] = namespace
    cluster_defaults(**of_all["spec"])
    apiserver.create(team)
    file = tmp_path / "digits.yaml"
    file.write_text(yaml.safe_dump(run))

    code, output, errors = call("validate", str(file))
    assert code == 1
    assert "spec.storage is missing" in errors
    code, output, errors = call("validate", "--namespace", namespace, str(file))
    assert (code, errors) == (0, "")
    assert "digits is valid" in output
    assert "from TrainingDefaults default: " in output
    assert "from ClusterTrainingDefaults default: image, " in output
    code, output, errors = call("render", "--namespace", namespace, str(file))
    assert (code, errors) == (0, "")
    rendered = next(one for one in yaml.safe_load_all(output) if one["kind"] == "RayJob")

    async with running(await new_operator()):
        apiserver.create(run)
        await eventually(lambda: status().get("attempt") == 1)
        job = kuberay.job("digits-1")
    for each in (rendered, job):
        worker = worker_of(each)
        assert image_of(each) == of_all["spec"]["image"]
        assert worker["serviceAccountName"] == "training"
        assert worker["imagePullSecrets"] == [{"name": "registry"}]
        assert each["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
        (source,) = worker["containers"][0]["envFrom"]
        assert source["secretRef"]["name"] == "s3-credentials"


def test_validate_says_which_limit_a_run_exceeds(
    apiserver: ApiServer, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LOCATION, str(apiserver.kubeconfig))
    apiserver.create(of_team(namespace, maximum={"workers": 2}))
    file = tmp_path / "digits.yaml"
    file.write_text(yaml.safe_dump(a_run(namespace, workers={"count": 3})))
    code, _, errors = call("validate", "-n", namespace, str(file))
    assert code == 1
    assert "TrainingDefaults default allows at most 2 workers" in errors


def test_the_command_line_finds_the_folder_of_a_run_that_names_none(
    apiserver: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LOCATION, str(apiserver.kubeconfig))
    run = apiserver.create(only_a_function(namespace))
    code, _, errors = call("metrics", "digits", "-n", namespace)
    assert (code, "has no storage.uri until it begins" in errors) == (1, True)
    run["status"] = {"attempt": 1, "defaults": {"sources": [], "spec": BUCKET}}
    apiserver.replace(run, "status")
    code, output, _ = call("retry", "digits", "--dry-run", "-n", namespace)
    assert code == 0
    assert yaml.safe_load(output)["spec"]["storage"]["uri"] == "s3://team/runs"


def test_a_run_that_leaves_its_bucket_to_its_team_can_be_submitted(
    apiserver: ApiServer, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command and from Python; what is applied is what the user has written."""
    monkeypatch.setattr(LOCATION, str(apiserver.kubeconfig))
    file = tmp_path / "digits.yaml"
    file.write_text(yaml.safe_dump(only_a_function(namespace)))
    submit = ("submit", str(file), "--no-watch", "-n", namespace)
    code, _, errors = call(*submit)
    assert code == 1
    assert "spec.storage is missing" in errors
    apiserver.create(of_team(namespace, **BUCKET))
    code, _, errors = call(*submit)
    assert (code, errors) == (0, "")
    run = Client(namespace=namespace).submit("trainingrun_runtime.examples.linear:train")
    for name in ("digits", run.name):
        assert "storage" not in apiserver.get(API_VERSION, KIND, name, namespace)["spec"]


def test_what_a_user_may_not_read_is_left_out_and_said(
    apiserver: ApiServer, namespace: str, tmp_path: Path, call_as, cluster_defaults
) -> None:
    apiserver.create(of_team(namespace, **BUCKET))
    cluster_defaults(image="example.com/cluster:1")
    file = tmp_path / "digits.yaml"
    file.write_text(yaml.safe_dump(only_a_function(namespace)))
    own = {"apiGroups": ["trainingrun.dev"], "resources": ["trainingdefaults"], "verbs": ["get"]}
    code, output, errors = call_as([own], "validate", str(file))
    assert code == 0
    assert "from TrainingDefaults default: storage.uri" in output
    assert "what ClusterTrainingDefaults default sets is not known: " in errors
    assert "forbidden" in errors
