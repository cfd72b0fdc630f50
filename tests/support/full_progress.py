"""A progress document in which everything is that a head shows as a metric."""

from trainingrun_protocol.progress import (
    MOST_RANKS,
    Hang,
    LastCheckpoint,
    Progress,
    RankMemory,
    RankRow,
    RunState,
    Seconds,
    SlowestRank,
)
from trainingrun_protocol.wire import MOST_METRICS


def full_progress(now: float, *, ranks: int = MOST_RANKS, metrics: int = MOST_METRICS) -> Progress:
    """Of a run that has begun a while ago and hangs, with so many ranks and reported metrics."""
    return Progress(
        attempt=1,
        fencing_token=1,
        state=RunState.TRAINING,
        time=now,
        resumed_from_step=0,
        step=40,
        step_time=now,
        has_session=True,
        total_steps=100,
        world_size=ranks,
        checkpoint_interval_seconds=60,
        checkpoint=LastCheckpoint(uri="s3://runs/checkpoint", step=30, time=now - 20),
        data_wait_share=0.25,
        step_seconds=0.5,
        communication_wait_share=0.125,
        slowest_rank=SlowestRank(rank=1, own_seconds=0.5, median_seconds=0.25),
        memory=RankMemory(rank=0, used_bytes=1000, limit_bytes=2000),
        ranks=[
            RankRow(
                rank=rank,
                step_seconds=0.5,
                data_wait_share=0.25,
                communication_wait_share=0.125,
                used_bytes=1000,
                accelerator_share=0.75,
            )
            for rank in range(ranks)
        ],
        metrics={f"loss-{number}": 0.5 for number in range(metrics)},
        seconds=Seconds(productive=12.5, startup=1, lost_work=2, recovery=1, checkpoint=0.5),
        hang=Hang(time=now - 5, seconds=300, message="rank 1 hangs", under_way=True),
    )
