"""A run with three attempts in a bucket, written by the classes that write a real one."""

import math

from trainingrun_protocol.progress import (
    Failure,
    Hang,
    HungRank,
    Progress,
    RankRow,
    Record,
    RecordKind,
    RunState,
    Seconds,
    SlowestRank,
)
from trainingrun_runtime.coordinator.inbox import Inbox
from trainingrun_runtime.store import (
    kept_output,
    kept_stacks,
    last_progress,
    loss_documents,
    manifest,
)
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.kept_output import Source
from trainingrun_runtime.store.lease import Lease
from trainingrun_runtime.store.loss_documents import LossDocument
from trainingrun_runtime.store.manifest import FileDigest, Manifest
from trainingrun_runtime.store.metrics_writer import ReportWriter
from trainingrun_runtime.store.reported_metrics import Origin, Row

BEGAN = 1_795_700_000.0
"""Unix time in seconds at which the first attempt began."""
FAILURE = (
    "RuntimeError: The size of tensor a (64) must match the size of tensor b (32) at train.py:88; "
    "make the batches equal, for instance with drop_last=True"
)


def failed_run(bucket: Bucket, text: str = "", rank_failed: bool = True) -> None:
    """Attempt 1 loses a worker and then its head, 2 leaves no record, 3 fails by its code.

    Args:
        bucket: The run's folder, empty.
        text: Follows every text that a run can choose.
        rank_failed: Whether a rank has ended attempt 3, not the driver.
    """
    _printed(bucket, text, rank_failed)
    _lost_worker(bucket, text)
    _attempt(bucket, 1, 1, BEGAN, Origin(0, 0, 0), 0, 240, text)
    _checkpoint(bucket, 1, 1, 100, BEGAN + 160, text)
    _checkpoint(bucket, 1, 2, 200, BEGAN + 300, text)
    last_progress.write(
        bucket,
        Progress(
            attempt=1,
            fencing_token=1,
            state=RunState.TRAINING,
            time=BEGAN + 340,
            resumed_from_step=0,
            step=240,
            step_time=BEGAN + 338,
            total_steps=600,
            records=[
                Record(
                    number=1,
                    kind=RecordKind.PREEMPTED,
                    time=BEGAN + 165,
                    step=103,
                    node=f"spot-4{text}",
                    pod=f"demo-1-worker-1{text}",
                    message=f"rank 1 left after a notice{text}",
                ),
                Record(
                    number=2,
                    kind=RecordKind.RESTORED,
                    time=BEGAN + 190,
                    step=103,
                    message="resumed from step 103",
                ),
            ],
            seconds=Seconds(startup=25, productive=270, lost_work=0, recovery=24, checkpoint=4),
        ),
    )
    Lease.take(bucket, 2, "demo-2-head", BEGAN + 420).renew(BEGAN + 460)
    _attempt(bucket, 3, 3, BEGAN + 520, Origin(1, 1, 200), 200, 331, text)
    _checkpoint(bucket, 3, 1, 300, BEGAN + 660, text)
    last_progress.write(
        bucket,
        Progress(
            attempt=3,
            fencing_token=3,
            state=RunState.FAILED,
            time=BEGAN + 705,
            resumed_from_step=200,
            step=331,
            step_time=BEGAN + 701,
            total_steps=600,
            records=[
                Record(
                    number=1,
                    kind=RecordKind.APPLICATION_ERROR,
                    time=BEGAN + 703,
                    step=331,
                    message=f"{FAILURE}{text}",
                )
            ],
            warnings=[f"rank 2 is 2.4 times slower than the others{text}"],
            seconds=Seconds(startup=31, productive=140, recovery=0, checkpoint=2),
            ranks=[
                RankRow(
                    rank=rank,
                    node=f"spot-{rank}{text}",
                    pod=f"demo-3-worker-{rank}{text}",
                    step_seconds=1.07,
                    data_wait_share=0.02 + 0.01 * rank,
                    communication_wait_share=0.03 if rank == 2 else 0.57,
                    used_bytes=(3 + rank) * 2**30,
                    limit_bytes=8 * 2**30,
                    accelerator_share=0.9 if rank == 2 else 0.41,
                )
                for rank in range(4)
            ],
            slowest_rank=SlowestRank(
                rank=2, node=f"spot-2{text}", own_seconds=1.04, median_seconds=0.43
            ),
            hang=Hang(
                time=BEGAN + 600,
                seconds=312,
                message=f"ranks 0, 1 and 3 wait in all_reduce; rank 2 hangs in read{text}",
                ranks=[
                    HungRank(
                        rank=rank,
                        node=f"spot-{rank}{text}",
                        where=f"in read (dataset.py:41){text}" if rank == 2 else "in all_reduce",
                        hangs=rank == 2,
                    )
                    for rank in range(4)
                ],
            ),
            failure=Failure(
                kind="Application",
                message=f"{FAILURE}{text}",
                traceback='Traceback (most recent call last):\n  File "/app/train.py", line 88, in '
                f"train\n    loss = criterion(model(batch), target)\nRuntimeError: tensor{text}\n",
            ),
        ),
    )


def _lost_worker(bucket: Bucket, text: str = "") -> None:
    """What the driver of `failed_run` has written of its first loss."""
    loss_documents.write(
        bucket,
        LossDocument(
            attempt=1,
            fencing_token=1,
            number=1,
            reason=f"Preempted{text}",
            time=BEGAN + 165,
            message=f"rank 1 left after a notice{text}",
            node=f"spot-4{text}",
            pod=f"demo-1-worker-1{text}",
            step=103,
            restored_step=103,
            lost_steps=0,
            lost_work_seconds=0,
            recovery_seconds=24.5,
            action="resumed from step 103",
        ),
    )


def _printed(bucket: Bucket, text: str, rank_failed: bool) -> None:
    """What rank 2 and the driver of attempt 3 have printed, and where ranks stood in a hang."""
    for source, line in ((Source(3, 1, 2), "reading shard 41"), (Source(3), "training failed")):
        lines = [
            kept_output.written(BEGAN + 600 + number, f"{line} {number}{text}")
            for number in range(80)
        ]
        bucket.put(kept_output.key(source, BEGAN + 600), "".join(lines).encode())
    stacks = dict.fromkeys(range(20), f"Thread 1 (idle)\n    all_reduce{text}")
    failed = kept_output.Failed(
        group=1,
        rank=6,
        message=FAILURE,
        time=BEGAN + 703,
        lines=[f"tensor a is 64{text}", f"tensor b is 32{text}"],
    )
    if rank_failed:
        kept_output.write_failed(bucket, 3, failed)
    kept_stacks.write(bucket, kept_stacks.folder_of(3, "20261126T134320Z"), stacks)


def _attempt(
    bucket: Bucket,
    attempt: int,
    token: int,
    began: float,
    origin: Origin,
    first: int,
    last: int,
    text: str,
) -> None:
    held = Lease.take(bucket, attempt, f"demo-{attempt}-head", began)
    assert held.fencing_token == token
    held.renew(began + 185)
    inbox = Inbox()
    inbox.begin(1, origin if origin.fencing_token else None)
    rows = [
        Row(
            step,
            began + step,
            {
                "loss": 2.3 * math.exp(-step / 120) + 0.05 * math.sin(step * 7),
                "learning_rate": 1e-1 * 0.97**step,
                "samples_per_second": 900.0 + (step * 37) % 61,
                "gradient_norm": math.nan if step == 50 else 1 + math.cos(step / 9),
                f"note{text}": f"fine{text}",
                f"accuracy{text}": step / 600,
            },
        )
        for step in range(first + 1, last + 1)
    ]
    inbox.add_rows(1, rows)
    ReportWriter(bucket, token, attempt, inbox.rows).write()


def _checkpoint(bucket: Bucket, token: int, index: int, step: int, time: float, text: str) -> None:
    made = Manifest(
        path=f"checkpoints/0001-{token:06d}/step-{step:010d}-{index}",
        step=step,
        world_size=4,
        attempt=token,
        fencing_token=token,
        index=index,
        metrics={"loss": 2.3 * math.exp(-step / 120), f"note{text}": f"fine{text}"},
        files={"rank-0/state.safetensors": FileDigest(1_340_000_000, "0" * 64)},
        time=time,
        best_metric="loss",
    )
    manifest.commit(bucket, made)
