"""What every pod of a run gets: its names, its run's labels and annotations, spec.podTemplate."""

from typing import Any

from support.goldens import UID, a_run, rendered
from trainingrun.api.contract import ContractTracking
from trainingrun.rendering import RenderSettings, contract, names

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
