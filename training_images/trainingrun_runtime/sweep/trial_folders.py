"""The folders of trials in the bucket: what is in them as a driver begins, and who trains there."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from trainingrun_protocol.contract import ContractRestore, ContractSweep, ContractTrial, RunContract
from trainingrun_protocol.progress import TrialState

from ..store import manifest
from ..store.bucket import Bucket
from ..store.lease import Lease
from ..store.restore_source import of_other_version
from ..store.storage_errors import StorageError
from . import record, search
from .record import Trial
from .schedulers import Population

log = logging.getLogger(__name__)


class TrialFolders:
    """The trials of one driver, as the bucket has them.

    Args:
        contract: the operator's settings of this attempt.
        sweep: the contract's sweep.
        lease: this driver's lease.
        population: where trials wait for each other.
    """

    def __init__(
        self,
        contract: RunContract,
        sweep: ContractSweep,
        lease: Lease,
        population: Population | None,
    ) -> None:
        self._contract, self._sweep, self._population = contract, sweep, population
        self._lease, self._bucket = lease, lease.bucket
        self._removed: set[str] | None = None  # what former drivers have removed is not known yet

    def trials(self) -> list[Trial]:
        """The trials as the former driver left them; the first one draws their values.

        Raises:
            NothingToRestore: another version of this project has written what they begin from.
            StorageError: the store did not answer.
        """
        noted = record.read(self._bucket, self._lease.fencing_token)
        if noted is not None:
            former = noted.trials
        else:
            # A library chooses the values of a trial when it begins.
            drawn = (
                [{} for _ in range(self._sweep.samples or 0)]
                if self._sweep.library is not None
                else search.configs(self._sweep, self._contract.uid)
            )
            former = [Trial(number=n, config=config) for n, config in enumerate(drawn, start=1)]
        return [self._resumed(trial) for trial in self._tried_again(former)]

    def _tried_again(self, former: Sequence[Trial]) -> Sequence[Trial]:
        """With those that failed as trials to train, where all are final and there is no result."""
        done = record.best_done({trial.number: trial for trial in former}, self._sweep.mode)
        if done is not None or not all(trial.state.final for trial in former):
            return former
        # The operator tries the run again; what failed is all that there is to try.
        again: dict[str, Any] = {"state": TrialState.PENDING, "message": ""}
        again |= {"value": None, "metrics": {}}
        # Where others are stopped its comparisons stand too: else all may come to be stopped.
        stopped = any(trial.state is TrialState.STOPPED for trial in former)
        again |= {"reports": []} if self._population is None and not stopped else {}
        return [
            trial.model_copy(update=again) if trial.state is TrialState.FAILED else trial
            for trial in former
        ]

    def _resumed(self, trial: Trial) -> Trial:
        """A trial that was under way has the steps that its newest checkpoint holds."""
        if trial.state.final:
            return trial
        bucket, step = self._bucket_of(trial), trial.origin.step if trial.origin else 0
        for key, found in reversed(manifest.read_all(bucket)):
            if isinstance(found, manifest.OtherVersion):  # the trial alone would fail, for good
                raise of_other_version(bucket, f"{key} cannot be read: {found}")
            if isinstance(found, manifest.Manifest):
                step = found.step
                break
        return trial.model_copy(update={"state": TrialState.PENDING, "step": step})

    def _bucket_of(self, trial: Trial) -> Bucket:
        folder = record.folder(trial.number, trial.leg)
        return Bucket.open(self._bucket.uri(folder), self._bucket.endpoint, self._bucket.region)

    def contract(self, trial: Trial) -> RunContract:
        """A trial's contract, or that of a leg of it."""
        contract, origin = self._contract, trial.origin
        storage = contract.storage
        uri = self._bucket.uri(record.folder(trial.number, trial.leg))
        until = self._population.until(trial) if self._population is not None else None
        source = None
        if origin is not None:
            source = ContractRestore(
                uri=self._bucket.uri(record.folder(origin.number, origin.leg)),
                endpoint=storage.endpoint,
                region=storage.region,
                step=origin.step,
            )
        return contract.model_copy(
            update={
                "sweep": None,
                "trial": ContractTrial(
                    number=trial.number,
                    leg=trial.leg,
                    metric=self._sweep.metric,
                    until_step=until,
                    max_hangs=self._sweep.max_hangs,
                    max_losses=self._sweep.max_losses,
                ),
                "config": {**contract.config, **trial.config},
                "storage": storage.model_copy(update={"uri": uri}),
                "restore_from": source,
            }
        )

    def remove_outdated(self, trials: Mapping[int, Trial]) -> None:
        """Delete checkpoints from which no leg begins any more."""
        folders, parts = outdated(trials), (manifest.FOLDER, manifest.CHECKPOINTS)
        if not folders:
            return
        try:
            if self._removed is None:
                # In one list: of a long sweep there are thousands, and a trial waits to begin.
                keys = (entry.key.split("/") for entry in self._bucket.list_begun(record.TRIALS))
                there = {"/".join(key[:2]) for key in keys if len(key) > 2 and key[2] in parts}
                self._removed = set(folders) - there
            for folder in folders:
                if folder not in self._removed:
                    for part in parts:
                        self._bucket.delete_folder(f"{folder}/{part}")
                    self._removed.add(folder)
        except StorageError as error:  # the next trial that begins tries again
            log.warning("checkpoints of former legs could not be removed: %s", error)


def outdated(trials: Mapping[int, Trial]) -> list[str]:
    """Folders of legs whose checkpoints nothing begins from any more."""
    needed = {(trial.number, trial.leg) for trial in trials.values()}
    origins = [t.origin for t in trials.values() if t.origin is not None and not t.state.final]
    needed |= {(origin.number, origin.leg) for origin in origins}
    return [
        record.folder(trial.number, leg)
        for trial in trials.values()
        for leg in range(1, trial.leg)
        if (trial.number, leg) not in needed
    ]
