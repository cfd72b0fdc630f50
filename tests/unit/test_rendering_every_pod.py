"""What every pod of a run gets: its names, its run's labels and annotations, spec.podTemplate."""

from typing import Any

import pytest

from support.goldens import UID, a_run, rendered
from trainingrun.rendering import RenderSettings, contract, names
from trainingrun_protocol.contract import ContractTracking

IDENTITY = {
    "TRAININGRUN_NAME": "digits",
    "TRAININGRUN_NAMESPACE": "team-a",
    "TRAININGRUN_UID": UID,
    "TRAININGRUN_ATTEMPT": "1",
}


def pods(**spec: Any) -> list[Any]:
    return pods_of(rendered(a_run(**spec))[-1])


def pods_of(ray_job: Any) -> list[Any]:
    """The pod templates of head and workers."""
    found = ray_job["spec"]["rayClusterSpec"]
    return [group["template"] for group in (found["headGroupSpec"], *found["workerGroupSpecs"])]


def test_every_pod_names_its_run_and_attempt():
    for pod in pods():
        env = {entry["name"]: entry.get("value") for entry in pod["spec"]["containers"][0]["env"]}
        assert {name: env[name] for name in IDENTITY} == IDENTITY


def test_every_pod_names_the_runs_curve_to_the_tools_that_draw_it():
    own = {"name": "WANDB_PROJECT", "value": "mine"}
    key = {"name": "WANDB_API_KEY", "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "key"}}}
    found = pods(
        training={"function": "a:b", "env": [own, key]},
        tracking={
            "wandb": {"project": "curves", "entity": "team $(HOME)"},
            "mlflow": {"uri": "https://mlflow.example.com", "experiment": "digits"},
        },
    )
    for pod in found:
        env = pod["spec"]["containers"][0]["env"]
        values = {entry["name"]: entry.get("value") for entry in env}
        assert {name: values[name] for name in values if name.startswith(("WANDB", "MLFLOW"))} == {
            "WANDB_RUN_ID": UID,
            "WANDB_RESUME": "allow",
            "WANDB_NAME": "digits",
            "WANDB_PROJECT": "mine",
            "WANDB_ENTITY": "team $$(HOME)",
            "WANDB_API_KEY": None,
            "MLFLOW_TRACKING_URI": "https://mlflow.example.com",
            "MLFLOW_EXPERIMENT_NAME": "digits",
        }
        assert own in env
        assert key in env


def test_the_runtime_is_told_what_it_does_for_these_tools():
    tracking = {"mlflow": {"uri": "databricks"}, "tensorboard": {"everySeconds": 60}}
    told = contract(a_run(tracking=tracking), 1, RenderSettings()).tracking
    assert told == ContractTracking(mlflow=True, tensorboard_every_seconds=60)
    assert contract(a_run(tracking={"wandb": {}}), 1, RenderSettings()).tracking == (
        ContractTracking()
    )
    assert contract(a_run(), 1, RenderSettings()).tracking is None


def test_a_run_without_tracking_has_no_variable_of_these_tools():
    for pod in pods(tracking={"tensorboard": {}}):
        names_of_env = [entry["name"] for entry in pod["spec"]["containers"][0]["env"]]
        assert not [name for name in names_of_env if name.startswith(("WANDB", "MLFLOW"))]


def test_a_pod_template_for_all_comes_before_the_ones_of_head_and_workers():
    common = {"serviceAccountName": "trainer", "priorityClassName": "low"}
    found = pods(
        podTemplate={"spec": common},
        workers={"count": 2, "podTemplate": {"spec": {"priorityClassName": "high"}}},
    )
    accounts = [
        (pod["spec"]["serviceAccountName"], pod["spec"]["priorityClassName"]) for pod in found
    ]
    assert accounts == [("trainer", "low"), ("trainer", "high")]


def test_a_pod_template_for_all_mounts_a_volume_in_the_ray_containers_and_adds_a_sidecar():
    mount = {"name": "data", "mountPath": "/data"}
    common = {
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "images"}}],
        "containers": [
            {"name": "ray-head", "volumeMounts": [mount]},
            {"name": "ray-worker", "volumeMounts": [mount]},
            {"name": "proxy", "image": "proxy:1"},
        ],
    }
    for pod, ray in zip(
        pods(podTemplate={"spec": common}), ("ray-head", "ray-worker"), strict=True
    ):
        containers = pod["spec"]["containers"]
        assert [container["name"] for container in containers] == [ray, "proxy"]
        assert mount in containers[0]["volumeMounts"]
        assert common["volumes"][0] in pod["spec"]["volumes"]


def test_pods_get_their_runs_labels_and_annotations_but_not_those_of_tools():
    run = a_run()
    metadata = run.metadata.model_copy(
        update={
            "labels": {"team": "vision", "kueue.x-k8s.io/queue-name": "q", names.RUN_LABEL: "else"},
            "annotations": {
                "sidecar.istio.io/inject": "false",
                "argocd.argoproj.io/tracking-id": "x",
                "ray.io/overwrite-container-cmd": "false",
                "notkubernetes.io/a": "b",
            },
        }
    )
    ray_job = rendered(run.model_copy(update={"metadata": metadata}))[-1]
    for pod in pods_of(ray_job):
        labels, annotations = pod["metadata"]["labels"], pod["metadata"]["annotations"]
        assert labels["team"] == "vision"
        assert "kueue.x-k8s.io/queue-name" not in labels
        assert labels[names.RUN_LABEL] == "digits"
        assert annotations["sidecar.istio.io/inject"] == "false"
        assert annotations["notkubernetes.io/a"] == "b"
        assert "argocd.argoproj.io/tracking-id" not in annotations
        assert annotations["ray.io/overwrite-container-cmd"] == "true"


def ray_of(pod: Any) -> Any:
    """Ray's container."""
    return pod["spec"]["containers"][0]


def env_of(pod: Any) -> dict[str, Any]:
    found = {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in env_list(pod)}
    assert len(found) == len(env_list(pod)), "the API server refuses two variables of one name"
    return found


def env_list(pod: Any) -> list[Any]:
    found: list[Any] = ray_of(pod)["env"]
    return found


@pytest.mark.parametrize(("grace_s", "notice"), [(600, "595"), (10, "5")])
def test_the_training_is_told_the_grace_period_that_its_pod_really_has(grace_s: int, notice: str):
    for pod in pods(podTemplate={"spec": {"terminationGracePeriodSeconds": grace_s}}):
        assert pod["spec"]["terminationGracePeriodSeconds"] == grace_s
        assert env_of(pod)["TRAININGRUN_NOTICE_SECONDS"] == notice


BOTH_HOOKS = ["bash", "-c", 'trainingrun-prestop; exec "$@"', "preStop"]


@pytest.mark.parametrize(
    ("own", "command"),
    [
        pytest.param({"exec": {"command": ["curl", "quit"]}}, ["curl", "quit"], id="exec"),
        pytest.param({"sleep": {"seconds": 7}}, ["sleep", "7"], id="sleep"),
    ],
)
def test_a_users_own_pre_stop_hook_runs_after_that_of_the_checkpoint(own: Any, command: list[str]):
    containers = [
        {"name": name, "lifecycle": {"preStop": own, "postStart": {"exec": {"command": ["a"]}}}}
        for name in ("ray-head", "ray-worker")
    ]
    for pod in pods(podTemplate={"spec": {"containers": containers}}):
        assert ray_of(pod)["lifecycle"] == {
            "preStop": {"exec": {"command": [*BOTH_HOOKS, *command]}},
            "postStart": {"exec": {"command": ["a"]}},
        }


def test_a_sidecar_keeps_its_own_hook():
    sidecar = {"name": "proxy", "image": "a", "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}
    for pod in pods(podTemplate={"spec": {"containers": [sidecar]}}):
        assert pod["spec"]["containers"][1] == sidecar
        assert ray_of(pod)["lifecycle"]["preStop"] == {"exec": {"command": ["trainingrun-prestop"]}}


SCRIPT = {"script": {"configMap": "code"}}


def test_a_users_search_path_follows_the_scripts_own_folder():
    variable = {"name": "PYTHONPATH", "value": "/opt/libs:/opt/more"}
    containers = [{"name": name, "env": [variable]} for name in ("ray-head", "ray-worker")]
    for found in (
        pods(training={**SCRIPT, "env": [variable]}),
        pods(training=SCRIPT, podTemplate={"spec": {"containers": containers}}),
    ):
        for pod in found:
            assert env_of(pod)["PYTHONPATH"] == f"{names.SCRIPT_FOLDER}:/opt/libs:/opt/more"
    for pod in pods(training={**SCRIPT, "env": [{"name": "PYTHONPATH", "value": ""}]}):
        assert env_of(pod)["PYTHONPATH"] == names.SCRIPT_FOLDER


def test_a_variable_of_the_users_stays_behind_those_that_its_value_may_name():
    """The kubelet knows only what stands before."""
    own = {
        "TEAM": "nlp",
        "RAY_COLOR_PREFIX": "$(TEAM)-1",
        "PYTHONPATH": "/opt",
        "LIBS": "$(PYTHONPATH)/a",
    }
    env = [{"name": name, "value": value} for name, value in own.items()]
    for pod in pods(training={**SCRIPT, "env": env}):
        order = [entry["name"] for entry in env_list(pod)]
        assert len(order) == len(set(order))
        assert [name for name in order if name in own] == [*own]


def test_a_search_path_from_a_config_map_follows_it_too():
    source = {"configMapKeyRef": {"name": "paths", "key": "python"}}
    training = {**SCRIPT, "env": [{"name": "PYTHONPATH", "valueFrom": source}]}
    for pod in pods(training=training):
        env = env_of(pod)
        assert env["PYTHONPATH"] == f"{names.SCRIPT_FOLDER}:$(TRAININGRUN_USERS_PYTHONPATH)"
        assert env["TRAININGRUN_USERS_PYTHONPATH"] == source
        order = [entry["name"] for entry in env_list(pod)]
        # The kubelet knows only what stands before.
        assert order.index("TRAININGRUN_USERS_PYTHONPATH") < order.index("PYTHONPATH")


def test_a_pod_template_cannot_have_kuberay_replace_the_images_entry():
    annotations = {"ray.io/overwrite-container-cmd": "false"}
    for pod in pods(podTemplate={"metadata": {"annotations": annotations}}):
        assert pod["metadata"]["annotations"]["ray.io/overwrite-container-cmd"] == "true"


def test_every_pod_has_the_claim_and_no_pod_template_takes_it_away():
    """A list of mounts that the user has set to null, or whole, would be without it."""
    folder = {"name": "cache", "mountPath": "/cache"}
    overlay = {
        "securityContext": {"runAsUser": 2000, "fsGroup": 2000},
        "volumes": [{"name": "cache", "emptyDir": {}}],
        "containers": [
            {"name": "ray-head", "volumeMounts": [folder]},
            {"name": "ray-worker", "volumeMounts": None},
        ],
    }
    made = pods(storage={"uri": "pvc://runs/team-a"}, podTemplate={"spec": overlay})
    for pod in made:
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        assert volumes["trainingrun-claim"]["persistentVolumeClaim"] == {"claimName": "runs"}
        mounts = {m["name"]: m for m in pod["spec"]["containers"][0]["volumeMounts"]}
        assert mounts["trainingrun-claim"] == {
            "name": "trainingrun-claim",
            "mountPath": "/mnt/claims/runs",
        }
        security = pod["spec"]["securityContext"]
        assert (security["fsGroup"], security["fsGroupChangePolicy"]) == (2000, "OnRootMismatch")
    asked = {"spec": {"securityContext": {"fsGroupChangePolicy": "Always"}}}
    for pod in pods(storage={"uri": "pvc://runs"}, podTemplate=asked):
        assert pod["spec"]["securityContext"]["fsGroupChangePolicy"] == "Always"
    for pod in pods():
        assert "trainingrun-claim" not in str(pod)
        assert "fsGroupChangePolicy" not in pod["spec"]["securityContext"]


@pytest.mark.parametrize(
    ("templates", "context"),
    [
        ([{"privileged": True}, {}], {"privileged": True}),
        ([{"privileged": True}, {"privileged": False}], {"allowPrivilegeEscalation": False}),
        ([{"runAsUser": 5}, {}], {"runAsUser": 5, "allowPrivilegeEscalation": False}),
    ],
    ids=["privileged", "not in the end", "not at all"],
)
def test_kubernetes_takes_a_privileged_container(
    templates: list[dict[str, Any]], context: dict[str, Any]
):
    """Which may not say as well that it must not get more privileges, as others do."""
    every, own = (
        {"spec": {"containers": [{"name": "ray-worker", "securityContext": each}]}}
        for each in templates
    )
    _, workers = pods(podTemplate=every, workers={"podTemplate": own})
    found = ray_of(workers)["securityContext"]
    assert found.pop("capabilities") == {"drop": ["ALL"]}
    assert {**found, **context} == found
    assert ("allowPrivilegeEscalation" in found) is ("allowPrivilegeEscalation" in context)


@pytest.mark.parametrize(
    ("own", "queue"), [({}, "team-a"), ({"metadata": {"labels": {"queue": "theirs"}}}, "theirs")]
)
def test_a_label_of_the_run_is_not_taken_for_the_queue_of_its_pods(own: Any, queue: str):
    """YuniKorn reads the queue from a label of that name; a podTemplate may mean it."""
    run = a_run(scheduling={"queue": {"kind": "YuniKorn", "name": "team-a"}}, podTemplate=own)
    labels = {"queue": "support", "applicationId": "other", "team": "vision"}
    run = run.model_copy(update={"metadata": run.metadata.model_copy(update={"labels": labels})})
    for pod in pods_of(rendered(run)[-1]):
        found = pod["metadata"]["labels"]
        assert (found["queue"], found["applicationId"]) == (queue, "digits-1")
        assert found["team"] == "vision"
