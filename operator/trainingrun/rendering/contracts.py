"""What the runtime is told about an attempt."""

from typing import Literal, cast

from ..api.contract import ContractCheckpoints, ContractStorage, RunContract
from ..api.v1alpha1 import Accelerator, TrainingRun
from . import names
from .quantities import number as as_number
from .settings import RenderSettings

RAY_RESOURCES = {
    "nvidia": "GPU",
    "amd": "GPU",
    "tpu": "TPU",
    "gaudi": "HPU",
    "neuron": "neuron_cores",
}
"""What Ray calls an accelerator, by the API's kind."""

NEURON_CORES_PER_DEVICE = 2
"""The device plugin counts devices, Ray counts cores: two on each Trainium and Inferentia2."""


def accelerators(accelerator: Accelerator | None) -> dict[str, float]:
    """The accelerators of one worker as Ray resources; empty without any."""
    if accelerator is None:
        return {}
    per_device = NEURON_CORES_PER_DEVICE if accelerator.kind == "neuron" else 1
    return {RAY_RESOURCES[accelerator.kind]: float(accelerator.count * per_device)}


def contract(run: TrainingRun, number: int, settings: RenderSettings) -> RunContract:
    """What the runtime needs to know about attempt `number`; no credential is in it."""
    spec = run.spec
    training = spec.training
    best = spec.checkpoints.best
    return RunContract(
        name=run.metadata.name,
        namespace=run.metadata.namespace,
        uid=run.metadata.uid,
        attempt=number,
        function=training.function,
        script=f"{names.SCRIPT_FOLDER}/{training.script.file}" if training.script else None,
        config=training.config,
        torch_backend=training.torch.backend,
        torch_timeout_seconds=training.torch.timeout_seconds,
        workers=spec.workers.count,
        resources_per_worker={
            "CPU": as_number(spec.workers.resources.cpu),
            **accelerators(spec.workers.accelerator),
        },
        placement=cast(
            Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"],
            {
                "Pack": "PACK",
                "Spread": "SPREAD",
                "StrictPack": "STRICT_PACK",
                "StrictSpread": "STRICT_SPREAD",
            }[spec.workers.placement],
        ),
        storage=ContractStorage(
            uri=names.run_folder(run),
            endpoint=spec.storage.endpoint,
            region=spec.storage.region,
        ),
        checkpoints=ContractCheckpoints(
            keep=spec.checkpoints.keep,
            best_metric=best.metric if best else None,
            best_order=best.order if best else "max",
            every_seconds=spec.checkpoints.every_seconds,
        ),
    )
