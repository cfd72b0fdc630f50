"""Population based training: who goes on from whom, with which values, and when."""

from types import SimpleNamespace
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore

from trainingrun_protocol.contract import (
    ContractParameter,
    ContractStorage,
    ContractSweep,
    RunContract,
)
from trainingrun_protocol.progress import (
    Failure,
    Progress,
    Record,
    RecordKind,
    RunState,
    Seconds,
    TrialState,
)
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.lease import Lease
from trainingrun_runtime.sweep import record, search
from trainingrun_runtime.sweep.record import Origin, Trial
from trainingrun_runtime.sweep.schedulers import Population
from trainingrun_runtime.sweep.trial_folders import TrialFolders, outdated
from trainingrun_runtime.sweep.trial_table import TrialTable

SWEEP = ContractSweep(
    metric="loss",
    mode="min",
    samples=4,
    concurrency=2,
    perturbation_interval=20,
    space=[
        ContractParameter(name="lr", min=1e-4, max=0.1, scale="log"),
        ContractParameter(name="layers", min=1, max=8, type="integer"),
        ContractParameter(name="norm", values=["batch", "layer", "none"]),
    ],
)


def a_population(uid: str = "a-uid", sweep: ContractSweep = SWEEP) -> Population:
    return Population(sweep, 20, uid)


def waiting(*values: float | None, leg: int = 1) -> dict[int, Trial]:
    """Trials that have come to the end of a leg with these values."""
    drawn = search.configs(SWEEP, "a-uid")
    return {
        number: Trial(
            number=number,
            config=drawn[number - 1],
            leg=leg,
            reports=[(leg * 20, value)],
            value=value,
        )
        for number, value in enumerate(values, start=1)
    }


def test_the_worst_quarter_goes_on_from_the_best_quarter_with_changed_values():
    before = waiting(3.0, 1.0, 4.0, 2.0)
    after = a_population().next_legs(before)
    assert {n: t.origin.number for n, t in after.items() if t.origin} == {1: 1, 2: 2, 3: 2, 4: 4}
    assert {trial.leg for trial in after.values()} == {2}
    assert {trial.origin.step for trial in after.values() if trial.origin} == {20}
    kept = {n for n, t in after.items() if t.config == before[n].config}
    assert kept == {1, 2, 4}
    changed = after[3].config
    assert changed not in (before[2].config, before[3].config)
    assert 1e-4 <= changed["lr"] <= 0.1
    assert 1 <= changed["layers"] <= 8
    assert type(changed["layers"]) is int
    assert after[3].value == 1.0, "it stands where the best one stood"


def test_the_same_values_lead_to_the_same_decisions_and_leave_other_random_numbers_alone():
    import random

    before = waiting(3.0, 1.0, 4.0, 2.0)
    state = random.getstate()
    first = a_population().next_legs(before)
    assert random.getstate() == state
    random.random()
    assert a_population().next_legs(before) == first
    assert a_population("another-uid").next_legs(before) != first
    later = waiting(3.0, 1.0, 4.0, 2.0, leg=2)
    assert a_population().next_legs(later)[3].config != first[3].config


def test_a_value_that_is_no_number_is_the_worst():
    after = a_population().next_legs(waiting(3.0, 1.0, None, 2.0))
    assert [n for n, t in after.items() if t.origin and t.origin.number != n] == [3]


def test_no_leg_begins_while_a_trial_is_awaited_and_those_that_are_done_are_not():
    before = waiting(3.0, 1.0, 4.0, 2.0)
    before[4] = before[4].model_copy(update={"reports": []})
    assert a_population().next_legs(before) == {}
    before[4] = before[4].model_copy(update={"state": TrialState.FAILED})
    assert list(a_population().next_legs(before)) == [1, 2, 3]
    alone = {1: waiting(3.0)[1]}
    assert a_population().next_legs(alone)[1].config == alone[1].config


def a_document(step: int, state: RunState = RunState.SUSPENDED, **facts: Any) -> Progress:
    return Progress(**{"attempt": 1, "state": state, "step": step, "step_time": 5.0, **facts})


def test_a_trial_that_is_suspended_by_its_user_has_not_come_to_the_end_of_its_leg():
    trial = Trial(number=1, config={"lr": 0.1})
    population = a_population()
    for found in (
        a_document(20, metrics={"loss": 1.0}),  # suspended after that very step
        a_document(20, RunState.TRAINING, paused_at_step=20, metrics={"loss": 1.0}),
        a_document(20, paused_at_step=40, metrics={"loss": 1.0}),
    ):
        assert population.followed(trial, found) == trial
    over = population.followed(trial, a_document(20, paused_at_step=20, metrics={"loss": 1.0}))
    assert population.waits(over)
    assert (over.state, over.value, over.reports) == (TrialState.PENDING, 1.0, [(20, 1.0)])


@pytest.fixture
def table() -> tuple[TrialTable, list[Failure]]:
    failures: list[Failure] = []
    drawn = search.configs(SWEEP, "a-uid")
    trials = [Trial(number=n, config=config) for n, config in enumerate(drawn, start=1)]
    return TrialTable(SWEEP, trials, failures.append, a_population()), failures


def test_all_trials_come_to_the_end_of_a_leg_before_the_next_one_begins(
    table: tuple[TrialTable, list[Failure]],
):
    found, failures = table
    begun = [found.begin_next() for _ in range(4)]
    assert [trial.number for trial in begun if trial] == [1, 2, 3, 4]
    assert found.begin_next() is None
    for number, loss in ((1, 3.0), (2, 1.0), (3, 4.0)):
        seconds = Seconds(productive=8.0)
        lost = Record(number=1, kind=RecordKind.WORKER_LOST, time=1.0, message="rank 0 died")
        metrics = {"loss": loss}
        ended = a_document(20, paused_at_step=20, metrics=metrics, seconds=seconds, records=[lost])
        found.follow(number, ended)
    assert found.begin_next() is None, "trial 4 still trains"
    found.follow(4, a_document(20, paused_at_step=20, metrics={"loss": 2.0}))
    first = found.begin_next()
    assert first is not None
    assert (first.number, first.leg) == (1, 2)
    restored = Record(number=1, kind=RecordKind.RESTORED, time=2.0, message="restored", step=20)
    again = Record(number=2, kind=RecordKind.WORKER_LOST, time=3.0, message="rank 0 died again")
    once_more = restored.model_copy(update={"number": 3, "message": "restored once more"})
    found.follow(
        1,
        a_document(
            25,
            RunState.TRAINING,
            records=[restored, again, once_more],
            restored_from="s3://a",
            resumed_from_step=20,
            seconds=Seconds(productive=2.0),
        ),
    )
    whole = found.progress(Progress(attempt=1))
    assert whole.step == 25 + 20 + 20 + 20
    assert whole.seconds.productive == (3 * 8.0 + 2.0) / 2, "earlier legs count"
    assert [one.message for one in whole.records if "trial 1" in one.message] == [
        "trial 1: rank 0 died",
        "trial 1: rank 0 died again",
        "trial 1: restored once more",
    ]
    assert failures == []


def test_a_training_without_a_session_is_told_to_use_one(table: tuple[TrialTable, list[Failure]]):
    found, failures = table
    found.begin_next()
    found.follow(1, a_document(21, RunState.TRAINING))
    (failure,) = failures
    assert failure.kind == "Application"
    assert "trial 1 has done step 21 and did not wait for the others after step 20" in (
        failure.message
    )


def test_a_driver_asks_once_which_of_all_former_legs_are_there_still(
    monkeypatch: pytest.MonkeyPatch,
):
    """Of a sweep at leg 50, whose head was lost while the last one's were deleted."""
    bucket = Bucket("memory:///", None, None, MemoryStore())  # local files are deleted unlisted
    lease = Lease.take(bucket, 1, "pod", 0.0)
    storage = ContractStorage(uri="file:///unused")
    contract = RunContract(name="a", namespace="b", uid="c", attempt=1, storage=storage)
    kept = ["trials/0001/metrics/a", *(f"trials/{n:04d}-49/checkpoints/a" for n in (1, 2, 4))]
    left = ["0003/manifests/a", "0002-30/checkpoints/a/b", "0003-49/checkpoints/a"]
    for key in (*kept, *(f"trials/{key}" for key in left)):
        bucket.put(key, b"")
    lists: list[str] = []
    failing = [1, 3]  # the list of all, and that of one of the three folders

    def counted(store: Any, prefix: str) -> Any:
        lists.append(prefix)
        if failing and len(lists) == failing[0]:
            failing.pop(0)
            raise OSError("the store does not answer")
        return obstore.list(store, prefix)

    fake = SimpleNamespace(**{**vars(obstore), "list": counted})
    monkeypatch.setattr("trainingrun_runtime.store.bucket.obstore", fake)
    trials = a_population().next_legs(waiting(3.0, 1.0, 4.0, 2.0, leg=49))
    assert len(outdated(trials)) == 4 * 48 + 1
    folders = TrialFolders(contract, SWEEP, lease, a_population())
    for _ in range(3):  # it tries again what it could not do
        folders.remove_outdated(trials)
    assert failing == []
    assert {entry.key for entry in bucket.list("trials")} == set(kept)
    for driver in (folders, TrialFolders(contract, SWEEP, lease, a_population())):
        lists.clear()
        driver.remove_outdated(trials)
        assert lists == ([] if driver is folders else ["trials"])


def test_each_leg_has_a_folder_and_goes_once_nothing_begins_from_it():
    assert record.folder(7) == "trials/0007"
    assert record.folder(7, 2) == "trials/0007-02"
    second = a_population().next_legs(waiting(3.0, 1.0, 4.0, 2.0))
    assert outdated(second) == ["trials/0003"], "the others begin from there"
    third = {
        n: t.model_copy(update={"leg": 3, "origin": Origin(number=n, leg=2, step=40)})
        for n, t in second.items()
    }
    assert outdated(third) == [record.folder(n) for n in (1, 2, 3, 4)]
