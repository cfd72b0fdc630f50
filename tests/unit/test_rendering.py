"""What a spec means in pods: capacity, placement, accelerators, queues, grace, exclusions."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from support.goldens import IMAGE, UID, a_run, rendered
from trainingrun import rendering
from trainingrun.api import quantities
from trainingrun.api.pods_spec import DEVICE_RESOURCES
from trainingrun.api.v1alpha1 import TrainingRun
from trainingrun.rendering import names, platforms
from trainingrun_protocol.contract import ContractCode, RunContract


def cluster(
    platform: str = "generic", excluded: tuple[str, ...] = (), **spec: Any
) -> dict[str, Any]:
    ray_job = rendered(a_run(**spec), platform, excluded)[-1]
    found: dict[str, Any] = ray_job["spec"]["rayClusterSpec"]
    return found


def worker(platform: str = "generic", excluded: tuple[str, ...] = (), **workers: Any) -> Any:
    groups = cluster(platform, excluded, workers={"count": 2, **workers})["workerGroupSpecs"]
    return groups[0]["template"]["spec"]


def head(platform: str = "generic", excluded: tuple[str, ...] = (), **spec: Any) -> Any:
    return cluster(platform, excluded, **spec)["headGroupSpec"]["template"]["spec"]


def required_keys(pod: dict[str, Any]) -> set[tuple[str, str]]:
    node = pod["affinity"].get("nodeAffinity", {})
    terms = node.get("requiredDuringSchedulingIgnoredDuringExecution", {"nodeSelectorTerms": []})
    return {
        (expression["key"], expression["operator"])
        for term in terms["nodeSelectorTerms"]
        for expression in term["matchExpressions"]
    }


def tolerated(pod: dict[str, Any]) -> set[str]:
    return {toleration["key"] for toleration in pod["tolerations"]}


every_platform = pytest.mark.parametrize("platform", platforms.KNOWN)


@every_platform
@pytest.mark.parametrize("capacity", ["OnDemand", "Spot", "PreferSpot"])
def test_the_head_keeps_off_spot_nodes(platform: str, capacity: str):
    pod = head(platform, workers={"capacity": {"type": capacity}})
    keys = {key for key, _ in platforms.load(platform).spot.on_demand_excludes}
    assert required_keys(pod) == {(key, "NotIn") for key in keys}
    assert not keys & tolerated(pod)


@every_platform
def test_every_label_that_spot_is_asked_for_by_is_avoided_by_on_demand(platform: str):
    found = platforms.load(platform).spot
    assert set(found.spot_labels) <= set(found.on_demand_excludes)


@every_platform
def test_on_demand_workers_keep_off_spot_nodes(platform: str):
    pod = worker(platform)
    found = platforms.load(platform).spot
    assert required_keys(pod) == {(key, "NotIn") for key, _ in found.on_demand_excludes}


@every_platform
def test_spot_workers_go_to_spot_nodes_only(platform: str):
    pod = worker(platform, capacity={"type": "Spot"})
    found = platforms.load(platform).spot
    assert required_keys(pod) == {(key, "In") for key, _ in found.spot_labels}
    assert {toleration["key"] for toleration in found.tolerations} <= tolerated(pod)


@every_platform
def test_workers_that_prefer_spot_require_it_first_so_that_node_groups_grow(platform: str):
    spot, preferred = (worker(platform, capacity={"type": kind}) for kind in ("Spot", "PreferSpot"))
    assert preferred["affinity"] == spot["affinity"]
    assert preferred["tolerations"] == spot["tolerations"]


def test_workers_that_prefer_spot_and_spread_run_anywhere():
    pod = worker(capacity={"type": "PreferSpot"}, placement="Spread")
    assert required_keys(pod) == set()
    assert "preferredDuringSchedulingIgnoredDuringExecution" in pod["affinity"]["nodeAffinity"]
    assert "trainingrun.dev/capacity" in tolerated(pod)


@pytest.mark.parametrize("capacity", ["OnDemand", "Spot", "PreferSpot"])
def test_every_pod_keeps_off_a_lost_node(capacity: str):
    lost = ("kubernetes.io/hostname", "NotIn")
    pod = worker("aks", ("n1",), capacity={"type": capacity})
    node = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    for term in node["nodeSelectorTerms"]:  # alternatives: each must say it
        assert lost in {(e["key"], e["operator"]) for e in term["matchExpressions"]}
    assert lost in required_keys(head("aks", ("n1",)))


@every_platform
def test_the_hook_ends_within_the_platforms_grace_period(platform: str):
    pod = worker(platform)
    (pre_stop_s,) = [
        variable["value"]
        for variable in pod["containers"][0]["env"]
        if variable["name"] == "TRAININGRUN_NOTICE_SECONDS"
    ]
    assert 0 < int(pre_stop_s) <= pod["terminationGracePeriodSeconds"] - platforms.EXIT_SECONDS


def test_gkes_grace_period_of_15_seconds_is_kept():
    assert worker("gke")["terminationGracePeriodSeconds"] == 15


def test_pods_leave_a_silent_node_long_before_kubernetes_default():
    seconds = [t["tolerationSeconds"] for t in worker()["tolerations"] if "tolerationSeconds" in t]
    assert seconds == [30, 30]


@pytest.mark.parametrize(
    ("kind", "resource", "reported"),
    [
        pytest.param("nvidia", "nvidia.com/gpu", {"GPU": 4}, id="nvidia"),
        pytest.param("amd", "amd.com/gpu", {"GPU": 4}, id="amd"),
        pytest.param("tpu", "google.com/tpu", {"TPU": 4}, id="tpu"),
        pytest.param("gaudi", "habana.ai/gaudi", {"HPU": 4}, id="gaudi"),
        pytest.param("neuron", "aws.amazon.com/neuroncore", {"neuron_cores": 4}, id="neuron"),
    ],
)
def test_accelerators_are_requested_tolerated_and_passed_to_ray(
    kind: str, resource: str, reported: dict[str, int]
):
    group = cluster(workers={"count": 1, "accelerator": {"kind": kind, "count": 4}})[
        "workerGroupSpecs"
    ][0]
    pod = group["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"][resource] == "4"
    assert resource in tolerated(pod)
    params = group["rayStartParams"]
    resources = json.loads(params["resources"].strip("'"))
    if "num-gpus" in params:
        resources["GPU"] = int(params["num-gpus"])
    assert resources == {**reported, "trainingrun_worker": 1}


def test_a_product_selects_nodes_by_the_platforms_own_label():
    wanted = {"accelerator": {"kind": "nvidia", "product": "nvidia-h100-80gb"}}
    assert worker("gke", **wanted)["nodeSelector"] == {
        "cloud.google.com/gke-accelerator": "nvidia-h100-80gb"
    }
    assert worker(**wanted)["nodeSelector"] == {"nvidia.com/gpu.product": "nvidia-h100-80gb"}


def test_placement_is_about_this_attempts_workers():
    strict = worker(placement="StrictPack")["affinity"]["podAffinity"]
    (term,) = strict["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"]["matchLabels"] == {
        names.RUN_LABEL: "digits",
        names.RUN_UID_LABEL: UID,
        names.ATTEMPT_LABEL: "1",
        names.ROLE_LABEL: "worker",
    }
    assert "podAntiAffinity" in worker(placement="StrictSpread")["affinity"]
    assert "topologySpreadConstraints" in worker(placement="Spread")
    assert "podAffinity" in worker(placement="Pack")["affinity"]


def test_spread_comes_before_a_preference_for_spot():
    """To the scheduler, a preferred node label counts as much as an even spread: with that alone
    it put every worker on the one large spot node. With both signs it takes an empty node first.
    """
    pod = worker(placement="Spread", capacity={"type": "PreferSpot"})
    (preferred,) = pod["affinity"]["podAntiAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    (spread,) = pod["topologySpreadConstraints"]
    term = preferred["podAffinityTerm"]
    assert (term["topologyKey"], preferred["weight"]) == (spread["topologyKey"], 100)
    assert term["labelSelector"] == spread["labelSelector"]


def test_a_pod_holds_exactly_one_worker():
    """Else Ray puts two workers of half a CPU into one pod and leaves the other idle."""
    run = a_run(workers={"count": 2, "resources": {"cpu": "500m"}, "placement": "StrictPack"})
    reported = rendering.contract(run, 1, rendering.RenderSettings())
    group = rendered(run)[-1]["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    assert group["rayStartParams"]["resources"] == "'{\"trainingrun_worker\": 1}'"
    assert reported.resources_per_worker["trainingrun_worker"] == 1
    assert reported.placement == "PACK"  # to Ray a pod is a node: STRICT_PACK would never fit


def test_a_pod_of_several_workers_has_what_they_have_together():
    spec = {
        "count": 16,
        "perPod": 8,
        "resources": {"cpu": "1500m", "memory": "2Gi", "sharedMemory": "512Mi", "dataCpus": 3},
        "accelerator": {"kind": "nvidia", "count": 2},
    }
    group = cluster(workers=spec)["workerGroupSpecs"][0]
    assert {group["replicas"], group["minReplicas"], group["maxReplicas"]} == {2}
    pod = group["template"]["spec"]
    wanted = {"cpu": "15", "memory": "16Gi", "nvidia.com/gpu": "16"}
    assert pod["containers"][0]["resources"] == {"requests": wanted, "limits": wanted}
    (shared,) = [volume for volume in pod["volumes"] if volume["name"] == "shared-memory"]
    assert shared["emptyDir"]["sizeLimit"] == "4096Mi"
    assert group["rayStartParams"] == {
        "num-cpus": str(8 * 2 + 3),
        "num-gpus": "16",
        "object-store-memory": str(2 * 2**30),
        "resources": "'{\"trainingrun_worker\": 8}'",
        "include-log-monitor": "0",
    }
    reported = rendering.contract(a_run(workers=spec), 1, rendering.RenderSettings())
    assert reported.workers == 16
    assert reported.resources_per_worker == {"CPU": 2, "GPU": 2, "trainingrun_worker": 1}


@pytest.mark.parametrize(
    ("placement", "alone", "together"),
    [
        pytest.param("Pack", "PACK", "PACK", id="Pack"),
        pytest.param("Spread", "SPREAD", "PACK", id="Spread"),
        pytest.param("StrictPack", "PACK", "PACK", id="StrictPack"),
        pytest.param("StrictSpread", "STRICT_SPREAD", "PACK", id="StrictSpread"),
    ],
)
def test_ray_fills_pods_of_several_workers_and_kubernetes_places_them(
    placement: str, alone: str, together: str
):
    """STRICT_SPREAD would put one worker into each pod, and wait for pods that never come."""
    for per_pod, strategy in ((1, alone), (2, together)):
        run = a_run(workers={"count": 4, "perPod": per_pod, "placement": placement})
        assert rendering.contract(run, 1, rendering.RenderSettings()).placement == strategy
        affinity, spread = rendered(run)[-1], worker(placement=placement)
        group = affinity["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
        assert group["template"]["spec"]["affinity"] == spread["affinity"]


@pytest.mark.parametrize("cpu", ["500m", "1", "7"])
def test_training_leaves_ray_data_as_many_cpus_as_it_takes(cpu: str):
    """Else a trainer's `datasets` wait for ever: training takes every CPU that Ray has."""
    run = a_run(workers={"count": 2, "resources": {"cpu": cpu}})
    taken = rendering.contract(run, 1, rendering.RenderSettings()).resources_per_worker["CPU"]
    group = rendered(run)[-1]["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    assert float(group["rayStartParams"]["num-cpus"]) == 2 * taken >= 2


def test_the_head_trains_nothing():
    assert cluster()["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_the_group_neither_grows_nor_shrinks():
    group = cluster(workers={"count": 5})["workerGroupSpecs"][0]
    assert {group["replicas"], group["minReplicas"], group["maxReplicas"]} == {5}


def test_the_operator_alone_decides_about_retries():
    spec = rendered(a_run())[-1]["spec"]
    assert (spec["backoffLimit"], spec["submissionMode"]) == (0, "HTTPMode")


@pytest.mark.parametrize(
    ("kind", "label", "scheduler"),
    [
        pytest.param("Kueue", "kueue.x-k8s.io/queue-name", None, id="Kueue"),
        pytest.param("Volcano", "volcano.sh/queue-name", "volcano", id="Volcano"),
        pytest.param("YuniKorn", "yunikorn.apache.org/queue", "yunikorn", id="YuniKorn"),
        pytest.param("KAI", "kai.scheduler/queue", "kai-scheduler", id="KAI"),
    ],
)
def test_a_queue_is_named_on_the_ray_job(kind: str, label: str, scheduler: str | None):
    run = a_run(scheduling={"queue": {"kind": kind, "name": "team-a"}})
    ray_job = rendered(run)[-1]
    pod = ray_job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    assert ray_job["metadata"]["labels"][label] == "team-a"
    assert pod.get("schedulerName") == scheduler
    # Kueue ends it when it admits the RayJob; no other queue does, nor knows of it.
    assert ray_job["spec"].get("suspend") == (True if kind == "Kueue" else None)


def labelled(labels: dict[str, str], **spec: Any) -> TrainingRun:
    run = a_run(**spec)
    return run.model_copy(update={"metadata": run.metadata.model_copy(update={"labels": labels})})


KUEUE_LABELS = {"kueue.x-k8s.io/queue-name": "team-a", "kueue.x-k8s.io/priority-class": "high"}


@pytest.mark.parametrize("queue", [None, {"kind": "Kueue", "name": "team-a"}], ids=str)
def test_labels_for_kueue_are_on_the_ray_job_and_on_nothing_that_it_owns(queue: Any):
    run = labelled({"team": "vision", **KUEUE_LABELS}, scheduling={"queue": queue})
    ray_job = rendered(run)[-1]
    labels = ray_job["metadata"]["labels"]
    assert KUEUE_LABELS.items() <= labels.items()
    assert "team" not in labels
    assert ray_job["spec"]["suspend"] is True
    for pod in pods_of(ray_job["spec"]["rayClusterSpec"]):
        assert pod.get("schedulerName") is None
    assert "kueue" not in str(ray_job["spec"])


def test_a_script_is_mounted_on_every_pod_and_can_import_its_neighbors():
    spec = {"training": {"script": {"configMap": "code", "file": "main.py"}}}
    for pod in (
        head(**spec),
        cluster(**spec)["workerGroupSpecs"][0]["template"]["spec"],
    ):
        assert {"name": "script", "configMap": {"name": "code"}} in pod["volumes"]
        assert {"name": "PYTHONPATH", "value": names.SCRIPT_FOLDER} in pod["containers"][0]["env"]
    reported = rendering.contract(a_run(**spec), 1, rendering.RenderSettings())
    assert reported.script == "/etc/trainingrun/script/main.py"


def test_a_script_of_the_image_is_run_with_its_arguments_and_nothing_is_mounted():
    script = {"path": "/app/train.py", "args": ["--lr", "0.1"]}
    found = cluster(training={"script": script})
    for pod in pods_of(found):
        assert {"name": "PYTHONPATH", "value": "/app"} in pod["spec"]["containers"][0]["env"]
        assert "script" not in {volume["name"] for volume in pod["spec"]["volumes"]}
    told = contract_of(found)
    assert (told.script, told.script_args) == ("/app/train.py", ["--lr", "0.1"])


def test_code_is_read_with_the_endpoint_of_the_storage_and_ray_finds_its_script():
    code = {"uri": "s3://runs/code/train.zip"}
    training = {"script": {"path": "src/train.py"}, "code": code, "requirements": ["einops"]}
    storage = {"uri": "s3://runs/a", "endpoint": "http://s3:7070", "region": "eu-west-1"}
    found = cluster(training=training, storage=storage)
    told = contract_of(found)
    assert told.code == ContractCode(endpoint="http://s3:7070", region="eu-west-1", **code)
    assert (told.script, told.requirements) == ("src/train.py", ["einops"])
    for pod in pods_of(found):
        assert "PYTHONPATH" not in {entry["name"] for entry in pod["spec"]["containers"][0]["env"]}


def test_the_contract_of_the_largest_run_is_a_variable_that_linux_takes():
    """It refuses one of 128 KiB, name and terminator included, and the container cannot start."""
    long = "\U00010000" * 1010  # four bytes each

    def a_large_run(config_characters: int) -> TrainingRun:
        script = {"path": "/" + "a" * 1023, "args": ["é" * 4096] * 8}
        return a_run(
            name="a" * 41,
            training={
                "script": script,
                "code": {"uri": f"s3://{long}/.zip"},
                "config": {"a": "x" * config_characters},
            },
            storage={
                "uri": f"s3://{long}",
                "endpoint": f"https://{long}",
                "region": "a" * 63,
                "restoreFrom": {"uri": f"s3://{long}"},
            },
            checkpoints={"best": {"metric": "\U00010000" * 253}},
        )

    with pytest.raises(ValidationError, match="must have at most 102400 bytes together, as JSON"):
        a_large_run(37000)
    variables = pods_of(cluster_of(a_large_run(36000)))[0]["spec"]["containers"][0]["env"]
    for variable in variables:
        as_execve_takes_it = f"{variable['name']}={variable.get('value', '')}\0".encode()
        assert len(as_execve_takes_it) < 128 * 1024


def cluster_of(run: TrainingRun) -> dict[str, Any]:
    found: dict[str, Any] = rendered(run)[-1]["spec"]["rayClusterSpec"]
    return found


def pods_of(found: dict[str, Any]) -> list[Any]:
    """The pod templates of head and workers."""
    groups = (found["headGroupSpec"], *found["workerGroupSpecs"])
    return [group["template"] for group in groups]


def contract_of(found: dict[str, Any]) -> RunContract:
    env = found["headGroupSpec"]["template"]["spec"]["containers"][0]["env"]
    (told,) = (entry["value"] for entry in env if entry["name"] == "TRAININGRUN_CONTRACT")
    return RunContract.model_validate_json(told)


def test_a_users_variable_wins_over_the_tuning():
    env = [{"name": "RAY_health_check_period_ms", "value": "9000"}]
    pod = head(training={"function": "a:b", "env": env})
    found = [v for v in pod["containers"][0]["env"] if v["name"] == "RAY_health_check_period_ms"]
    assert found == env


def test_kuberay_is_asked_for_the_collector_of_its_history_server_where_the_operator_has_one():
    collector = {"image": "quay.io/kuberay/collector:v1.7.0", "env": [{"name": "A", "value": "b"}]}
    settings = rendering.RenderSettings(history_collector=collector)
    cluster = rendering.attempt(a_run(), 1, settings)["spec"]["rayClusterSpec"]
    assert cluster["historyServerOptions"] == {"collectorOptions": collector}
    for none in (None, {}):
        job = rendering.attempt(a_run(), 1, rendering.RenderSettings(history_collector=none))
        assert "historyServerOptions" not in job["spec"]["rayClusterSpec"]


def test_ray_s_detector_of_hangs_is_used_on_nvidia_gpus():
    def variables(**spec: Any) -> dict[str, Any]:
        env = head(**spec)["containers"][0]["env"]
        return {one["name"]: one.get("value") for one in env if "NCCL" in one["name"]}

    assert variables() == {}
    assert variables(workers={"accelerator": {"kind": "amd"}}) == {}
    gpus = {"accelerator": {"kind": "nvidia"}}
    assert variables(workers=gpus) == {
        "RAY_TRAIN_ENABLE_NCCL_HANG_DETECTOR": "1",
        "RAY_TRAIN_NCCL_RAS_ACTION": "fail",
        "RAY_TRAIN_NCCL_RAS_CONFIRM_DURATION_S": "1800",
    }
    found = variables(workers=gpus, failures={"hang": {"afterSeconds": 60, "action": "Report"}})
    assert found["RAY_TRAIN_NCCL_RAS_ACTION"] == "observe"
    assert found["RAY_TRAIN_NCCL_RAS_CONFIRM_DURATION_S"] == "60"


def test_shared_memory_is_a_quarter_of_memory_unless_said():
    def size(**resources: str) -> str:
        volume = worker(resources=resources)["volumes"][0]
        return str(volume["emptyDir"]["sizeLimit"])

    assert size(memory="4Gi") == str(2**30)
    assert size(memory="4Gi", sharedMemory="3Gi") == "3Gi"


def test_the_runtime_reads_its_contract_from_the_head():
    run = a_run(checkpoints={"best": {"metric": "accuracy"}})
    head_env = rendered(run)[-1]["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"][
        "containers"
    ][0]["env"]
    (text,) = [v["value"] for v in head_env if v["name"] == "TRAININGRUN_CONTRACT"]
    assert RunContract.model_validate(json.loads(text)) == rendering.contract(
        run, 1, rendering.RenderSettings(image=IMAGE)
    )


@pytest.mark.parametrize(
    ("checkpoints", "capacity", "told"),
    [
        pytest.param({}, "OnDemand", {"everySeconds": 300.0}, id="default"),
        pytest.param({"everySeconds": 60}, "Spot", {"everySeconds": 60.0}, id="seconds"),
        pytest.param({"everySteps": 500}, "OnDemand", {"everySteps": 500}, id="steps alone"),
        pytest.param(
            {"everySteps": 500, "everySeconds": 60},
            "OnDemand",
            {"everySteps": 500, "everySeconds": 60.0},
            id="both",
        ),
        pytest.param(
            {"everySeconds": "auto"},
            "OnDemand",
            {"assumedSecondsBetweenLosses": 86400.0},
            id="auto",
        ),
        pytest.param(
            {"everySeconds": "auto"},
            "PreferSpot",
            {"assumedSecondsBetweenLosses": 7200.0},
            id="auto on spot nodes",
        ),
    ],
)
def test_the_runtime_learns_when_checkpoints_are_made(
    checkpoints: dict[str, Any], capacity: str, told: dict[str, Any]
):
    run = a_run(checkpoints=checkpoints, workers={"capacity": {"type": capacity}})
    found = rendering.contract(run, 1, rendering.RenderSettings()).checkpoints.to_dict()
    assert found == {"keep": 2, "bestOrder": "max", "keepBest": 1, **told}


def test_two_runs_of_one_name_keep_apart_in_the_bucket():
    assert names.run_folder(a_run(storage={"uri": "s3://runs/team-a/"})) == (
        "s3://runs/team-a/digits-1a2b3c4d"
    )


def test_an_unknown_platform_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="'azure'; use one of generic, gke, eks, karpenter, aks"):
        platforms.known_name("azure")


@pytest.mark.parametrize(
    ("quantity", "number"),
    [
        pytest.param("0", 0, id="none"),
        pytest.param("1", 1, id="whole"),
        pytest.param("500m", 1, id="half"),
        pytest.param("1500m", 2, id="rounded up"),
        pytest.param("1k", 1000, id="k"),
        pytest.param("1.5Gi", 3 * 2**29, id="decimal Gi"),
        pytest.param("2M", 2e6, id="M"),
    ],
)
def test_quantities_are_read_and_rounded_up(quantity: str, number: int):
    assert quantities.whole(quantity) == number


@pytest.mark.parametrize(
    "quantity",
    [
        pytest.param("", id="empty"),
        pytest.param("Gi", id="unit alone"),
        pytest.param("4X", id="unknown unit"),
        pytest.param("4GiGi", id="two units"),
    ],
)
def test_what_is_no_quantity_is_refused(quantity: str):
    with pytest.raises(ValueError, match="quantity"):
        quantities.whole(quantity)


def test_a_sweep_has_no_pods_for_more_trials_than_there_are():
    space = [{"name": "lr", "values": [0.1, 0.2, 0.3]}]
    sweep = {"search": "grid", "metric": "loss", "mode": "min", "concurrency": 8, "space": space}
    found = cluster(sweep=sweep, workers={"count": 4, "perPod": 2})
    assert found["workerGroupSpecs"][0]["replicas"] == 6
    told = contract_of(found).sweep
    assert told is not None
    assert told.concurrency == 3


@every_platform
def test_every_platform_calls_its_devices_as_the_check_of_pod_templates_does(platform: str):
    known = platforms.load(platforms.known_name(platform)).accelerators
    assert {kind: device.resource for kind, device in known.items()} == DEVICE_RESOURCES
