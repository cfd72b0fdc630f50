"""A sweep's pure parts: what is drawn, what is best, what the next driver reads, one document."""

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

from support import checkpoints
from trainingrun_protocol.contract import (
    ContractParameter,
    ContractStorage,
    ContractSweep,
    RunContract,
)
from trainingrun_protocol.progress import (
    Failure,
    LastCheckpoint,
    Progress,
    ProgressResult,
    Record,
    RecordKind,
    RunState,
    Seconds,
    TrialState,
)
from trainingrun_runtime.progress import document as progress_document
from trainingrun_runtime.store import last_progress
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.lease import Lease, LossHistory, Superseded
from trainingrun_runtime.store.reported_metrics import number_of
from trainingrun_runtime.store.restore_source import NothingToRestore
from trainingrun_runtime.sweep import record, search, summary
from trainingrun_runtime.sweep.record import Trial
from trainingrun_runtime.sweep.schedulers import Rungs
from trainingrun_runtime.sweep.summary import Summary
from trainingrun_runtime.sweep.trial import TrialLease
from trainingrun_runtime.sweep.trial_folders import TrialFolders
from trainingrun_runtime.sweep.trial_table import TrialTable


def a_sweep(*parameters: ContractParameter, **settings: Any) -> ContractSweep:
    found = [*parameters] or [ContractParameter(name="lr", values=[0.1, 0.2])]
    return ContractSweep(**{"metric": "loss", "mode": "min", "space": found, **settings})


def trials(*values: float | None, state: TrialState = TrialState.RUNNING) -> dict[int, Trial]:
    return {
        number: Trial(number=number, config={"lr": number / 10}, state=state, value=value)
        for number, value in enumerate(values, start=1)
    }


def test_a_grid_tries_every_combination():
    drawn = search.configs(
        a_sweep(
            ContractParameter(name="lr", values=[0.1, 0.2]),
            ContractParameter(name="size", values=[1, 2, 3]),
        ),
        "seed",
    )
    assert len(drawn) == 6
    assert drawn[0] == {"lr": 0.1, "size": 1}
    assert {(config["lr"], config["size"]) for config in drawn} == {
        (lr, size) for lr in (0.1, 0.2) for size in (1, 2, 3)
    }


def test_what_is_drawn_follows_from_the_seed_and_stays_within_the_bounds():
    sweep = a_sweep(
        ContractParameter(name="lr", min=0.001, max=0.1, scale="log"),
        ContractParameter(name="dropout", min=0, max=0.5),
        ContractParameter(name="layers", min=1, max=4, type="integer"),
        ContractParameter(name="norm", values=["batch", "layer"]),
        samples=200,
    )
    drawn = search.configs(sweep, "a-uid")
    assert drawn == search.configs(sweep, "a-uid")
    assert drawn != search.configs(sweep, "another-uid")
    assert all(0.001 <= config["lr"] <= 0.1 for config in drawn)
    assert all(0 <= config["dropout"] <= 0.5 for config in drawn)
    assert {config["layers"] for config in drawn} == {1, 2, 3, 4}
    assert all(type(config["layers"]) is int for config in drawn)
    assert {config["norm"] for config in drawn} == {"batch", "layer"}
    low = sum(config["lr"] < 0.01 for config in drawn)
    assert 70 < low < 130, "log: half of them are below the geometric mean"


@pytest.mark.parametrize(("mode", "number"), [("min", 2), ("max", 1)])
def test_the_best_trial_is_one_that_was_trained_to_its_end(mode: str, number: int):
    found = trials(3.0, 2.0, state=TrialState.SUCCEEDED)
    found[3] = Trial(number=3, config={}, state=TrialState.STOPPED, value=-9.0)
    found[4] = Trial(number=4, config={}, state=TrialState.FAILED, value=99.0)
    assert getattr(record.best(found, mode), "number", None) == number
    assert record.best(trials(None, None), mode) is None
    running = trials(3.0, 3.0)
    assert getattr(record.best(running, mode), "number", None) == 1, "of equal ones the first"


def test_a_trial_that_was_not_trained_to_its_end_is_the_best_so_far_and_never_the_result():
    found = trials(None, state=TrialState.SUCCEEDED)  # with NaN
    found[2] = Trial(number=2, config={}, state=TrialState.STOPPED, value=0.1)
    assert record.best(found, "min") == found[2]
    assert record.best_done(found, "min") is None
    found[3] = Trial(number=3, config={}, state=TrialState.SUCCEEDED, value=9.0)
    assert record.best(found, "min") == record.best_done(found, "min") == found[3]


def a_lease(bucket: Bucket) -> Lease:
    return Lease.take(bucket, 1, "pod", 0.0)


def test_the_next_driver_reads_what_the_one_before_it_wrote(tmp_path: Path):
    bucket = Bucket.open(f"file://{tmp_path}/run")
    first = a_lease(bucket)
    assert record.read(bucket, first.fencing_token) is None
    found = trials(1.5, None)
    found[2] = found[2].model_copy(update={"reports": [(10, 2.0), (40, None)]})
    record.write(first, found, a_sweep())
    second = a_lease(bucket)
    noted = record.read(bucket, second.fencing_token)
    assert noted is not None
    assert (noted.metric, noted.best, noted.trials) == ("loss", 1, list(found.values()))
    with pytest.raises(Superseded):
        record.write(first, trials(9.0), a_sweep())
    bucket.put("sweep/000002.json", b'{"trials": [{')  # of a driver before the third one
    third = a_lease(bucket)
    assert record.read(bucket, third.fencing_token) == noted


@pytest.mark.parametrize(
    "content", [b'{"version": 2, "trials": []}', b'{"trials": [{"number": 1, "state": "Paused"}]}']
)
def test_a_record_of_another_version_is_not_passed_over_by_a_driver(tmp_path: Path, content: bytes):
    """As after a rollback of the image: an older one, or none, would decide the trials anew."""
    bucket = Bucket.open(f"file://{tmp_path}/run")
    first = a_lease(bucket)
    record.write(first, trials(1.5), a_sweep())
    second = a_lease(bucket)
    bucket.put("sweep/000002.json", content)
    third = a_lease(bucket)
    assert second.fencing_token == 2
    with pytest.raises(NothingToRestore, match=r"sweep/000002\.json has a format that"):
        record.read(bucket, third.fencing_token)
    assert record.read(bucket) is not None, "a reader decides nothing"


def test_a_checkpoint_of_another_version_fails_no_trial_alone(tmp_path: Path):
    """It would be final, and the sweep succeed without it."""
    bucket = Bucket.open(f"file://{tmp_path}/run")
    first = a_lease(bucket)
    record.write(first, trials(None, state=TrialState.RUNNING), a_sweep())
    key = f"{record.folder(1)}/manifests/000001-000001.json"
    bucket.put(key, b'{"version": 3}')
    storage = ContractStorage(uri=bucket.root)
    contract = RunContract(name="a", namespace="b", uid="0", attempt=2, storage=storage)
    folders = TrialFolders(contract, a_sweep(), a_lease(bucket), None)
    with pytest.raises(NothingToRestore, match="it has version 3 of its format"):
        folders.trials()


def test_a_trial_is_held_as_long_as_its_driver_holds_the_run(tmp_path: Path):
    bucket = Bucket.open(f"file://{tmp_path}/run")
    own = Bucket.open(bucket.uri(record.folder(7)))
    run = a_lease(bucket)
    trial = TrialLease.of(run, own)
    trial.require()
    assert trial.fencing_token == run.fencing_token
    assert (tmp_path / "run" / "trials" / "0007" / "lease" / "000001.json").exists()
    a_lease(bucket)
    with pytest.raises(Superseded):
        trial.require()


def test_a_trial_has_begun_when_it_did_and_not_when_the_driver_of_the_run_did(tmp_path: Path):
    bucket = Bucket.open(f"file://{tmp_path}/run")
    own = Bucket.open(bucket.uri(record.folder(7)))
    run, before = Lease.take(bucket, 1, "head", 1000.0), time.time()
    TrialLease.of(run, own)
    (driver,) = last_progress.drivers(own)
    assert before <= driver.began <= time.time()
    assert driver.seen == driver.began


@pytest.mark.parametrize(("saved", "losses"), [(12, 0), (11, 1)], ids=["the last", "an earlier"])
def test_a_trial_whose_step_was_saved_after_its_lease_was_written_has_lost_none(
    tmp_path: Path, saved: int, losses: int
):
    """As with a head that is drained."""
    bucket = Bucket.open(f"file://{tmp_path}/run")
    own = Bucket.open(bucket.uri(record.folder(7)))
    trial = TrialLease.of(a_lease(bucket), own)
    trial.history = LossHistory(unsaved=True, step=12)
    trial.renew(1.0)
    state = tmp_path / "state"
    state.mkdir()
    checkpoints.put(own, state, saved, 0)
    assert TrialLease.of(a_lease(bucket), own).history.losses == losses


def test_asha_stops_what_is_worse_than_most_others_were_after_as_many_steps():
    rungs = Rungs(a_sweep(asha=True, grace_steps=10, reduction_factor=2), [])
    assert rungs.compare(1, 9, 5.0) == (False, False)
    assert rungs.compare(1, 10, 1.0) == (True, False)
    assert rungs.compare(1, 11, 9.0) == (False, False), "compared once at each number of steps"
    assert rungs.compare(2, 10, 2.0) == (True, True)
    assert rungs.compare(3, 12, 0.5) == (True, False)
    assert rungs.compare(4, 10, None) == (True, True), "no number is worse than any"


def test_a_long_training_is_not_stopped_by_asha_for_its_steps_alone():
    for grace_steps, factor in ((1, 2), (1_000_000_000, 16)):
        rungs = Rungs(a_sweep(asha=True, grace_steps=grace_steps, reduction_factor=factor), [])
        assert rungs.compare(1, grace_steps * factor**19, 0.05) == (True, False)
        assert rungs.compare(1, grace_steps * factor**52, 0.05) == (True, False)


def test_the_next_driver_compares_with_what_a_former_one_has_seen():
    former = trials(1.0, 1.1)
    former[1] = former[1].model_copy(update={"reports": [(10, 1.0)]})
    former[2] = former[2].model_copy(update={"reports": [(10, 0.9)]})
    sweep = a_sweep(asha=True, grace_steps=10, reduction_factor=2)
    rungs = Rungs(sweep, former.values())
    assert rungs.compare(3, 10, 2.0) == (True, True)
    assert Rungs(sweep, []).compare(3, 10, 2.0) == (True, False)
    assert rungs.compare(1, 15, 9.0) == (False, False), "a resumed trial was compared already"


def a_document(step: int, **facts: Any) -> Progress:
    return Progress(
        **{"attempt": 1, "state": RunState.TRAINING, "step": step, "step_time": 5.0, **facts}
    )


HEAD = Progress(attempt=2, fencing_token=3, time=9.0)


def test_one_document_adds_up_the_trials():
    found = trials(2.0, 1.0, None)
    found[1] = found[1].model_copy(update={"state": TrialState.SUCCEEDED, "step": 100})
    found[2] = found[2].model_copy(update={"step": 40, "metrics": {"loss": 1.0}})
    adds = Summary(a_sweep(concurrency=2), found)
    found[2] = found[2].model_copy(update={"step": 50})
    documents = {
        2: a_document(
            50,
            total_steps=100,
            world_size=1,
            seconds=Seconds(productive=8.0),
            checkpoint=LastCheckpoint(uri="s3://a/45", step=45, time=4.0),
            lost_nodes=["node-a"],
        ),
        3: a_document(0, state=RunState.STARTING, step_time=None),
    }
    whole = adds.progress(found, documents, HEAD)
    assert (whole.attempt, whole.fencing_token, whole.state) == (2, 3, RunState.TRAINING)
    assert whole.step == 150
    assert whole.resumed_from_step == 140
    assert whole.total_steps == 300, "a trial that has not begun counts as the mean of the others"
    assert whole.world_size == 1
    assert whole.seconds.productive == 4.0, "of two that are trained at once"
    assert whole.checkpoint is not None
    assert (whole.checkpoint.uri, whole.checkpoint.step) == ("s3://a/45", 145)
    assert whole.lost_nodes == ["node-a"]
    assert whole.sweep is not None
    assert whole.sweep.best == 1, "the only one that was trained to its end"


OPERATOR_READS = 256 * 1024


def a_large_sweep() -> dict[int, Trial]:
    """200 trials of 20 parameters, every second one failed; the later ones are better."""
    return {
        number: Trial(
            number=number,
            config={f"rate_of_the_layer_group_{p:02}": 1 / (number + p / 7) for p in range(20)},
            state=TrialState.FAILED if number % 2 else TrialState.SUCCEEDED,
            step=number,
            value=1 / number,
            checkpoint_uri=f"s3://runs/demo/trials/{number:04}/checkpoints/000060",
            message="an error " * 33 if number % 2 else "",
        )
        for number in range(1, 201)
    }


@pytest.mark.parametrize("state", [RunState.TRAINING, RunState.SUCCEEDED])
def test_a_document_of_200_trials_is_one_that_the_operator_reads(state: RunState, tmp_path: Path):
    found = a_large_sweep()
    table = record.SweepRecord.of(found, a_sweep()).table()
    assert len(json.dumps(table.to_dict())) > OPERATOR_READS
    result = ProgressResult(sweep=table) if state is RunState.SUCCEEDED else None
    head = HEAD.model_copy(update={"state": state, "result": result})
    whole = Summary(a_sweep(), found).progress(found, {}, head)
    progress_document.write(tmp_path / "progress.json", whole)
    content = (tmp_path / "progress.json").read_bytes()
    assert len(content) < OPERATOR_READS
    read = Progress.model_validate_json(content)
    seen = read.result.sweep if read.result is not None else read.sweep
    assert seen is not None
    assert [(row.number, row.state, row.step, row.value) for row in seen.trials] == [
        (trial.number, trial.state, trial.step, trial.value) for trial in found.values()
    ]
    assert seen.best == 200
    best = {200 - 2 * n for n in range(20)}
    assert all(row.config for row in seen.trials if row.number in best), "status.result has them"
    assert all(row.message for row in seen.trials if row.state is TrialState.FAILED)


def test_a_small_document_has_the_table_as_it_is_and_once():
    found = trials(2.0, 1.0, state=TrialState.SUCCEEDED)
    found[3] = Trial(number=3, config={"lr": 0.3}, state=TrialState.FAILED, message="x" * 300)
    table = record.SweepRecord.of(found, a_sweep()).table()
    adds = Summary(a_sweep(), found)
    assert adds.progress(found, {}, HEAD).sweep == table
    head = HEAD.model_copy(update={"result": ProgressResult(sweep=table)})
    done = adds.progress(found, {}, head)
    assert (done.result, done.sweep) == (head.result, None)


def test_of_trials_with_long_texts_and_names_each_keeps_its_value():
    found = {
        number: trial.model_copy(
            update={
                "config": {f"{p:02}" + "n" * 90: "ü" * 200 for p in range(20)},
                "checkpoint_uri": "s3://" + "a" * 1000,
                "message": "ü" * 2000,
            }
        )
        for number, trial in a_large_sweep().items()
    }
    whole = Summary(a_sweep(), found).progress(found, {}, HEAD)
    assert len(json.dumps(whole.to_dict())) < OPERATOR_READS
    assert whole.sweep is not None
    assert [(row.number, row.value) for row in whole.sweep.trials] == [
        (trial.number, trial.value) for trial in found.values()
    ]
    assert whole.sweep.trials[-1].config, "the best one's are left out last"


WAITS = "rank 0 waits in ray.train.report for over 30 s for rank 1, which is elsewhere"


def test_ranks_of_a_trial_that_wait_for_others_are_named_with_the_trial():
    found = trials(None, None, None)
    adds = Summary(a_sweep(concurrency=3), found)
    documents = {1: a_document(9), 2: a_document(5, standstill=WAITS), 3: a_document(9)}
    assert adds.progress(found, documents, HEAD).standstill == f"trial 2: {WAITS}"
    found[2] = found[2].model_copy(update={"state": TrialState.STOPPED})
    assert adds.progress(found, documents, HEAD).standstill is not None, "it has not ended yet"
    documents[2] = a_document(5, standstill=WAITS, state=RunState.SUSPENDED)
    assert adds.progress(found, documents, HEAD).standstill is None
    documents[2] = a_document(6)
    assert adds.progress(found, documents, HEAD).standstill is None


def test_the_latest_hang_of_a_trial_is_named_with_the_trial():
    found = trials(None, None)
    adds = Summary(a_sweep(concurrency=2), found)
    hangs = [
        {"time": at, "seconds": 20, "message": "no step for 20 s", "under_way": True}
        for at in (1, 2)
    ]
    documents = {
        1: a_document(9, hang=hangs[0], stuck_pods=["pod-1"]),
        2: a_document(9, hang=hangs[1], state=RunState.FAILED, stuck_pods=["pod-2"]),
    }
    whole = adds.progress(found, documents, HEAD)
    assert whole.hang is not None
    assert whole.hang.message == "trial 2: no step for 20 s"
    assert not whole.hang.under_way, "that trial has ended"
    assert whole.stuck_pods == ["pod-1"]


def test_warnings_are_those_of_all_trials_and_waits_those_of_the_one_that_waits_longest():
    found = trials(None, None)
    adds = Summary(a_sweep(concurrency=2), found)
    slow = {"communication_wait_share": 0.6, "communication_wait_rank": 1}
    documents = {
        1: a_document(9, warnings=["rank 0 is slow"], **slow),
        2: a_document(9, warnings=["the memory of rank 1 is full"], communication_wait_share=0.1),
    }
    whole = adds.progress(found, documents, HEAD)
    assert whole.warnings == ["trial 1: rank 0 is slow", "trial 2: the memory of rank 1 is full"]
    assert (whole.communication_wait_share, whole.communication_wait_rank) == (0.6, 1)


def test_each_thing_that_happened_in_a_trial_is_counted_once():
    found = trials(None, None)
    adds = Summary(a_sweep(concurrency=2), found)
    lost = Record(number=1, kind=RecordKind.WORKER_LOST, time=1.0, message="rank 0 died", step=7)
    bug = Record(number=2, kind=RecordKind.APPLICATION_ERROR, time=2.0, message="a bug")
    again = lost.model_copy(update={"number": 3, "time": 3.0})
    adds.progress(found, {1: a_document(7, records=[lost])}, HEAD)
    whole = adds.progress(
        found,
        {1: a_document(9, records=[lost, bug, again]), 2: a_document(4, records=[lost])},
        HEAD,
    )
    assert [(r.number, r.message) for r in whole.records] == [
        (1, "trial 1: rank 0 died"),
        (2, "trial 1: rank 0 died"),
        (3, "trial 2: rank 0 died"),
    ], "a trial's own error is no error of the run"


def restored(number: int, step: int) -> Record:
    message = f"resumed from step {step}"
    return Record(number=number, kind=RecordKind.RESTORED, time=9.0, message=message, step=step)


def test_that_a_trial_begins_after_a_loss_of_another_one_is_not_told_as_what_followed_it():
    found = trials(None, None, None, None)
    adds = Summary(a_sweep(concurrency=2), found)
    lost = Record(number=2, kind=RecordKind.WORKER_LOST, time=6.0, message="rank 0 died", step=7)
    first, waits = restored(1, 0), a_document(0, records=[restored(1, 0)], step_time=None)
    adds.progress(found, {1: waits}, HEAD)
    documents = {
        1: a_document(7, records=[first, lost], resumed_from_step=0),
        2: a_document(0, records=[restored(1, 0)], resumed_from_step=0),
        3: a_document(0, records=[lost, restored(3, 0)], resumed_from_step=0),
        4: a_document(8, records=[restored(1, 8)], resumed_from_step=8),
    }
    adds.progress(found, {1: a_document(7, records=[first])}, HEAD)
    told = [one.message for one in adds.progress(found, documents, HEAD).records]
    assert told == [
        "trial 1: resumed from step 0",  # before any step: a loss may have come before it
        "trial 1: rank 0 died",
        "trial 3: rank 0 died",
        "trial 3: resumed from step 0",
        "trial 4: resumed from step 8",
    ]


def test_a_trial_that_is_done_is_so_though_it_was_to_be_stopped():
    (trial,) = trials(2.0, state=TrialState.STOPPED).values()
    result = ProgressResult(metrics={"loss": 1.0}, checkpoint_uri="s3://a/9")
    done = summary.update(trial, a_document(9, state=RunState.SUCCEEDED, result=result))
    assert (done.state, done.step, done.checkpoint_uri) == (TrialState.SUCCEEDED, 9, "s3://a/9")
    suspended = summary.update(trial, a_document(7, state=RunState.SUSPENDED))
    assert (suspended.state, suspended.step) == (TrialState.STOPPED, 7)
    failed = a_document(3, state=RunState.FAILED, failure=Failure(kind="Storage", message="full"))
    assert summary.update(trial, failed).state is TrialState.STOPPED


def a_table(sweep: ContractSweep, found: dict[int, Trial]) -> tuple[TrialTable, list[Failure]]:
    failures: list[Failure] = []
    return TrialTable(sweep, found.values(), failures.append), failures


def test_a_trial_is_to_be_stopped_only_once_that_is_noted():
    found = trials(None, None, state=TrialState.PENDING)
    table, _ = a_table(a_sweep(asha=True, grace_steps=10, reduction_factor=2), found)
    assert table.changes() is not None
    assert table.changes() is None, "nothing is new"
    for number in (1, 2):
        table.follow(number, a_document(10))
        assert table.reported(number, 10, float(number)) is False
    changes = table.changes()
    assert changes is not None
    noted, stopping = changes
    assert stopping == {2}
    assert [noted[1].state, noted[2].state] == [TrialState.RUNNING, TrialState.STOPPED]
    assert noted[2].reports == [(10, 2.0)]
    assert table.left() == [1]
    assert table.under_way() == [1, 2], "the stopped one still saves its state"


def test_an_error_of_the_training_ends_its_trial_and_any_other_one_the_attempt():
    table, failures = a_table(a_sweep(), trials(None, None, state=TrialState.PENDING))
    bug = Failure(kind="Application", message="a bug")
    table.follow(1, a_document(3, state=RunState.FAILED, failure=bug))
    assert (table.trials[1].state, table.trials[1].message) == (TrialState.FAILED, "a bug")
    assert failures == []
    full = Failure(kind="Storage", message="the disk is full")
    table.follow(2, a_document(3, state=RunState.FAILED, failure=full))
    assert failures == [Failure(kind="Storage", message="trial 2: the disk is full")]
    assert table.postpone() == [2]
    assert table.trials[2].state is TrialState.PENDING


@pytest.mark.parametrize(("other", "retry"), [(None, "Never"), (0.5, "Always")])
def test_a_trial_that_is_done_without_the_metric_ends_the_sweep(other: float | None, retry: str):
    """For good where no trial has reported it: each would be trained for a wrong name."""
    table, failures = a_table(a_sweep(), trials(None, other, state=TrialState.PENDING))
    result = ProgressResult(metrics={"accuracy": 0.9})
    table.follow(1, a_document(9, state=RunState.SUCCEEDED, result=result))
    (failure,) = failures
    assert "has not reported 'loss', the metric of the sweep; it reported accuracy" in (
        failure.message
    )
    assert failure.retry == retry


def test_the_final_value_is_that_of_the_result():
    table, failures = a_table(a_sweep(), trials(None, None, state=TrialState.PENDING))
    for number, metrics in ((1, {"loss": 0.5}), (2, {"loss": "NaN"})):
        table.reported(number, 5, 2.0)
        result = ProgressResult(metrics=metrics)
        table.follow(number, a_document(9, state=RunState.SUCCEEDED, result=result))
        assert table.reported(number, 6, 0.1) is False, "Ray Tune tells of it later"
    assert [trial.value for trial in table.trials.values()] == [0.5, None], "NaN is no value"
    assert failures == []
    assert record.best_done(table.trials, "min") == table.trials[1]


@pytest.mark.parametrize("value", [True, "nan", None, math.nan, math.inf])
def test_a_value_that_is_no_number_is_none(value: Any):
    assert number_of(value) is None


LOST = Failure(kind="Infrastructure", message="10 worker groups in a row ended")


def test_a_trial_that_is_lost_again_and_again_while_others_do_steps_has_failed_alone():
    table, failures = a_table(a_sweep(), trials(None, None, state=TrialState.PENDING))
    table.follow(2, a_document(50, step_time=90.0))
    table.follow(1, a_document(3, step_time=5.0, state=RunState.FAILED, failure=LOST))
    assert table.trials[1].state is TrialState.FAILED
    assert table.trials[1].message == LOST.message
    assert failures == []


def test_where_no_other_trial_does_steps_the_attempt_ends_and_that_trial_comes_last():
    found = trials(None, None, state=TrialState.PENDING)
    table, failures = a_table(a_sweep(), found)
    table.follow(2, a_document(50, step_time=4.0))  # it has ended before
    table.follow(1, a_document(3, step_time=5.0, state=RunState.FAILED, failure=LOST))
    assert [failure.message for failure in failures] == [f"trial 1: {LOST.message}"]
    table.follow(1, a_document(3, step_time=5.0, state=RunState.FAILED, failure=LOST))
    assert table.trials[1].lost == 1, "it is read again and again"
    assert table.postpone() == [1, 2]
    following, failures = a_table(a_sweep(), table.trials)
    begun = [following.begin_next(), following.begin_next()]
    assert [trial.number for trial in begun if trial] == [2, 1]
    result = ProgressResult(metrics={"loss": 1.0})
    following.follow(2, a_document(60, state=RunState.SUCCEEDED, result=result))
    following.follow(1, a_document(3, step_time=9.0, state=RunState.FAILED, failure=LOST))
    assert following.trials[1].state is TrialState.FAILED, "nothing else is left to find out"
    assert failures == []


def test_where_the_others_were_done_before_a_trial_began_that_is_lost_the_attempt_ends():
    table, failures = a_table(a_sweep(), trials(None, None, state=TrialState.PENDING))
    assert table.begin_next() is not None
    result = ProgressResult(metrics={"loss": 1.0})
    long_ago = time.time() - 3600
    table.follow(1, a_document(60, step_time=long_ago, state=RunState.SUCCEEDED, result=result))
    assert table.begin_next() is not None
    table.follow(2, a_document(0, step_time=None, state=RunState.FAILED, failure=LOST))
    assert failures == [Failure(kind="Infrastructure", message=f"trial 2: {LOST.message}")]
    assert table.postpone() == [2], "the next attempt trains it again"


def test_a_trial_that_is_lost_before_a_step_while_others_do_steps_has_failed_alone():
    table, failures = a_table(a_sweep(), trials(None, None, state=TrialState.PENDING))
    assert [table.begin_next() is None for _ in (1, 2)] == [False, False]
    table.follow(1, a_document(60, step_time=time.time() + 60))
    table.follow(2, a_document(0, step_time=None, state=RunState.FAILED, failure=LOST))
    assert table.trials[2].state is TrialState.FAILED
    assert failures == []


def test_a_trial_that_a_rule_has_ended_for_a_loss_has_failed_alone():
    table, failures = a_table(a_sweep(), trials(None, None, state=TrialState.PENDING))
    ruled = LOST.model_copy(update={"loss": "WorkerLost"})
    table.follow(1, a_document(3, step_time=5.0, state=RunState.FAILED, failure=ruled))
    assert table.trials[1].state is TrialState.FAILED
    assert failures == []


def test_an_error_of_the_store_is_never_a_trial_s_own():
    table, failures = a_table(a_sweep(), trials(None, None, state=TrialState.PENDING))
    table.follow(2, a_document(50, step_time=90.0))
    full = Failure(kind="Storage", message="the disk is full")
    table.follow(1, a_document(3, state=RunState.FAILED, failure=full))
    assert len(failures) == 1


def test_a_trial_that_has_saved_and_ended_on_request_waits_and_does_not_run():
    table, _ = a_table(a_sweep(), trials(None, None, state=TrialState.PENDING))
    for number in (1, 2):
        table.follow(number, a_document(9))
    table.follow(1, a_document(9, state=RunState.SUSPENDED))
    assert [trial.state for trial in table.trials.values()] == [
        TrialState.PENDING,
        TrialState.RUNNING,
    ]


def test_the_steps_of_a_sweep_do_not_run_backwards_while_a_trial_resumes():
    found = trials(None, None, state=TrialState.PENDING)
    found = {n: trial.model_copy(update={"step": 40}) for n, trial in found.items()}
    table, _ = a_table(a_sweep(concurrency=2), found)
    seen = []
    for document in (
        a_document(0, step_time=None, state=RunState.STARTING),
        a_document(40, step_time=None, state=RunState.STARTING, resumed_from_step=40),
        a_document(41, resumed_from_step=40),
    ):
        table.follow(1, document)
        seen.append(table.progress(HEAD).step)
    assert seen == [80, 80, 81]
    table.follow(2, a_document(0, resumed_from_step=0))
    assert table.progress(HEAD).step == 41, "what was lost is not shown"
