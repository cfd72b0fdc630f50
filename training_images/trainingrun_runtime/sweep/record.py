"""`sweep/<fencing token>.json`: the trials of a sweep, for the next driver and for readers.

Each driver writes an object of its own and reads that of the driver before it. JSON, unlike the
state that Ray Tune writes for itself: reading a pickle from the bucket would run what is in it.
"""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal

from pydantic import Field, ValidationError

from trainingrun_protocol.contract import ContractSweep
from trainingrun_protocol.progress import MOST_TRIALS, SweepTable, TrialRow, TrialState
from trainingrun_protocol.wire import Metrics, Wire

from ..store.bucket import Bucket
from ..store.lease import Lease, document_key, fencing_tokens, require_empty
from ..store.restore_source import of_other_version

FOLDER = "sweep"
"""Where the records are, below the run's folder."""
TRIALS = "trials"
"""Below it each trial has a folder of its own, laid out like that of a run."""


class Origin(Wire):
    """The checkpoint from which a leg of a trial begins."""

    number: int
    """Of the trial whose checkpoint it is."""
    leg: int
    """Which leg of it has made the checkpoint."""
    step: int
    """Of the checkpoint."""


class Trial(Wire):
    """One trial."""

    number: int
    """1, 2, 3 …"""
    config: dict[str, Any]
    """Its values of the config."""
    state: TrialState = TrialState.PENDING
    """Where it stands."""
    step: int = 0
    """Steps done."""
    value: float | None = None
    """The metric as it was last reported."""
    metrics: Metrics = Field(default_factory=dict)
    """What it last reported."""
    checkpoint_uri: str | None = None
    """Its newest committed checkpoint."""
    best_checkpoint_uri: str | None = None
    """The best one, where such a one is kept."""
    message: str = ""
    """Why it failed."""
    reports: list[tuple[int, float | None]] = Field(default_factory=list)
    """Step and metric at each comparison with other trials, oldest first; None: no number."""
    leg: int = 1
    """Of a trial that waits for others again and again: how often it has begun. Each leg has a
    folder of its own, so that others can begin from its last checkpoint."""
    lost: int = 0
    """Attempts of the run that it has ended, by a failure that is no error of its code."""
    origin: Origin | None = None
    """What this leg begins from; None: from step 0."""

    def row(self) -> TrialRow:
        """What users see of it."""
        return TrialRow(
            number=self.number,
            state=self.state,
            config=self.config,
            step=self.step,
            value=self.value,
            checkpoint_uri=self.checkpoint_uri,
            message=self.message,
        )


class SweepRecord(Wire):
    """All trials."""

    version: Literal[1] = 1
    """Of this format."""
    metric: str = ""
    """By which trials are compared."""
    best: int | None = None
    """Number of the best trial so far; None: none has reported the metric."""
    trials: list[Trial] = Field(max_length=MOST_TRIALS)
    """By number, from 1."""

    @classmethod
    def of(cls, trials: Mapping[int, Trial], sweep: ContractSweep) -> "SweepRecord":
        """That of these trials."""
        found = best(trials, sweep.mode)
        number = found.number if found else None
        return cls(metric=sweep.metric, best=number, trials=list(trials.values()))

    def table(self) -> SweepTable:
        """What users see of it."""
        rows = [trial.row() for trial in self.trials]
        return SweepTable(metric=self.metric, best=self.best, trials=rows)


def folder(number: int, leg: int = 1) -> str:
    """The folder of a trial's leg below that of the run."""
    return f"{TRIALS}/{number:04d}" + (f"-{leg:02d}" if leg > 1 else "")


def read(bucket: Bucket, before: float = math.inf) -> SweepRecord | None:
    """The trials as the newest driver with a token below `before` wrote them; None: none did.

    One that is damaged is passed over: trials that are done have their result in their own folder
    as well. To a driver one of another version of this project is not damaged: the trials would be
    decided anew, and the newer decisions hidden by its own record.

    Args:
        bucket: the run's folder.
        before: a driver's own token; default: of a reader, who decides nothing.

    Raises:
        NothingToRestore: to a driver, another version of this project has written the newest.
        StorageError: the store did not answer; to a driver also where an empty list is no proof
            that there is none.
    """
    known = fencing_tokens(bucket, FOLDER)
    if not known and before < math.inf:  # else all trials would be drawn anew
        require_empty(bucket, FOLDER, lambda: fencing_tokens(bucket, FOLDER))
    for token in sorted((token for token in known if token < before), reverse=True):
        content = bucket.get(document_key(FOLDER, token)) or b""
        try:
            return SweepRecord.model_validate_json(content)
        except ValidationError:
            if before < math.inf and _is_whole(content):
                reason = f"{document_key(FOLDER, token)} has a format that is not known"
                raise of_other_version(bucket, reason) from None
    return None


def _is_whole(content: bytes) -> bool:
    with suppress(ValueError):
        return isinstance(json.loads(content), dict)
    return False


def write(held: Lease, trials: Mapping[int, Trial], sweep: ContractSweep) -> None:
    """Write the trials for the next driver, and for who reads the folder.

    Args:
        held: this driver's lease.
        trials: all of them.
        sweep: says which one is the best.

    Raises:
        Superseded: a later driver holds the run.
        StorageError: the store did not answer.
    """
    held.require()
    content = SweepRecord.of(trials, sweep)
    held.bucket.put(
        document_key(FOLDER, held.fencing_token), content.model_dump_json(by_alias=True).encode()
    )


def best(trials: Mapping[int, Trial], mode: str) -> Trial | None:
    """The best trial: of those that were trained to their end, or of all while none was.

    None if no trial has reported the metric. Of equal ones it is the first.
    """
    rated = [t for t in trials.values() if t.value is not None and t.state is not TrialState.FAILED]
    return min(rated, key=partial(rank, mode), default=None)


def best_done(trials: Mapping[int, Trial], mode: str) -> Trial | None:
    """The best of the trials that were trained to their end; None: none of them has a value."""
    found = best(trials, mode)
    return found if found is not None and found.state is TrialState.SUCCEEDED else None


def rank(mode: str, one: Trial | TrialRow) -> tuple[bool, bool, float, int]:
    """By which trials are sorted, the best one first; last those that cannot be the best."""
    sign = 1 if mode == "min" else -1
    unrated = one.value is None or one.state is TrialState.FAILED
    return unrated, one.state is not TrialState.SUCCEEDED, sign * (one.value or 0.0), one.number
