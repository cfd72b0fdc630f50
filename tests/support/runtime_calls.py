"""What workers, Ray's controller and the driver pass to one another, as tests need it."""

from typing import Any

from trainingrun_protocol.contract import ContractStorage, RunContract
from trainingrun_runtime.coordinator.checkpoints import UploadedCheckpoint
from trainingrun_runtime.progress.time_accounting import StepReport
from trainingrun_runtime.store.manifest import FileDigest, Manifest


def a_contract(**given: Any) -> RunContract:
    storage = ContractStorage(uri="s3://b/r")
    return RunContract(
        name="digits", namespace="default", uid="0", attempt=1, storage=storage, **given
    )


def an_upload(step: int, group: int) -> UploadedCheckpoint:
    return UploadedCheckpoint(f"b/r/checkpoints/0001-000003/step-{step:010d}-{group}", step, 2, {})


def a_manifest(upload: UploadedCheckpoint) -> Manifest:
    return Manifest(
        path=upload.path.removeprefix("b/r/"), step=upload.step, world_size=2, attempt=1,
        fencing_token=3, index=1, files={"state.pt": FileDigest(1, "0" * 64)}, time=1000.0,
    )  # fmt: skip


def a_report(
    group: int, step: int, total: int | None = None, productive: float = 1.0
) -> StepReport:
    return StepReport(
        group=group, step=step, total=total, begun=1.0, done=2.0, productive=productive,
        checkpoint=0.0, metrics={"loss": 0.5},
    )  # fmt: skip
