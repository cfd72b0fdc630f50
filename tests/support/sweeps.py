"""The folder of a sweep without a training."""

from trainingrun_protocol.contract import ContractParameter, ContractSweep
from trainingrun_protocol.progress import TrialState
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.lease import Lease
from trainingrun_runtime.sweep import record
from trainingrun_runtime.sweep.record import Trial
from trainingrun_runtime.sweep.trial import TrialLease

SWEEP = ContractSweep(
    metric="error",
    mode="min",
    space=[ContractParameter(name="lr", values=[0.1, 0.2, 0.3])],
)


def note(run: Lease, *trials: Trial) -> dict[int, Bucket]:
    """Write the trials of a sweep; the folders of those that have begun to train, by number."""
    record.write(run, {trial.number: trial for trial in trials}, SWEEP)
    whole = run.bucket
    folders = {
        trial.number: Bucket.open(
            whole.uri(record.folder(trial.number, trial.leg)), whole.endpoint, whole.region
        )
        for trial in trials
        if trial.state is not TrialState.PENDING
    }
    for folder in folders.values():
        TrialLease.of(run, folder)
    return folders


def a_trial(number: int, value: float | None, **facts: object) -> Trial:
    """One that was trained to its end, or with no value one that has not begun."""
    state = TrialState.SUCCEEDED if value is not None else TrialState.PENDING
    settled = {"state": state, "value": value, "config": {"lr": number / 10}, **facts}
    return Trial.model_validate({"number": number, **settled})
