"""The contract that the runtime reads about an attempt."""

from pathlib import PurePosixPath
from typing import Literal

from trainingrun_protocol.contract import (
    WORKER_RESOURCE,
    ContractCheckpoints,
    ContractCode,
    ContractHang,
    ContractOutput,
    ContractParameter,
    ContractRestore,
    ContractStorage,
    ContractSweep,
    ContractTorchrun,
    ContractTracking,
    RunContract,
)

from ..api import quantities
from ..api.checkpoints_spec import ASSUMED_SECONDS_BETWEEN_LOSSES
from ..api.training_spec import ScriptSource, Torchrun
from ..api.v1alpha1 import TrainingRun
from . import names, platforms
from .platforms import RenderSettings

Strategy = Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]

RAY_STRATEGIES: dict[str, Strategy] = {
    "Pack": "PACK",
    "Spread": "SPREAD",
    # To Ray each pod is a node, and its STRICT_PACK puts all workers into one pod. The pod
    # affinity puts them on one Kubernetes node.
    "StrictPack": "PACK",
    "StrictSpread": "STRICT_SPREAD",
}
"""Ray's placement strategy for pods of one worker each, by the API's."""


def _placement(run: TrainingRun) -> Strategy:
    workers = run.spec.workers
    # Ray has to fill each pod, or a replaced pod that still ends would get some of the workers. So
    # ranks 0 to 7 share a pod of 8. Where the pods are is for Kubernetes to decide.
    return RAY_STRATEGIES[workers.placement] if workers.per_pod == 1 else "PACK"


def worker_cpus(run: TrainingRun) -> int:
    """Ray CPUs of each worker: whole ones, at least 1."""
    return max(1, quantities.whole(run.spec.workers.resources.cpu))


def node_cpus(training: int, data: int | None) -> int:
    """Ray CPUs of a pod: what its workers take, and some for Ray Data.

    Ray counts CPUs, it does not measure them. With none left over, the tasks that read a trainer's
    `datasets` would wait for ever; the kernel shares the real CPUs among both.

    Args:
        training: Ray CPUs of all workers in the pod.
        data: For Ray Data; None: as many as for the workers.
    """
    return training + (training if data is None else data)


def ray_devices(run: TrainingRun, settings: RenderSettings) -> dict[str, int]:
    """The accelerators of each worker as Ray resources; empty without any."""
    accelerator = run.spec.workers.accelerator
    if accelerator is None:
        return {}
    device = platforms.load(settings.platform).accelerators[accelerator.kind]
    return {device.ray: accelerator.count}


def script_path(script: ScriptSource) -> PurePosixPath:
    """Where the script is in every pod of the run; relative: below the folder of the code."""
    return PurePosixPath(script.path or f"{names.SCRIPT_FOLDER}/{script.file}")


def code_source(run: TrainingRun) -> ContractCode | None:
    """The user's code, if it is not in the image."""
    code, storage = run.spec.training.code, run.spec.storage
    if code is None:
        return None
    return ContractCode(uri=code.uri, endpoint=storage.endpoint, region=storage.region)


def contract(run: TrainingRun, number: int, settings: RenderSettings) -> RunContract:
    """What the runtime needs for attempt `number`; no credential is in it."""
    spec = run.spec
    training = spec.training
    resources = {"CPU": worker_cpus(run), **ray_devices(run, settings), WORKER_RESOURCE: 1}
    return RunContract(
        name=run.metadata.name,
        namespace=run.metadata.namespace,
        uid=run.metadata.uid,
        attempt=number,
        function=training.function,
        script=str(script_path(training.script)) if training.script else None,
        script_args=training.script.args if training.script else [],
        torchrun=_torchrun(training.torchrun),
        code=code_source(run),
        requirements=training.requirements,
        config=training.config,
        image=spec.image or settings.image,
        torch_backend=training.torch.backend,
        torch_timeout_seconds=training.torch.timeout_seconds,
        workers=spec.workers.count,
        minimum_workers=spec.workers.minimum,
        resize_seconds=spec.workers.resize_seconds,
        standby=spec.workers.standby or None,
        global_batch=spec.workers.global_batch,
        resources_per_worker={resource: float(count) for resource, count in resources.items()},
        placement=_placement(run),
        storage=ContractStorage(
            uri=names.run_folder(run),
            endpoint=spec.storage.endpoint,
            region=spec.storage.region,
        ),
        restore_from=_restore_from(run),
        checkpoints=_checkpoints(run),
        hang=_hang(run),
        output=_output(run),
        rules=spec.failures.contract_rules or None,
        tracking=_tracking(run),
        sweep=_sweep(run),
    )


def _torchrun(started: Torchrun | None) -> ContractTorchrun | None:
    if started is None:
        return None
    script = str(script_path(started.script)) if started.script else None
    return ContractTorchrun(script=script, module=started.module, args=started.all_args)


def _checkpoints(run: TrainingRun) -> ContractCheckpoints:
    checkpoints = run.spec.checkpoints
    best, every = checkpoints.best, checkpoints.interval_s
    return ContractCheckpoints(
        keep=checkpoints.keep,
        best_metric=best.metric if best else None,
        best_order=best.order if best else "max",
        keep_best=checkpoints.keep_best or 1,
        every_seconds=every if isinstance(every, int) else None,
        every_steps=checkpoints.every_steps,
        assumed_seconds_between_losses=(
            ASSUMED_SECONDS_BETWEEN_LOSSES[run.spec.workers.capacity.type]
            if every == "auto"
            else None
        ),
    )


def _hang(run: TrainingRun) -> ContractHang:
    hang = run.spec.failures.hang
    after = hang.after_seconds
    return ContractHang(after_seconds=after if isinstance(after, int) else None, action=hang.action)


def _output(run: TrainingRun) -> ContractOutput:
    output = run.spec.storage.output
    days = output.max_age_days
    return ContractOutput(
        most_bytes=quantities.whole(output.max_size),
        most_seconds=days * 86400.0 if days is not None else None,
    )


def _tracking(run: TrainingRun) -> ContractTracking | None:
    tracking = run.spec.tracking
    if tracking is None:
        return None
    board = tracking.tensorboard
    return ContractTracking(
        mlflow=tracking.mlflow is not None,
        tensorboard_every_seconds=board.every_seconds if board else None,
    )


def _sweep(run: TrainingRun) -> ContractSweep | None:
    sweep = run.spec.sweep
    if sweep is None:
        return None
    given = {"grace_steps": sweep.grace_steps, "reduction_factor": sweep.reduction_factor}
    return ContractSweep(
        samples=sweep.samples,
        metric=sweep.metric,
        mode=sweep.mode,
        asha=sweep.scheduler == "ASHA",
        perturbation_interval=sweep.perturbation_interval,
        library=sweep.search if sweep.search == "Optuna" else None,
        concurrency=sweep.trials_at_once,
        max_hangs=run.spec.failures.max_hangs,
        max_losses=run.spec.failures.max_preemptions,
        space=[ContractParameter.model_validate(p.to_dict()) for p in sweep.space],
        **{name: value for name, value in given.items() if value is not None},
    )


def _restore_from(run: TrainingRun) -> ContractRestore | None:
    storage = run.spec.storage
    wanted, found = storage.restore_from, run.status.restored_from
    if wanted is None:
        return None
    uri = found.uri if found else wanted.uri
    if uri is None:
        raise ValueError(
            f"storage.restoreFrom.run {wanted.run} is not in status.restoredFrom yet; its folder "
            "is not known"
        )
    return ContractRestore(
        uri=uri.rstrip("/"), endpoint=storage.endpoint, region=storage.region, step=wanted.step
    )
