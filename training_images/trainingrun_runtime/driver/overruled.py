"""Which settings of a script's own trainer are overruled, as sentences for its user."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ray.train import BackendConfig, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig

from trainingrun_protocol.contract import WORKER_RESOURCE, ContractCheckpoints, RunContract

LONGEST_VALUE = 200
"""Characters of a value in a sentence."""

MOST_KEPT = 1000
"""Best checkpoints that are kept where a script has a score and no `num_to_keep`."""
OWN_FOLDER = "<attempt>-<fencing token>"
"""The name of each driver's folder, in a sentence that is the same in all attempts."""
_NAMED_BY_RAY = re.compile(r"ray_train_run-[0-9_-]+")

_SCALING = {
    "placement_strategy": "which follows from workers.placement and workers.perPod",
    "accelerator_type": "since workers.accelerator.product of the TrainingRun chooses the nodes",
    "topology": "since spec.podTemplate of the TrainingRun chooses the nodes",
    "label_selector": "since spec.podTemplate of the TrainingRun chooses the nodes",
}
_FIXED = {
    "num_workers": "which is workers.count of the TrainingRun",
    "elastic_resize_monitor_interval_s": "since the number of workers does not change",
}
_BOUNDS = "which is workers.count of the TrainingRun; workers.minimum is not set"
_ELASTIC = {
    "num_workers": "which are workers.minimum and workers.count of the TrainingRun",
    "elastic_resize_monitor_interval_s": "which is workers.resizeSeconds of the TrainingRun",
}
_RESOURCES = "which follows from workers.resources and workers.accelerator of the TrainingRun"
_FAILURES = (
    "since a lost worker is always replaced, and errors of the code are counted by "
    "failures.maxRestarts of the TrainingRun"
)
_PREEMPTION = "since every rank saves its part before the pod ends"
_FAILURE = {
    "relax_collectives_on_preemption": _PREEMPTION,
    "preemption_grace_s": _PREEMPTION,
}
_CHECKPOINT = {
    "checkpoint_score_attribute": "which is checkpoints.best.metric of the TrainingRun",
    "checkpoint_score_order": "which is checkpoints.best.order of the TrainingRun",
}
_KEPT = {
    True: "which is checkpoints.keepBest of the TrainingRun, beside the newest ones",
    False: "which is checkpoints.keep of the TrainingRun",
}
"""By whether the script has a score: then Ray keeps as many of the best."""
_CONNECTION = "the driver's own connection is used, which is made before the script begins"
_INIT = {
    "runtime_env": (
        "the run's own environment is used, which is training.env, training.requirements and "
        "training.code of the TrainingRun; the script may set RunConfig.worker_runtime_env"
    ),
}
_TORCH = {
    "backend": "which is training.torch.backend of the TrainingRun",
    "timeout_s": "which is training.torch.timeoutSeconds of the TrainingRun",
}


def by_scaling(theirs: ScalingConfig, ours: ScalingConfig) -> list[str]:
    """Sentences about each field of a script's ScalingConfig that `ours` overrules."""
    used = _values(ours)
    # The resource by which Ray finds the workers' nodes is no setting of anybody's.
    used["resources_per_worker"] = {
        name: number
        for name, number in (ours.resources_per_worker or {}).items()
        if name != WORKER_RESOURCE
    }
    of_number = dict(_ELASTIC if ours.elasticity_enabled else _FIXED)
    if theirs.elasticity_enabled and not ours.elasticity_enabled:
        of_number["num_workers"] = _BOUNDS
    elif ours.elasticity_enabled and theirs.num_workers == ours.max_workers:
        used["num_workers"] = theirs.num_workers  # the most that there are, which it means too
    return list(_overruled(theirs, ScalingConfig(), used, _SCALING | of_number, _RESOURCES))


def by_torch(
    theirs: BackendConfig, ours: BackendConfig, defaults: BackendConfig, *, gpus: bool
) -> list[str]:
    """Sentences about each field of a script's TorchConfig that `ours` overrules.

    Args:
        theirs: of the script's trainer.
        ours: what is used.
        defaults: a TorchConfig with no field set.
        gpus: whether the workers have some: PyTorch then chooses nccl where nothing is set.
    """
    used = _values(ours)
    used["backend"] = used["backend"] or ("nccl" if gpus else "gloo")
    why = "as for every TrainingRun"
    return list(_overruled(theirs, defaults, used, _TORCH, why))


def by_jax(theirs: BackendConfig, ours: BackendConfig, by_ray: BackendConfig) -> list[str]:
    """Sentences about each field of a script's JaxConfig that `ours` overrules.

    Args:
        theirs: of the script's trainer.
        ours: what is used.
        by_ray: what Ray makes of the script's ScalingConfig where it has no JaxConfig.
    """
    return list(_overruled(theirs, by_ray, _values(ours), {}, _RESOURCES))


def by_run(theirs: RunConfig, contract: RunContract, folder: str) -> list[str]:
    """Sentences about each field of a script's RunConfig that the contract overrules.

    Args:
        theirs: of the script's trainer, with its FailureConfig and CheckpointConfig.
        contract: the operator's settings of this attempt.
        folder: URI below which this run's checkpoints are.
    """
    used = {"name": OWN_FOLDER, "storage_path": folder, "storage_filesystem": "that of storage.uri"}
    given = {
        field: value
        for field, value in _values(theirs).items()
        if field in used and not _NAMED_BY_RAY.fullmatch(str(value))
    }
    if given.get("storage_filesystem") is not None:
        given["storage_filesystem"] = type(given["storage_filesystem"]).__name__
    where = "since the run's checkpoints are below storage.uri of the TrainingRun"
    checkpoints = contract.checkpoints
    by_metric = theirs.checkpoint_config.checkpoint_score_attribute is not None
    kept = {
        "num_to_keep": checkpoints.keep_best if by_metric else checkpoints.keep,
        "checkpoint_score_attribute": checkpoints.best_metric,
        "checkpoint_score_order": checkpoints.best_order,
    }
    failures = _values(ray_failures())
    why = {**_CHECKPOINT, "num_to_keep": _KEPT[by_metric]}
    return [
        *_overruled(given, RunConfig(), used, {}, where),
        *_overruled(theirs.failure_config, FailureConfig(), failures, _FAILURE, _FAILURES),
        *_overruled(theirs.checkpoint_config, CheckpointConfig(), kept, why, where),
    ]


def kept(theirs: CheckpointConfig, ours: ContractCheckpoints) -> ContractCheckpoints:
    """Which checkpoints are kept: a script's best ones too, where the TrainingRun names no metric.

    Args:
        theirs: of the script's trainer.
        ours: of the TrainingRun.
    """
    if theirs.checkpoint_score_attribute is None or ours.best_metric is not None:
        return ours
    return ours.model_copy(
        update={
            "best_metric": theirs.checkpoint_score_attribute,
            "best_order": theirs.checkpoint_score_order,
            "keep_best": theirs.num_to_keep or MOST_KEPT,
        }
    )


def by_connection(settings: Mapping[str, Any]) -> list[str]:
    """Sentences about the settings of a script's `ray.init`, none of which is used.

    Args:
        settings: by their names; of those with fields, only the names are said.
    """
    return [
        f"ray.init({name}={_named(value)}) of the script is overruled: "
        f"{_INIT.get(name, _CONNECTION)}"
        for name, value in settings.items()
    ]


def ray_failures() -> FailureConfig:
    """Ray replaces lost workers without limit; what ends an attempt is for `AttemptPolicy`."""
    return FailureConfig(max_failures=-1, controller_failure_limit=-1)


def _overruled(
    theirs: Any, defaults: Any, used: Mapping[str, Any], why: Mapping[str, str], otherwise: str
) -> Iterator[str]:
    by_default = _values(defaults)
    for field, value in (theirs if isinstance(theirs, Mapping) else _values(theirs)).items():
        if value not in (by_default.get(field), used.get(field)):
            yield (
                f"{type(defaults).__name__}({field}={_shown(value)}) of the script is overruled: "
                f"{_shown(used.get(field))} is used, {why.get(field, otherwise)}"
            )


def _values(config: Any) -> dict[str, Any]:
    if not dataclasses.is_dataclass(config):
        return {}
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}


def _named(value: Any) -> str:
    """The value, but of fields such as environment variables only which there are."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name!r}: …' for name in value)}}}"[:LONGEST_VALUE]
    return _shown(value) if isinstance(value, (bool, int, float)) else "…"


def _shown(value: Any) -> str:
    """The value on one line, without what a URI holds of credentials."""
    text = re.sub(r"://[^/\s'\"]*@", "://…@", repr(value))
    text = re.sub(r"(://[^\s'\"?]*)\?[^\s'\"]*", r"\1?…", text)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"
