"""Settings of a script's own trainer: what is used instead is said in a sentence, else nothing."""

from typing import Any

import pytest
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig

from trainingrun_protocol.contract import (
    WORKER_RESOURCE,
    ContractCheckpoints,
    ContractStorage,
    RunContract,
)
from trainingrun_runtime.driver import overruled

FOLDER = "s3://runs/demo/mine-0/checkpoints"
OURS = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1.0, WORKER_RESOURCE: 1.0})


def of_run(config: RunConfig, **checkpoints: Any) -> list[str]:
    contract = RunContract(
        name="mine",
        namespace="default",
        uid="0",
        attempt=1,
        storage=ContractStorage(uri="s3://runs/demo/mine-0"),
        checkpoints=ContractCheckpoints(**checkpoints),
    )
    return overruled.by_run(config, contract, FOLDER)


SCALING = [
    pytest.param(
        {"num_workers": 8},
        "ScalingConfig(num_workers=8) of the script is overruled: 2 is used, which is "
        "workers.count of the TrainingRun",
        id="workers",
    ),
    pytest.param({"num_workers": (2, 8)}, "num_workers=(2, 8)", id="elastic workers"),
    pytest.param({"num_workers": 0}, "num_workers=0", id="Ray's local mode"),
    pytest.param({"use_gpu": True}, "use_gpu=True", id="GPUs"),
    pytest.param(
        {"resources_per_worker": {"CPU": 4}}, "{'CPU': 1.0} is used", id="resources of a worker"
    ),
    pytest.param(
        {"placement_strategy": "SPREAD"},
        "'PACK' is used, which follows from workers.placement",
        id="placement",
    ),
    pytest.param({"accelerator_type": "A100"}, "None is used", id="accelerator"),
    pytest.param({"label_selector": {"zone": "a"}}, "spec.podTemplate", id="labels of nodes"),
]


@pytest.mark.parametrize(("given", "said"), SCALING)
def test_a_scaling_config_is_overruled(given: dict[str, Any], said: str) -> None:
    theirs = ScalingConfig(**{"num_workers": 2, **given})
    (sentence,) = overruled.by_scaling(theirs, OURS)
    assert said in sentence


RUN = [
    pytest.param({"name": "exp"}, "'<attempt>-<fencing token>' is used", id="name"),
    pytest.param({"storage_path": "/mnt/nfs"}, f"'{FOLDER}' is used, since", id="storage"),
    pytest.param(
        {"failure_config": FailureConfig(max_failures=3)},
        "FailureConfig(max_failures=3) of the script is overruled: -1 is used, since a lost worker "
        "is always replaced",
        id="failures",
    ),
    pytest.param(
        {"checkpoint_config": CheckpointConfig(num_to_keep=5)},
        "CheckpointConfig(num_to_keep=5) of the script is overruled: 2 is used, which is "
        "checkpoints.keep",
        id="checkpoints kept",
    ),
    pytest.param(
        {"checkpoint_config": CheckpointConfig(checkpoint_score_attribute="loss")},
        "None is used, which is checkpoints.best.metric",
        id="best checkpoint",
    ),
]


def test_the_best_checkpoints_of_a_script_are_kept_where_the_run_names_no_metric() -> None:
    theirs = CheckpointConfig(
        num_to_keep=3, checkpoint_score_attribute="loss", checkpoint_score_order="min"
    )
    ours = ContractCheckpoints(keep=2)
    kept = overruled.kept(theirs, ours)
    assert (kept.keep, kept.best_metric, kept.best_order, kept.keep_best) == (2, "loss", "min", 3)
    assert of_run(RunConfig(checkpoint_config=theirs), **kept.model_dump()) == []
    assert overruled.kept(CheckpointConfig(num_to_keep=5), ours) == ours
    named = ContractCheckpoints(best_metric="accuracy", best_order="max")
    assert overruled.kept(theirs, named) == named
    said = of_run(RunConfig(checkpoint_config=theirs), best_metric="accuracy", best_order="max")
    assert [sentence.partition(" of the script")[0] for sentence in said] == [
        "CheckpointConfig(num_to_keep=3)",
        "CheckpointConfig(checkpoint_score_attribute='loss')",
        "CheckpointConfig(checkpoint_score_order='min')",
    ]
    assert "1 is used, which is checkpoints.keepBest" in said[0]


@pytest.mark.parametrize(("given", "said"), RUN)
def test_a_run_config_is_overruled(given: dict[str, Any], said: str) -> None:
    (sentence,) = of_run(RunConfig(**given))
    assert said in sentence


def test_a_torch_config_is_overruled() -> None:
    theirs = TorchConfig(backend="nccl", timeout_s=60, init_method="tcp")
    found = overruled.by_torch(theirs, TorchConfig(), TorchConfig(), gpus=False)
    assert [sentence.partition(" of the script")[0] for sentence in found] == [
        "TorchConfig(backend='nccl')",
        "TorchConfig(init_method='tcp')",
        "TorchConfig(timeout_s=60)",
    ]
    assert "'gloo' is used" in found[0]


def test_settings_of_a_connection_are_overruled_without_their_contents() -> None:
    environment = {"env_vars": {"WANDB_API_KEY": "hush"}, "pip": ["hush"]}
    found = overruled.by_connection(
        {"num_cpus": 4, "runtime_env": environment, "_redis_password": "hush"}
    )
    cpus, of_environment, password = found
    assert cpus.startswith("ray.init(num_cpus=4) of the script is overruled: the driver's own")
    assert of_environment.startswith(
        "ray.init(runtime_env={'env_vars': …, 'pip': …}) of the script"
    )
    assert "is training.env, training.requirements and training.code" in of_environment
    assert password.startswith("ray.init(_redis_password=…) of the script is overruled")
    assert "hush" not in str(found)


def test_nothing_is_said_of_what_the_run_has_too_and_of_what_is_honored() -> None:
    theirs = RunConfig(
        checkpoint_config=CheckpointConfig(
            num_to_keep=3, checkpoint_score_attribute="loss", checkpoint_score_order="min"
        ),
        callbacks=[],
        worker_runtime_env={"env_vars": {"A": "1"}},
    )
    assert of_run(theirs, best_metric="loss", best_order="min", keep_best=3) == []
    given = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1})
    assert overruled.by_scaling(given, OURS) == []
    gloo = TorchConfig(backend="gloo")
    assert overruled.by_torch(gloo, TorchConfig(), TorchConfig(), gpus=False) == []


def test_no_credential_of_a_uri_is_said() -> None:
    path = "s3://key:hush@bucket/folder?session_token=hush"
    (sentence,) = of_run(RunConfig(storage_path=path))
    assert "hush" not in sentence
    assert "://…@bucket/folder?…" in sentence
