"""Where the time went: what the driver's account says after each kind of loss."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from trainingrun_protocol.progress import (
    Failure,
    LastCheckpoint,
    ProgressResult,
    RecordKind,
    RunState,
)
from trainingrun_runtime.progress import time_accounting
from trainingrun_runtime.progress.prometheus_metrics import exposition
from trainingrun_runtime.progress.time_accounting import StepReport, TimeAccounting
from trainingrun_runtime.store.lease import LossHistory, LostDriver


def report(group: int, step: int, begun: float, done: float, **more: float) -> StepReport:
    sums = {"productive": done - begun, "checkpoint": 0.0, **more}
    return StepReport(group=group, step=step, total=100, begun=begun, done=done, **sums)


def losses(accounting: TimeAccounting) -> LossHistory:
    """The driver's history, without how far it is."""
    return accounting.history().model_copy(update={"step": 0, "step_time": None})


@pytest.fixture
def accounting() -> TimeAccounting:
    """A driver that started at 1000 and trains its first group since 1030, a step a second."""
    accounting = TimeAccounting(attempt=1, fencing_token=1, now=1000.0)
    accounting.group_started(1020.0, world_size=2, resumed_step=0)
    for step in (10, 20, 30):
        accounting.stepped(report(1, step, 1030.0, 1030.0 + step))
    return accounting


def test_the_time_to_the_first_step_is_startup(accounting):
    assert accounting.document(1060.0).seconds.startup == 30.0


def test_steps_are_productive(accounting):
    assert accounting.document(1060.0).seconds.productive == 30.0


def test_steps_after_the_last_checkpoint_are_lost_when_the_group_restarts(accounting):
    accounting.disrupted(1061.0, RecordKind.WORKER_LOST, "rank 1 died")
    accounting.group_started(1065.0, world_size=2, resumed_step=20)
    seconds = accounting.document(1065.0).seconds
    assert (seconds.productive, seconds.lost_work) == (20.0, 10.0)


def counters(accounting: TimeAccounting) -> dict[str, float]:
    """What Prometheus scrapes of the time, by cause."""
    text = exposition(accounting.document(0.0).to_dict(), {})
    (found,) = (f for f in text_string_to_metric_families(text) if f.name == "trainingrun_seconds")
    return {sample.labels["cause"]: sample.value for sample in found.samples}


def stepped(accounting: TimeAccounting, group: int, step: int, begun: float, now: float) -> None:
    part = (now - begun) / 10
    accounting.stepped(report(group, step, begun, now, productive=part * 9, checkpoint=part))


def reported(accounting: TimeAccounting, group: int, step: int, begun: float, now: float) -> None:
    accounting.reported(now, step, {})


@pytest.mark.parametrize("do", [stepped, reported], ids=["a session", "a script"])
def test_no_counter_falls_through_a_loss_not_even_by_its_last_digit(
    do: Callable[[TimeAccounting, int, int, float, float], None],
):
    """Prometheus takes what falls for a counter that began again at 0, and adds all of it."""
    draw, now, step = random.Random(7), 1000.0, 0
    accounting = TimeAccounting(attempt=1, fencing_token=1, now=now)
    before = counters(accounting)
    for group in range(1, 300):
        step = draw.randint(max(step - 20, 0), step)
        accounting.group_started(now := now + draw.random(), world_size=2, resumed_step=step)
        seen = [counters(accounting)]
        begun = now
        for _ in range(draw.randint(0, 5)):
            do(accounting, group, step := step + 3, begun, now := now + draw.random())
            seen.append(counters(accounting))
        accounting.disrupted(now := now + draw.random(), RecordKind.WORKER_LOST, "rank 1 died")
        for after in [*seen, counters(accounting)]:
            assert all(after[cause] >= spent for cause, spent in before.items()), (before, after)
            before = after
    assert before["steps"] > before["lostWork"] > 0


def test_a_checkpoint_between_two_reports_loses_what_came_after_it(accounting):
    accounting.group_started(1065.0, world_size=2, resumed_step=25)
    seconds = accounting.document(1065.0).seconds
    assert (seconds.productive, seconds.lost_work) == (25.0, 5.0)


def test_a_checkpoint_made_at_the_notice_loses_nothing(accounting):
    accounting.group_started(1065.0, world_size=2, resumed_step=30)
    seconds = accounting.document(1065.0).seconds
    assert (seconds.productive, seconds.lost_work) == (30.0, 0.0)


def test_the_time_from_the_last_step_to_the_next_first_one_is_recovery(accounting):
    accounting.group_started(1065.0, world_size=2, resumed_step=30)
    accounting.stepped(report(2, 31, 1072.0, 1073.0))
    seconds = accounting.document(1073.0).seconds
    assert (seconds.recovery, seconds.startup, seconds.productive) == (12.0, 30.0, 31.0)


def test_a_step_that_is_done_twice_is_productive_once(accounting):
    accounting.group_started(1065.0, world_size=2, resumed_step=20)
    accounting.stepped(report(2, 30, 1070.0, 1080.0))
    seconds = accounting.document(1080.0).seconds
    assert (seconds.productive, seconds.lost_work) == (30.0, 10.0)


def test_a_straggler_of_a_replaced_group_is_not_counted(accounting):
    accounting.group_started(1065.0, world_size=2, resumed_step=30)
    accounting.stepped(report(1, 99, 1030.0, 1099.0))
    assert accounting.step == 30


def test_checkpoint_stalls_of_all_groups_add_up(accounting):
    accounting.stepped(report(1, 40, 1030.0, 1070.0, checkpoint=2.0))
    accounting.group_started(1075.0, world_size=2, resumed_step=40)
    accounting.stepped(report(2, 50, 1080.0, 1090.0, checkpoint=1.0))
    assert accounting.document(1090.0).seconds.checkpoint == 3.0


def test_a_loss_shows_as_recovering_until_the_next_step(accounting):
    accounting.disrupted(1061.0, RecordKind.PREEMPTED, "the node was drained", node="n1", pod="p1")
    assert accounting.document(1061.0).state is RunState.RECOVERING
    accounting.group_started(1065.0, world_size=2, resumed_step=30)
    accounting.stepped(report(2, 31, 1072.0, 1073.0))
    assert accounting.document(1073.0).state is RunState.TRAINING


def test_a_rank_that_has_not_seen_the_loss_yet_does_not_end_the_recovery(accounting):
    accounting.disrupted(1061.0, RecordKind.WORKER_LOST, "rank 1 died")
    accounting.stepped(report(1, 31, 1030.0, 1061.5))
    document = accounting.document(1661.0)
    assert (document.state, document.step) == (RunState.RECOVERING, 31)


def test_records_are_numbered_so_that_each_is_counted_once(accounting):
    accounting.disrupted(1061.0, RecordKind.PREEMPTED, "drained", node="n1", pod="p1")
    accounting.disrupted(1062.0, RecordKind.WORKER_LOST, "died")
    assert [r.number for r in accounting.document(1062.0).records] == [1, 2, 3]


def test_only_the_newest_hundred_records_are_kept_and_their_numbers_go_on(accounting):
    for second in range(150):
        accounting.disrupted(1100.0 + second, RecordKind.WORKER_LOST, "died")
    records = accounting.document(1300.0).records
    assert (len(records), records[-1].number) == (100, 151)


def test_the_seconds_left_follow_the_pace_of_this_group(accounting):
    assert accounting.document(1060.0).seconds_left == 70.0


def test_the_seconds_left_do_not_follow_from_first_steps_that_compile():
    accounting = TimeAccounting(attempt=1, fencing_token=1, now=0.0)
    accounting.group_started(0.0, world_size=2, resumed_step=0)
    for step, productive in ((1, 600.0), (3, 602.0), (43, 642.0)):
        accounting.stepped(report(1, step, 0.0, productive, productive=productive))
    assert accounting.document(642.0).seconds_left == 57.0


def test_the_first_failure_stays(accounting):
    accounting.failed(1061.0, Failure(kind="Application", message="ValueError: bad batch"))
    accounting.failed(1062.0, Failure(kind="Infrastructure", message="actor died"))
    document = accounting.document(1062.0)
    assert (document.state, document.failure.kind) == (RunState.FAILED, "Application")


def test_the_failure_that_was_told_before_the_end_stays(accounting):
    first = Failure(kind="Application", message="ValueError: bad batch")
    accounting.concluding(first, None)
    accounting.failed(1062.0, Failure(kind="Infrastructure", message="fit() has failed"))
    document = accounting.document(1062.0)
    assert (document.state, document.failure) == (RunState.FAILED, first)
    assert document.records[-1].kind is RecordKind.APPLICATION_ERROR
    (lost,) = documents(accounting)
    assert lost["reason"] == "ApplicationError"


def test_an_application_failure_is_on_record_and_an_infrastructure_one_is_not(accounting):
    accounting.failed(1061.0, Failure(kind="Application", message="ValueError: bad batch"))
    kinds = [r.kind for r in accounting.document(1061.0).records]
    assert kinds == [RecordKind.RESTORED, RecordKind.APPLICATION_ERROR]


def test_success_carries_the_result_and_the_checkpoint(accounting):
    accounting.committed(LastCheckpoint(uri="s3://b/c", step=30, time=1060.0))
    accounting.succeeded(
        1090.0, ProgressResult(metrics={"accuracy": 0.9}, checkpoint_uri="s3://b/c")
    )
    document = accounting.document(1061.0)
    assert document.state is RunState.SUCCEEDED
    assert document.metrics == {"accuracy": 0.9}
    assert document.checkpoint.step == 30


def test_a_driver_says_what_other_run_s_checkpoint_it_began_from():
    accounting = TimeAccounting(attempt=1, fencing_token=1, now=1000.0)
    uri = "s3://runs/other-1a2b3c4d/checkpoints/x"
    accounting.group_started(1020.0, world_size=2, resumed_step=40, restored_from=uri)
    accounting.stepped(report(1, 50, 1030.0, 1040.0))
    first = accounting.document(1040.0)
    assert (first.resumed_from_step, first.restored_from) == (40, uri)
    assert first.records[-1].message == f"restored step 40 of another run, from {uri}"
    accounting.group_started(1065.0, world_size=2, resumed_step=45)
    later = accounting.document(1065.0)
    assert later.records[-1].message == "resumed from step 45; 5 steps are done again"
    assert (later.resumed_from_step, later.restored_from) == (40, uri)
    assert (later.seconds.productive, later.seconds.lost_work) == (5.0, 5.0)


def test_a_resize_is_on_record_with_its_step_and_both_sizes(accounting):
    accounting.group_started(1065.0, world_size=1, resumed_step=30)
    document = accounting.document(1065.0)
    (resize,) = document.resizes
    assert (resize.number, resize.step, resize.time) == (1, 30, 1065.0)
    assert (resize.from_workers, resize.to_workers) == (2, 1)
    assert document.world_size == 1
    assert document.records[-1].message == "resumed from step 30; 1 worker instead of 2"


def test_a_group_of_the_same_size_is_no_resize(accounting):
    accounting.group_started(1065.0, world_size=2, resumed_step=30)
    assert accounting.document(1065.0).resizes == []


def test_the_time_at_each_size_adds_up_to_what_is_productive(accounting):
    accounting.group_started(1065.0, world_size=1, resumed_step=20)
    accounting.stepped(report(2, 35, 1070.0, 1085.0))
    accounting.group_started(1090.0, world_size=2, resumed_step=35)
    accounting.stepped(report(3, 45, 1095.0, 1105.0))
    document = accounting.document(1105.0)
    assert [(one.workers, one.seconds) for one in document.sizes] == [(1, 15.0), (2, 30.0)]
    assert document.seconds.productive == 45.0


def test_what_is_done_again_counts_for_the_size_at_which_it_counted(accounting):
    accounting.group_started(1065.0, world_size=1, resumed_step=30)
    accounting.stepped(report(2, 35, 1070.0, 1075.0))
    accounting.group_started(1080.0, world_size=2, resumed_step=20)
    sizes = accounting.document(1080.0).sizes
    assert [(one.workers, one.seconds) for one in sizes] == [(2, 20.0)]


def test_only_the_newest_hundred_resizes_are_kept_and_their_numbers_go_on(accounting):
    for count in range(150):
        accounting.group_started(1065.0, world_size=1 + count % 2, resumed_step=30)
    resizes = accounting.document(1065.0).resizes
    assert [one.number for one in resizes] == list(range(51, 151))


def test_a_loss_counts_where_steps_are_done_again_and_its_time_stays(accounting):
    accounting.committed(LastCheckpoint(uri="s3://b/x", step=20, time=1050.0))
    assert losses(accounting) == LossHistory(trained=30.0, unsaved=True)
    accounting.disrupted(1061.0, RecordKind.WORKER_LOST, "rank 1 died")
    accounting.group_started(1065.0, world_size=2, resumed_step=20)
    assert losses(accounting) == LossHistory(losses=1, trained=30.0)
    accounting.stepped(report(2, 25, 1070.0, 1075.0, checkpoint=2.0))
    assert losses(accounting) == LossHistory(losses=1, trained=37.0, unsaved=True)


def test_what_is_done_after_a_damaged_checkpoint_was_passed_over_is_unsaved_until_the_next():
    accounting = TimeAccounting(attempt=2, fencing_token=2, now=1000.0)
    accounting.committed(LastCheckpoint(uri="s3://b/damaged", step=100, time=900.0))
    accounting.group_started(1020.0, world_size=2, resumed_step=50)
    assert not accounting.history().unsaved, "nothing is done yet"
    accounting.stepped(report(1, 80, 1030.0, 1060.0))
    assert accounting.history().unsaved, "a head that is lost now loses 30 steps"
    accounting.committed(LastCheckpoint(uri="s3://b/next", step=80, time=1061.0))
    assert not accounting.history().unsaved
    accounting.stepped(report(1, 81, 1030.0, 1061.0))
    assert accounting.history().unsaved


def test_reports_without_a_new_step_take_no_memory(accounting):
    accounting.stepped(report(1, 30, 1030.0, 1061.0))
    before = len(accounting._samples)
    for second in range(1000):
        accounting.stepped(report(1, 30, 1030.0, 1062.0 + second))
    assert len(accounting._samples) == before


def test_a_run_without_a_checkpoint_keeps_a_bounded_number_of_times(accounting, monkeypatch):
    monkeypatch.setattr(time_accounting, "MAX_SAMPLES", 100)
    for step in range(31, 1001):
        accounting.stepped(report(1, step, 1030.0, 1030.0 + step))
        assert len(accounting._samples) <= 100
    accounting.group_started(2100.0, world_size=2, resumed_step=515)
    seconds = accounting.document(2100.0).seconds
    assert (seconds.productive, seconds.lost_work) == (515.0, 485.0)


def test_the_time_of_an_evaluation_counts_for_no_step_before_it(accounting):
    """The step stays the same meanwhile, and reports go on."""
    for second in range(1, 600):
        accounting.stepped(report(1, 30, 1030.0, 1060.0 + second))
    accounting.group_started(1700.0, world_size=2, resumed_step=25)
    seconds = accounting.document(1700.0).seconds
    assert (seconds.productive, seconds.lost_work) == (25.0, 604.0)


def test_a_record_says_why_steps_are_done_again(accounting):
    accounting.group_started(
        1065.0, world_size=2, resumed_step=29, not_saved="no rank notes its steps"
    )
    assert accounting.document(1065.0).records[-1].message == (
        "resumed from step 29; 1 step is done again, since no rank notes its steps"
    )


def test_nothing_is_said_of_what_was_not_saved_where_no_step_is_lost(accounting):
    accounting.group_started(1065.0, world_size=2, resumed_step=30, not_saved="no rank is left")
    assert accounting.document(1065.0).records[-1].message == "resumed from step 30"


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(RecordKind.PREEMPTED, id="saved on the notice"),
        pytest.param(RecordKind.WORKER_LOST, id="saved by another rank"),
    ],
)
def test_what_costs_no_step_is_no_loss(accounting, kind):
    accounting.committed(LastCheckpoint(uri="s3://b/x", step=30, time=1060.0))
    accounting.disrupted(1061.0, kind, "rank 1 ended")
    accounting.group_started(1065.0, world_size=2, resumed_step=30)
    assert losses(accounting) == LossHistory(trained=30.0)


def test_the_losses_of_earlier_drivers_are_kept():
    former = LossHistory(losses=3, trained=500.0)
    accounting = TimeAccounting(attempt=2, fencing_token=4, now=1000.0, former=former)
    accounting.group_started(1020.0, world_size=2, resumed_step=40, restored_from="s3://b/other")
    assert losses(accounting) == former, "nothing is done yet that could be lost"
    accounting.stepped(report(1, 50, 1030.0, 1040.0))
    assert losses(accounting) == LossHistory(losses=3, trained=510.0, unsaved=True)


def test_the_document_has_the_interval_in_force(accounting):
    assert accounting.document(1060.0).checkpoint_interval_seconds is None
    accounting.stepped(replace(report(1, 31, 1030.0, 1061.0), interval=42.5))
    assert accounting.document(1061.0).checkpoint_interval_seconds == 42.5


@pytest.fixture
def scripted() -> TimeAccounting:
    """A driver whose script reports every 20 s since 1020, and has no session."""
    accounting = TimeAccounting(attempt=1, fencing_token=1, now=1000.0)
    accounting.group_started(1020.0, world_size=2, resumed_step=0)
    for step, now in ((10, 1040.0), (20, 1060.0)):
        accounting.reported(now, step, {"loss": 0.5})
    return accounting


def test_what_a_script_did_after_its_last_report_is_not_claimed_to_be_none(scripted):
    scripted.disrupted(1075.0, RecordKind.WORKER_LOST, "rank 1 died")
    scripted.group_started(1080.0, world_size=2, resumed_step=20)
    document = scripted.document(1080.0)
    assert document.records[-1].message == (
        "continues from the report at step 20; what was done since is done again"
    )
    assert document.has_session is False
    assert (document.seconds.productive, document.seconds.lost_work) == (40.0, 15.0)


def test_a_script_without_a_checkpoint_begins_again(scripted):
    scripted.disrupted(1075.0, RecordKind.WORKER_LOST, "rank 1 died")
    scripted.group_started(1080.0, world_size=2, resumed_step=0)
    document = scripted.document(1080.0)
    assert document.records[-1].message == (
        "begins again, since no checkpoint was reported; what was done is done again"
    )
    assert (document.seconds.productive, document.seconds.lost_work) == (0.0, 55.0)


def test_a_script_trains_as_soon_as_its_next_group_runs(scripted):
    """One that has saved on a notice may not report again until its end."""
    scripted.disrupted(1061.0, RecordKind.PREEMPTED, "rank 1 is preempted")
    assert scripted.document(1062.0).state is RunState.RECOVERING
    scripted.group_started(1070.0, world_size=2, resumed_step=20)
    assert scripted.document(1071.0).state is RunState.TRAINING
    scripted.succeeded(1100.0, ProgressResult())
    seconds = scripted.document(1100.0).seconds
    assert (seconds.productive, seconds.lost_work) == (70.0, 1.0)


def test_the_recovery_of_a_script_begins_with_the_loss(scripted):
    scripted.disrupted(1075.0, RecordKind.WORKER_LOST, "rank 1 died")
    scripted.group_started(1080.0, world_size=2, resumed_step=20)
    scripted.reported(1090.0, 30, {})
    seconds = scripted.document(1090.0).seconds
    assert (seconds.startup, seconds.recovery, seconds.productive) == (20.0, 5.0, 50.0)


def test_a_function_that_reports_nothing_trains_all_the_same():
    silent = TimeAccounting(attempt=1, fencing_token=1, now=1000.0)
    silent.group_started(1020.0, world_size=2, resumed_step=0)
    assert silent.document(1049.0).state is RunState.STARTING
    silent.runs_unmeasured()
    assert silent.document(1051.0).state is RunState.TRAINING
    silent.disrupted(1070.0, RecordKind.WORKER_LOST, "rank 1 died")
    silent.group_started(1080.0, world_size=2, resumed_step=0)
    silent.succeeded(1180.0, ProgressResult())
    seconds = silent.document(1180.0).seconds
    assert (seconds.productive, seconds.lost_work) == (100.0, 50.0)


def documents(accounting: TimeAccounting) -> list[dict[str, object]]:
    """What is written to `history/`, without what each document has."""
    _, found = accounting.losses_after(0)
    assert {(one.attempt, one.fencing_token) for one in found} == {(1, 1)}
    return [
        one.model_dump(exclude={"attempt", "fencing_token"}, exclude_none=True) for one in found
    ]


def test_a_loss_has_a_document_which_says_what_it_cost(accounting):
    accounting.disrupted(1061.0, RecordKind.WORKER_LOST, "rank 1 died", node="n", pod="p")
    lost = {"number": 2, "reason": "WorkerLost", "time": 1061.0, "message": "rank 1 died"}
    lost |= {"node": "n", "pod": "p", "step": 30}
    assert documents(accounting) == [{**lost, "action": ""}]
    accounting.disrupted(1062.0, RecordKind.PREEMPTED, "rank 0 left")
    accounting.group_started(1065.0, world_size=2, resumed_step=20)
    accounting.stepped(report(2, 21, 1070.0, 1075.0))
    action = "resumed from step 20; 10 steps are done again"
    cost = {"restored_step": 20, "lost_steps": 10, "lost_work_seconds": 10.0}
    first, second = documents(accounting)
    assert first == {**lost, **cost, "recovery_seconds": 10.0, "action": action}
    assert second["number"] == 3
    assert (second["lost_steps"], second["lost_work_seconds"], second["recovery_seconds"]) == (
        0, 0, 0,
    )  # fmt: skip


def test_a_loss_keeps_what_it_cost_where_another_one_follows_before_the_next_step(accounting):
    accounting.disrupted(1061.0, RecordKind.WORKER_LOST, "rank 1 died")
    accounting.group_started(1065.0, world_size=2, resumed_step=20)
    accounting.disrupted(1067.0, RecordKind.WORKER_LOST, "rank 0 died")
    accounting.group_started(1070.0, world_size=2, resumed_step=20)
    accounting.disrupted(1071.0, RecordKind.WORKER_LOST, "rank 0 died, its checkpoint is damaged")
    accounting.group_started(1075.0, world_size=2, resumed_step=15)
    accounting.stepped(report(4, 16, 1080.0, 1081.0))
    cost = ("lost_steps", "lost_work_seconds", "recovery_seconds", "action")
    assert [tuple(one[name] for name in cost) for one in documents(accounting)] == [
        (10, 10.0, 20.0, "resumed from step 20; 10 steps are done again"),
        (0, 0.0, 0.0, "resumed from step 20"),
        (5, 5.0, 0.0, "resumed from step 15; 5 steps are done again"),
    ]
    assert accounting.document(1081.0).seconds.lost_work == 15.0


def test_only_documents_that_have_changed_are_given_again(accounting):
    accounting.disrupted(1061.0, RecordKind.WORKER_LOST, "rank 1 died")
    version, (first,) = accounting.losses_after(0)
    assert accounting.losses_after(version) == (version, [])
    accounting.group_started(1065.0, world_size=2, resumed_step=30)
    later, (again,) = accounting.losses_after(version)
    assert (later > version, again.key) == (True, first.key == again.key and first.key)
    assert first.key == "history/1-000001-2.json"


@pytest.mark.parametrize(
    ("kind", "reason", "number"),
    [
        ("Application", "ApplicationError", 2),
        ("Storage", "StorageError", 2),
        ("Infrastructure", "InfrastructureError", 2),
    ],
)
def test_the_failure_of_an_attempt_has_a_document(accounting, kind, reason, number):
    accounting.failed(1062.0, Failure(kind=kind, message="boom"))
    (found,) = documents(accounting)
    assert (found["reason"], found["number"], found["message"]) == (reason, number, "boom")
    assert accounting.history().ended


def test_the_successor_of_a_lost_driver_writes_that_loss():
    lost = LostDriver(attempt=1, step=30, step_time=990.0, holder="head-a")
    accounting = TimeAccounting(attempt=1, fencing_token=1, now=1000.0, lost=lost)
    accounting.group_started(1020.0, world_size=2, resumed_step=24)
    accounting.stepped(report(1, 25, 1030.0, 1031.0))
    (found,) = documents(accounting)
    assert found == {
        "number": 0,
        "reason": "HeadLost",
        "time": 990.0,
        "message": "the driver of attempt 1 in pod head-a was lost with its head",
        "step": 30,
        "restored_step": 24,
        "lost_steps": 6,
        "lost_work_seconds": 0.0,
        "recovery_seconds": 40.0,
        "action": "resumed from step 24",
    }


def test_the_next_attempt_does_not_call_a_driver_a_lost_head_that_may_have_ended_by_itself():
    """Its lease lacks that where the store was away at its end; what it cost is known all the same.

    Of a head that was lost with its attempt the operator says so.
    """
    lost = LostDriver(attempt=1, step=30, step_time=990.0, holder="head-a")
    accounting = TimeAccounting(attempt=2, fencing_token=2, now=1000.0, lost=lost)
    accounting.group_started(1020.0, world_size=2, resumed_step=24)
    accounting.stepped(report(1, 25, 1030.0, 1031.0))
    _, (found,) = accounting.losses_after(0)
    assert (found.reason, found.message) == (
        "DriverEnded",
        "the driver of attempt 1 in pod head-a ended, and its lease does not say how",
    )
    assert (found.lost_steps, found.recovery_seconds) == (6, 40.0)
