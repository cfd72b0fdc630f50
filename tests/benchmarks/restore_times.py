"""How long a checkpoint takes to be saved and restored, over several drivers of one run."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sides import Sides

from trainingrun_runtime.store import manifest, run_result


@dataclass
class RestoreTimes:
    """Seconds, megabytes and bytes; of several ranks the slowest or largest."""

    stall_s: float = 0.0
    """For which training stood still."""
    commit_s: float = 0.0
    """From the end of the step to the manifest."""
    plain_save_s: list[float] = field(default_factory=list)
    """A plain upload of the same bytes, after it."""
    distributed_save_s: list[float] = field(default_factory=list)
    """`torch.distributed.checkpoint.async_save` of the same state to the same bucket."""
    base_mb: float = 0.0
    """Resident before the save."""
    save_mb: float = 0.0
    """At most until the checkpoint is committed."""
    restore_mb: float = 0.0
    """At most in the restore."""
    restore_s: list[float] = field(default_factory=list)
    """From the search for a checkpoint until the session is made, less the model's making."""
    read_s: list[float] = field(default_factory=list)
    """A plain read of the same bytes, after each restore."""
    rank_bytes: int = 0
    total_bytes: int = 0


def measure(sides: Sides, function: str, rounds: int) -> RestoreTimes:
    """Save once, and restore in each round."""
    bucket, found = sides.bucket(awaited=True), RestoreTimes()
    load = {"bucket": [bucket.root, bucket.endpoint, bucket.region]}

    def drive() -> list[dict[str, Any]]:
        bucket.delete_folder(run_result.FOLDER)  # else the run is done
        training = sides.drive(f"restoring:{function}", load, bucket)
        training.wait()
        times = training.settings["times"]
        return [json.loads(Path(f"{times}-{rank}").read_text()) for rank in (0, 1)]

    ranks = drive()
    first = manifest.committed(bucket)[0]
    found.stall_s = max(rank["saved"] - rank["stepped"] for rank in ranks)
    found.commit_s = first.time - max(rank["stepped"] for rank in ranks)
    found.plain_save_s = ranks[0].get("plain_save", [])
    found.distributed_save_s = ranks[0].get("distributed_save", [])
    found.base_mb = max(rank["base"] for rank in ranks)
    found.save_mb = max(rank["save_peak"] for rank in ranks)
    for _ in range(rounds):
        ranks = drive()
        began = max(rank["searched"] for rank in ranks)
        found.restore_s.append(
            max(rank["ready"] for rank in ranks) - began - max(rank["built"] for rank in ranks)
        )
        found.read_s.append(max(rank["read"] for rank in ranks))
        found.restore_mb = max(found.restore_mb, *(rank["peak"] for rank in ranks))
        found.rank_bytes = max(rank["bytes"] for rank in ranks)
        found.total_bytes = ranks[0]["total"]
    return found
