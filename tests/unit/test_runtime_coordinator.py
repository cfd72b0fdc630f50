"""Where workers, Ray's controller and the driver meet."""

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.builders import a_pod, pods, unix
from support.processes import wait_for
from support.reconciled import a_polled_run, reconcile, then
from support.runtime_calls import a_contract, a_manifest, a_report, an_upload
from trainingrun_protocol.contract import RANK_PODS_FILE, ContractCheckpoints
from trainingrun_protocol.progress import Failure, Hang, ProgressResult, RecordKind, RunState
from trainingrun_runtime.coordinator import scripts
from trainingrun_runtime.coordinator.checkpoints import Command, LateMetrics, UploadedCheckpoint
from trainingrun_runtime.coordinator.coordinator import Coordinator
from trainingrun_runtime.coordinator.rank_comparison import PATIENCE_S
from trainingrun_runtime.coordinator.ranks import RankProcess
from trainingrun_runtime.progress import document as progress_document
from trainingrun_runtime.progress.rank_measures import MemoryUse, RankTimes
from trainingrun_runtime.store.reported_metrics import SHOWN, Origin, Row

CONTRACT = a_contract()


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    made = Coordinator(CONTRACT, 3, 1000.0, tmp_path / "progress.json", None)
    yield made
    made.close()


def commit(coordinator: Coordinator, upload: UploadedCheckpoint) -> None:
    manifest = a_manifest(upload)
    coordinator.uploaded(upload)
    coordinator.committed(upload, manifest, f"s3://b/r/{manifest.path}")


def test_scores_of_a_validation_are_of_the_checkpoint_that_it_has_read(
    coordinator: Coordinator,
) -> None:
    coordinator.group_started(2, 0, [])
    upload = replace(an_upload(10, 1), validated=True)
    commit(coordinator, upload)
    assert coordinator.in_use() == (1, [upload.path])
    coordinator.validated(upload.path, {"accuracy": 0.9})
    assert coordinator.in_use() == (1, [])
    assert coordinator.next_upload(0) == LateMetrics(10, {"accuracy": 0.9}, upload.path)
    rows = [row for batch in coordinator.rows(0) for row in batch.rows]
    assert [(row.step, row.metrics) for row in rows] == [(10, {"accuracy": 0.9})]


def test_of_a_validation_that_fails_nothing_is_kept(coordinator: Coordinator) -> None:
    coordinator.group_started(2, 0, [])
    upload = replace(an_upload(10, 1), validated=True)
    commit(coordinator, upload)
    coordinator.validated(upload.path, {})
    assert (coordinator.in_use(), coordinator.uploads_waiting()) == ((1, []), 0)


def test_an_upload_is_in_use_until_it_is_committed_or_abandoned(coordinator: Coordinator) -> None:
    coordinator.group_started(2, 0, [])
    committed, abandoned = an_upload(10, 1), an_upload(20, 1)
    coordinator.uploaded(committed)
    coordinator.uploaded(abandoned)
    coordinator.group_started(2, 10, [])
    assert coordinator.in_use() == (2, [committed.path, abandoned.path])
    manifest = a_manifest(committed)
    coordinator.committed(committed, manifest, f"s3://b/r/{manifest.path}")
    assert coordinator.in_use() == (2, [abandoned.path])
    coordinator.abandoned(abandoned)
    assert coordinator.in_use() == (2, [])


def test_a_later_step_of_a_former_group_does_not_count_as_this_groups_commit(
    coordinator: Coordinator,
):
    """After a fallback to an older checkpoint the steps begin again from there."""
    commit(coordinator, an_upload(step=50, group=1))
    assert coordinator.is_committed("step-0000000040-2") is None
    commit(coordinator, an_upload(step=40, group=2))
    assert coordinator.is_committed("step-0000000040-2")


def test_the_record_of_a_restart_names_the_rank_that_saved_the_last_step(coordinator: Coordinator):
    group = coordinator.group_started(2, 0, [])
    coordinator.can_save_alone(0, group - 1, b"an actor of the former group")
    for rank in range(2):
        coordinator.can_save_alone(rank, group, b"actor %d" % rank)
    assert coordinator.survivors()[:2] == ({0: b"actor 0", 1: b"actor 1"}, 0)
    coordinator.saved_alone(an_upload(step=12, group=1), ranks=(1,))
    assert coordinator.survivors()[1] == 12, "it is not saved twice"
    coordinator.group_started(2, 12, [])
    coordinator.group_started(2, 12, [])
    messages = [record.message for record in coordinator.document().records]
    assert messages[1:] == [
        "resumed from step 12, which rank 1 saved after the loss",
        "resumed from step 12",
    ]


def test_the_head_waits_for_the_commit_of_the_last_step_and_for_no_older_one(
    coordinator: Coordinator,
) -> None:
    group = coordinator.group_started(2, 0, [])
    coordinator.stepped(a_report(group, step=15))
    assert not coordinator.save_and_exit(0)
    commit(coordinator, an_upload(step=10, group=1))
    assert not coordinator.save_and_exit(0), "it was being uploaded when the notice came"
    commit(coordinator, an_upload(step=15, group=1))
    assert coordinator.save_and_exit(0)


def test_a_group_that_begins_after_the_head_s_notice_saves_and_leaves_too(
    coordinator: Coordinator,
) -> None:
    coordinator.session_began(coordinator.group_started(2, 0, []))
    assert not coordinator.save_and_exit(0)
    group = coordinator.group_started(2, 0, [])
    assert not coordinator.save_and_exit(0)
    coordinator.session_began(group)
    assert not coordinator.save_and_exit(0)
    assert coordinator.stepped(a_report(group, step=1)) is Command.CHECKPOINT_AND_EXIT


def test_scripts_that_save_nothing_are_ended_once_for_the_head_s_notice(
    coordinator: Coordinator,
) -> None:
    """Those that the next group starts would be ended too, and groups are counted."""
    orders = []
    for _ in range(2):
        group = coordinator.group_started(1, 0, [])
        coordinator.meet(group, 0, 1, "node", ("10.0.0.1", 4000))
        assert not coordinator.save_and_exit(0)
        orders.append(coordinator.script_told(group, 0, scripts.Told()).command)
    assert orders == [Command.CHECKPOINT_AND_EXIT, Command.NONE]


def test_of_code_without_a_session_any_later_checkpoint_lets_the_head_end(
    coordinator: Coordinator,
) -> None:
    coordinator.group_started(2, 0, [])
    commit(coordinator, an_upload(step=10, group=1))
    coordinator.reported(15, {"loss": 0.5})
    assert not coordinator.save_and_exit(1)
    commit(coordinator, an_upload(step=14, group=1))
    assert coordinator.save_and_exit(1)


def test_it_is_known_of_this_group_why_no_rank_notes_its_steps(coordinator: Coordinator):
    group = coordinator.group_started(2, 0, [])
    coordinator.cannot_save_alone(group - 1, "the session has no optimizer")
    assert coordinator.survivors()[2] == "that takes a Session"
    coordinator.cannot_save_alone(group, "there is no other rank")
    assert coordinator.survivors()[2] == "there is no other rank"


def test_the_reason_why_no_rank_saved_the_last_step_is_said_once(coordinator: Coordinator):
    for number in range(2):
        group = coordinator.group_started(2, 0, [])
        coordinator.stepped(a_report(group, step=12))
        if number == 0:
            coordinator.not_saved_alone("rank 0 did not answer in time")
    coordinator.group_started(2, 0, [])
    messages = [record.message for record in coordinator.document().records]
    assert messages[1:] == [
        "resumed from step 0; 12 steps are done again, since rank 0 did not answer in time",
        "resumed from step 0; 12 steps are done again",
    ]


def test_ranks_of_a_pod_agree_on_one_folder(coordinator: Coordinator) -> None:
    former, _ = coordinator.search_begins()
    assert coordinator.restore_folder(former, "pod a", "/tmp/0") == "/tmp/0"
    assert coordinator.restore_folder(former, "pod a", "/tmp/1") == "/tmp/0"
    assert coordinator.restore_folder(former, "pod b", "/tmp/2") == "/tmp/2"
    search, _ = coordinator.search_begins()
    assert coordinator.restore_folder(search, "pod a", "/tmp/3") == "/tmp/3", "another search"
    assert coordinator.restore_folder(former, "pod a", "/tmp/4") == "/tmp/4", "a former group"


def test_how_a_driver_ends_is_in_its_document_before_it_has_ended(tmp_path: Path) -> None:
    """The page of the run comes in between, and takes memory."""
    path = tmp_path / "progress.json"
    coordinator = Coordinator(a_contract(), 1, 0.0, path, None)
    first = Failure(kind="Application", message="ValueError: NaN")
    coordinator.concluding(failure=first)
    coordinator.concluding(failure=Failure(kind="Infrastructure", message="a later one"))
    told = progress_document.read(path)
    assert told is not None
    assert (told.failure, told.state.final) == (first, False)
    coordinator.failed(first)
    told = progress_document.read(path)
    assert told is not None
    assert (told.failure, told.state.final) == (first, True)
    coordinator.close()


def test_a_failed_driver_that_does_not_end_has_ended_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a script does that catches the exception of fit() and waits."""
    monkeypatch.setattr("trainingrun_runtime.coordinator.coordinator.LONGEST_END_S", 0.0)
    path = tmp_path / "progress.json"
    coordinator = Coordinator(a_contract(), 1, 0.0, path, None)
    first = Failure(kind="Application", message="ValueError: NaN")
    coordinator.concluding(failure=first)
    wait_for(lambda: (progress_document.read(path) or coordinator.document()).state.final)
    told = progress_document.read(path)
    assert told is not None
    assert (told.state, told.failure) == (RunState.FAILED, first)
    coordinator.close()


def test_the_document_has_few_metrics_and_the_result_all_of_them(tmp_path: Path) -> None:
    best = ContractCheckpoints(best_metric="iou/58")
    contract = CONTRACT.model_copy(update={"checkpoints": best})
    coordinator = Coordinator(contract, 3, 1000.0, tmp_path / "progress.json", None)
    many: dict[str, float] = {f"iou/{number}": 0.5 for number in range(60)}
    report = a_report(coordinator.group_started(2, 0, []), step=12)
    coordinator.stepped(replace(report, metrics=many))
    shown = coordinator.document().metrics
    assert "iou/58" in shown
    assert len(shown) == SHOWN
    done = coordinator.complete(ProgressResult(), 10)
    assert done.metrics == many
    coordinator.succeeded(done)
    result = coordinator.document().result
    assert result is not None
    assert len(result.metrics) == SHOWN
    coordinator.close()


@pytest.mark.parametrize(
    ("checkpoint", "metrics"),
    [
        pytest.param(12, {"loss": 0.4, "error": 0.1}, id="with the last checkpoint"),
        pytest.param(10, {"loss": 0.5}, id="after the last checkpoint"),
        pytest.param(0, {"loss": 0.5}, id="without a checkpoint"),
    ],
)
def test_the_result_has_the_last_reported_metrics(
    coordinator: Coordinator, checkpoint: int, metrics: dict[str, float]
):
    coordinator.stepped(a_report(coordinator.group_started(2, 0, []), step=12))
    saved = {"loss": 0.4, "error": 0.1} if checkpoint else {}
    coordinator.finished({"accuracy": 0.9})
    found = coordinator.complete(ProgressResult(metrics=saved), checkpoint)
    assert found.metrics == {**metrics, "accuracy": 0.9}


def test_a_step_saved_by_another_rank_keeps_the_metrics_that_rank_0_has_reported(
    coordinator: Coordinator,
):
    group = coordinator.group_started(2, 0, [])
    coordinator.stepped(a_report(group, step=12))
    coordinator.saved_alone(replace(an_upload(step=12, group=1), metrics={"step": 12}), ranks=(1,))
    saved = coordinator.next_upload(0)
    assert saved is not None
    assert saved.metrics == {"loss": 0.5, "step": 12}


def test_what_rank_0_had_not_sent_when_it_was_lost_is_in_the_table_from_the_rank_that_saved(
    coordinator: Coordinator,
):
    group = coordinator.group_started(2, 0, [])
    coordinator.add_rows(group, [Row(step, 0.0, {"loss": 0.5}) for step in range(1, 8)])
    recent = tuple(Row(step, 0.0, {"loss": 0.6}) for step in range(3, 13))
    coordinator.saved_alone(replace(an_upload(step=12, group=group), rows=recent), ranks=(1,))
    coordinator.group_started(2, 12, [], origin=Origin(3, group, 12))
    first, *others = coordinator.rows(0)
    assert (first.group, first.origin, first.rows) == (group, None, ())
    rows = [row for batch in others for row in batch.rows]
    assert [row.step for row in rows] == list(range(1, 13))
    assert {row.metrics["loss"] for row in rows[7:]} == {0.6}
    assert (others[-1].group, others[-1].origin) == (group + 1, Origin(3, group, 12))
    saved = coordinator.next_upload(0)
    assert isinstance(saved, UploadedCheckpoint)
    assert (saved.group, saved.rows) == (group, ()), "its manifest names the group"


def test_reports_of_a_script_are_rows_and_those_of_a_session_come_from_itself(
    coordinator: Coordinator,
):
    group = coordinator.group_started(1, 0, [])
    coordinator.reported(3, {"loss": float("nan")})
    coordinator.session_began(group - 1)  # of a group that was replaced
    coordinator.reported(4, {"loss": 0.5})
    coordinator.session_began(group)
    coordinator.reported(5, {"loss": 0.4})
    rows = [row for batch in coordinator.rows(0) for row in batch.rows]
    assert [(row.step, row.metrics) for row in rows] == [(3, {"loss": "NaN"}), (4, {"loss": 0.5})]


class ComparedSlowly(int):
    """A command whose comparison with the one that applies takes until it may end."""

    compared, may_end = threading.Event(), threading.Event()

    def __gt__(self, other: int) -> bool:
        self.compared.set()
        self.may_end.wait(60)
        return int(self) > other


def test_a_request_that_comes_while_a_group_begins_leaves_it_no_command_of_the_former_one(
    coordinator: Coordinator,
) -> None:
    coordinator.request(Command.CHECKPOINT_AND_EXIT)
    command = ComparedSlowly(Command.NONE)
    request = threading.Thread(target=coordinator.request, args=(command,))
    group = threading.Thread(target=coordinator.group_started, args=(2, 0, []))
    request.start()
    assert command.compared.wait(60)
    group.start()
    group.join(0.5)  # it has to wait for the request, or is done by now
    command.may_end.set()
    for thread in (request, group):
        thread.join(60)
    assert coordinator.stepped(a_report(1, 1)) == Command.NONE


def test_a_step_saved_alone_that_was_not_restored_is_not_named(coordinator: Coordinator):
    coordinator.group_started(2, 0, [])
    coordinator.saved_alone(an_upload(step=12, group=1), ranks=(1,))
    coordinator.group_started(2, 0, [])  # its commit failed
    assert coordinator.document().records[-1].message == "resumed from step 0"
    assert coordinator.survivors()[:2] == ({}, 0)


@pytest.mark.parametrize("record_first", [True, False])
def test_eight_ranks_that_are_lost_with_their_pod_are_one_loss_to_the_operator(
    coordinator: Coordinator, record_first: bool
):
    training = a_polled_run(workers={"count": 16, "perPod": 8})
    for rank in range(16):
        pod = f"worker-{rank // 8 + 1}"
        coordinator.joined(rank, f"ray node of {pod}", "spot-1", pod)
    coordinator.group_started(16, 0, [])
    coordinator.disrupted(RecordKind.WORKER_LOST, "rank 8 died: no answer", tuple(range(8, 16)))
    document = coordinator.document().model_copy(update={"attempt": 1})
    (lost,) = [record for record in document.records if record.kind is RecordKind.WORKER_LOST]
    assert lost.pod == "worker-2"
    head, one, _ = pods()
    ended = (head, one, a_pod("worker-2", exit_code=137))
    if record_first:
        both = then(replace(training, progress=document), pods=ended)
    else:
        both = then(replace(training, pods=ended), progress=document)
    disruptions = reconcile(both, 70).status.disruptions.to_dict()
    (loss,) = disruptions.pop("history")
    assert loss["reason"] == "WorkerLost"
    assert {kind: count for kind, count in disruptions.items() if count} == {"workerFailures": 1}


def a_group_in_living_pods(coordinator: Coordinator, oom_kills: int | None) -> None:
    for rank in range(2):
        pod = f"worker-{rank + 1}"
        coordinator.joined(rank, f"ray node of {pod}", f"spot-{rank}", pod, None, oom_kills)
    coordinator.group_started(2, 0, [])


@pytest.mark.parametrize("lost", range(3))
def test_a_node_whose_rank_was_given_out_again_is_lost_once_ray_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """Ranks that are left go on at once with `minimum`; Ray's health checks take some seconds."""
    dead: set[str] = set()
    monkeypatch.setattr("trainingrun_runtime.coordinator.coordinator.nodes.dead_nodes", dead.copy)
    contract = a_contract(workers=3, minimum_workers=1)
    coordinator = Coordinator(contract, 3, 1000.0, tmp_path / "progress.json", None)
    for rank in range(3):
        coordinator.joined(rank, f"ray-{rank}", f"node-{rank}", f"pod-{rank}")
    coordinator.group_started(3, 0, [])
    coordinator.disrupted(RecordKind.WORKER_LOST, f"rank {lost} died", (lost,))
    for rank, number in enumerate(number for number in range(3) if number != lost):
        coordinator.joined(rank, f"ray-{number}", f"node-{number}", f"pod-{number}")
    coordinator.group_started(2, 0, [])
    dead.add(f"ray-{lost}")
    wait_for(lambda: coordinator.document().lost_nodes, 20)
    assert coordinator.document().lost_nodes == [f"node-{lost}"]
    coordinator.close()


def test_the_head_has_the_pod_of_each_rank(coordinator: Coordinator, tmp_path: Path):
    a_group_in_living_pods(coordinator, None)
    coordinator._write_pods()
    file = tmp_path / RANK_PODS_FILE
    assert json.loads(file.read_text()) == {"0": "worker-1", "1": "worker-2"}
    coordinator.joined(1, "another node", "spot-2", "worker-3")
    coordinator._write_pods()
    assert json.loads(file.read_text()) == {"0": "worker-1", "1": "worker-3"}
    coordinator.group_started(1, 0, [])
    coordinator._write_pods()
    assert json.loads(file.read_text()) == {"0": "worker-1"}


MEMORY_SAYS = (
    "rank 1 died: pod worker-2 used more memory than its limit; raise workers.resources.memory, or "
    "make the batch smaller and accumulate gradients over several"
)


@pytest.mark.parametrize("read_between", [True, False])
@pytest.mark.parametrize("lost", [(1,), ()], ids=["known", "unknown"])
def test_a_rank_that_the_kernel_ended_in_a_pod_that_lives_on_ran_out_of_memory(
    coordinator: Coordinator, read_between: bool, lost: tuple[int, ...]
):
    a_group_in_living_pods(coordinator, 4)
    coordinator.rank_use(1, 1, MemoryUse(1000, 2000, None, oom_kills=5), None)  # some other process
    coordinator.disrupted(RecordKind.WORKER_LOST, "rank 1 died: connection error", lost)
    seen = replace(a_polled_run(failures={"maxRestarts": 1}), progress_age_s=0.5)
    if read_between:
        early = coordinator.document().model_copy(update={"attempt": 1})
        seen = then(replace(seen, progress=early), 65)
        assert seen.run.status.disruptions.worker_failures == 1
    coordinator.joined(0, "ray node of worker-1", "spot-0", "worker-1", None, 4)
    coordinator.joined(1, "ray node of worker-2", "spot-1", "worker-2", None, 6)
    coordinator.group_started(2, 0, [])
    document = coordinator.document().model_copy(update={"attempt": 1})
    (found,) = [record for record in document.records if record.kind is not RecordKind.RESTORED]
    assert (found.kind, found.pod, found.message) == ("OutOfMemory", "worker-2", MEMORY_SAYS)
    (_, (loss,)) = coordinator.losses(0)
    assert (loss.reason, loss.message) == ("OutOfMemory", MEMORY_SAYS)
    plan = reconcile(replace(seen, progress=document), 70)
    disruptions = plan.status.disruptions.to_dict()
    (entry,) = disruptions.pop("history")
    assert (entry["reason"], entry["signs"]) == ("OutOfMemory", MEMORY_SAYS)
    assert {kind: count for kind, count in disruptions.items() if count} == {"outOfMemory": 1}
    assert plan.status.attempts[-1].outcome == "Running"


@pytest.mark.parametrize("kills", [(4, 4), (None, None), (None, 5)])
def test_a_rank_that_the_user_killed_stays_a_lost_worker(
    coordinator: Coordinator, kills: tuple[int | None, int | None]
):
    a_group_in_living_pods(coordinator, kills[0])
    coordinator.disrupted(RecordKind.WORKER_LOST, "rank 1 died", (1,))
    # What happens in another pod is no cause.
    coordinator.joined(0, "ray node of worker-1", "spot-0", "worker-1", None, 9)
    coordinator.joined(1, "ray node of worker-2", "spot-1", "worker-2", None, kills[1])
    # Nor what happens later.
    coordinator.joined(1, "ray node of worker-2", "spot-1", "worker-2", None, 7)
    assert [record.kind for record in coordinator.document().records][-1] == "WorkerLost"


def test_each_time_that_memory_runs_out_in_one_pod_uses_a_restart(coordinator: Coordinator):
    a_group_in_living_pods(coordinator, 0)
    now, seen = 60.0, a_polled_run(failures={"maxRestarts": 1})
    for turn in (1, 2):
        coordinator.disrupted(RecordKind.WORKER_LOST, "rank 1 died", (1,))
        a_group_in_living_pods(coordinator, turn)
        document = coordinator.document().model_copy(update={"attempt": 1})
        # Minutes lie between them, of which the coordinator's clock has none here.
        shift = {"time": unix(now), "group_time": unix(now - 20)}
        records = [
            record.model_copy(update=shift)
            if record.number == document.records[-2].number
            else record
            for record in document.records
        ]
        shown = document.model_copy(update={"records": records})
        seen = then(replace(seen, progress=shown), now)
        assert seen.run.status.disruptions.out_of_memory == turn
        now += 30
    status = seen.run.status
    assert status.disruptions.out_of_memory == 2
    assert (status.attempts[-1].reason, status.attempts[-1].message) == ("OutOfMemory", MEMORY_SAYS)


def test_uploads_are_handed_out_in_order_until_each_is_processed(
    coordinator: Coordinator,
):
    first, second = an_upload(10, 1), an_upload(20, 1)
    coordinator.uploaded(first)
    coordinator.uploaded(second)
    assert coordinator.next_upload(0) == first
    assert coordinator.next_upload(0) == first
    coordinator.abandoned(first)
    assert coordinator.next_upload(0) == second
    assert coordinator.uploads_waiting() == 1
    coordinator.abandoned(second)
    assert coordinator.next_upload(0) is None


def test_a_checkpoint_that_was_abandoned_does_not_keep_survivors_from_saving_its_step(
    coordinator: Coordinator,
):
    group = coordinator.group_started(2, 5, [])
    upload = replace(an_upload(10, group), group=group)
    coordinator.uploaded(upload)
    assert coordinator.survivors().saved_step == 10
    assert coordinator.is_committed(f"step-0000000010-{group}") is None
    coordinator.abandoned(upload)
    assert coordinator.survivors().saved_step == 5
    assert coordinator.is_committed(f"step-0000000010-{group}") is False
    commit(coordinator, replace(an_upload(20, group), group=group))
    assert coordinator.survivors().saved_step == 20
    assert coordinator.is_committed(f"step-0000000020-{group}") is True


def test_it_is_known_whether_the_newest_upload_is_committed(coordinator: Coordinator) -> None:
    group = coordinator.group_started(2, 5, [])
    assert coordinator.newest_is_committed(), "the group has uploaded nothing"
    commit(coordinator, replace(an_upload(10, group), group=group))
    assert coordinator.newest_is_committed()
    upload = replace(an_upload(20, group), group=group)
    coordinator.uploaded(upload)
    coordinator.abandoned(upload)
    assert not coordinator.newest_is_committed()


def test_metrics_that_come_before_their_upload_go_with_it(coordinator: Coordinator):
    coordinator.group_started(2, 0, [])
    coordinator.measured(10, {"accuracy": 0.5})
    coordinator.measured(10, {"accuracy": 0.7})
    assert coordinator.uploads_waiting() == 0
    coordinator.uploaded(replace(an_upload(10, 1), metrics={"loss": 0.1}))
    upload = coordinator.next_upload(0)
    assert upload is not None
    assert upload.metrics == {"loss": 0.1, "accuracy": 0.7}


def test_metrics_that_come_after_their_upload_wait_behind_it(coordinator: Coordinator):
    coordinator.group_started(2, 0, [])
    first, second = an_upload(10, 1), an_upload(20, 1)
    late = LateMetrics(10, {"accuracy": 0.7})
    coordinator.uploaded(first)
    coordinator.measured(10, {"accuracy": 0.7})
    coordinator.uploaded(second)
    assert coordinator.next_upload(0) == first
    coordinator.abandoned(first)
    assert coordinator.next_upload(0) == late
    assert coordinator.uploads_waiting() == 2
    coordinator.attached(late)
    assert coordinator.next_upload(0) == second


def test_many_reports_between_two_loops_are_one_job_behind_the_one_under_way(
    coordinator: Coordinator,
):
    """Each job makes some 20 requests of the store, and uploads wait behind it."""
    coordinator.group_started(2, 10, [])
    for number in range(500):
        coordinator.measured(10, {"accuracy": number, f"of class {number % 3}": number})
    assert coordinator.uploads_waiting() == 2
    first = coordinator.next_upload(0)
    assert first == LateMetrics(10, {"accuracy": 0, "of class 0": 0})
    coordinator.attached(first)
    rest = {"accuracy": 499, "of class 0": 498, "of class 1": 499, "of class 2": 497}
    assert coordinator.next_upload(0) == LateMetrics(10, rest)
    coordinator.measured(10, {"loss": 0.1})  # the rest is being added by now
    assert coordinator.uploads_waiting() == 2


def test_metrics_are_merged_with_the_last_ones_of_the_queue_alone(coordinator: Coordinator):
    """The step may have been made again: they are those of its newest checkpoint."""
    coordinator.group_started(2, 10, [])
    again = an_upload(10, 1)
    coordinator.measured(10, {"accuracy": 0.1})
    coordinator.uploaded(again)
    for step, accuracy in ((10, 0.2), (9, 0.3), (10, 0.4)):
        coordinator.measured(step, {"accuracy": accuracy})
    assert coordinator.uploads_waiting() == 5
    coordinator.attached(LateMetrics(10, {"accuracy": 0.1}))
    assert coordinator.next_upload(0) == again


def test_an_evaluation_that_is_done_again_is_of_the_restored_checkpoint(coordinator: Coordinator):
    coordinator.group_started(2, 0, [])
    coordinator.measured(10, {"accuracy": 0.7})  # its upload ended with the worker group
    coordinator.group_started(2, 10, [])
    coordinator.measured(10, {"accuracy": 0.6})
    assert coordinator.next_upload(0) == LateMetrics(10, {"accuracy": 0.6})
    coordinator.uploaded(an_upload(20, 2))
    assert coordinator.uploads_waiting() == 2


def test_the_oldest_storage_error_is_shown_until_all_are_over(coordinator: Coordinator):
    coordinator.storage("rank 0", "nobody answers")
    coordinator.storage("lease", "refused")
    since = coordinator.document().storage_error_since
    coordinator.storage("rank 0", "still nobody answers")
    assert coordinator.document().storage_error == "still nobody answers"
    assert coordinator.document().storage_error_since == since
    coordinator.storage("rank 0", None)
    assert coordinator.document().storage_error == "refused"
    coordinator.storage("lease", None)
    assert coordinator.document().storage_error is None
    assert coordinator.document().storage_error_since is None


def test_what_a_former_groups_ranks_reported_of_the_store_goes_with_them(coordinator: Coordinator):
    coordinator.storage("rank 1", "nobody answers")
    coordinator.storage("commits", "nobody answers")
    coordinator.group_started(2, 0, [])
    assert coordinator.document().storage_error is not None
    coordinator.storage("commits", None)
    assert coordinator.document().storage_error is None


def test_storage_errors_of_ranks_end_with_a_lost_group(coordinator: Coordinator):
    coordinator.group_started(2, 0, [])
    coordinator.storage("rank 1", "nobody answers")
    coordinator.disrupted(RecordKind.WORKER_LOST, "rank 1 died", (1,))
    assert coordinator.document().storage_error is None


def test_a_group_that_ended_for_the_stores_sake_is_no_loss(coordinator: Coordinator):
    coordinator.group_started(2, 0, [])
    records = coordinator.document().records
    coordinator.interrupted()
    assert coordinator.document().state is RunState.RECOVERING
    assert coordinator.document().records == records


def test_the_final_document_is_the_one_that_is_there(coordinator: Coordinator, tmp_path: Path):
    result = ProgressResult(metrics={"accuracy": 0.9})
    coordinator.succeeded(result)
    found = progress_document.read(tmp_path / "progress.json")
    assert found is not None
    assert (found.state, found.result) == (RunState.SUCCEEDED, result)


def test_the_ranks_are_compared_with_the_nodes_that_they_are_on(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
):
    for rank in range(2):
        coordinator.joined(rank, f"ray-{rank}", f"node-{rank}", f"pod-{rank}")
    group = coordinator.group_started(2, 0, [])
    for later_s in (0.0, PATIENCE_S):
        now = time.time() + later_s
        with monkeypatch.context() as patched:
            patched.setattr(time, "time", lambda now=now: now)
            coordinator.rank_times(0, group, RankTimes(0.4, 0.2, 0.1))
            coordinator.rank_times(1, group, RankTimes(0.4, 0.0, 0.5))
            coordinator.rank_times(1, group - 1, RankTimes(0.4, 0.3, None))  # late
            coordinator.rank_use(1, group, MemoryUse(1000, None, None), None)
            found = coordinator.document()
    assert (found.data_wait_share, found.data_wait_rank) == (0.5, 1)
    assert found.communication_wait_rank == 0
    assert found.slowest_rank
    assert (found.slowest_rank.rank, found.slowest_rank.node) == (1, "node-1")
    assert found.memory
    assert (found.memory.node, found.memory.used_bytes) == ("node-1", 1000)
    assert [(row.rank, row.node, row.pod) for row in found.ranks] == [
        (0, "node-0", "pod-0"),
        (1, "node-1", "pod-1"),
    ]
    assert (found.ranks[0].communication_wait_share, found.ranks[1].used_bytes) == (0.5, 1000)
    assert found.warnings[0].startswith("rank 1 on node node-1 is slow: ")
    coordinator.group_started(2, 0, [])
    assert coordinator.document().slowest_rank is None, "of the former group"
    assert coordinator.document().data_wait_share is None
    assert coordinator.document().ranks == []


def test_a_function_that_reports_nothing_is_told_how_until_it_does(coordinator: Coordinator):
    group = coordinator.group_started(2, 0, [])
    coordinator.reports_nothing(group, "use a Session")
    document = coordinator.document()
    assert (document.warnings, document.state) == (["use a Session"], RunState.TRAINING)
    coordinator.session_began(group)
    assert coordinator.document().warnings == []
    coordinator.reports_nothing(group, "use a Session")  # it was under way
    assert coordinator.document().warnings == []


def test_a_script_that_has_reported_is_not_told_to(coordinator: Coordinator):
    group = coordinator.group_started(2, 0, [])
    coordinator.reported(5, {"loss": 0.5})
    coordinator.reports_nothing(group, "use a Session")
    assert coordinator.document().warnings == []


def test_nothing_is_done_again_of_a_group_whose_session_is_made_late(
    coordinator: Coordinator,
) -> None:
    """As after a restart with a compilation, or a large model that is loaded first."""
    group = coordinator.group_started(2, 0, [])
    coordinator.session_began(group)
    coordinator.stepped(a_report(group, step=12))
    commit(coordinator, an_upload(step=12, group=group))
    for _ in range(2):
        coordinator.disrupted(RecordKind.WORKER_LOST, "rank 1 died", (1,))
        group = coordinator.group_started(2, 12, [])
        coordinator.reports_nothing(group, "use a Session")
    document = coordinator.document()
    assert (document.state, document.warnings) == (RunState.RECOVERING, [])
    assert document.records[-1].message == "resumed from step 12"
    assert (document.seconds.lost_work, coordinator.loss_history().losses) == (0.0, 0)


def a_process(number: int) -> RankProcess:
    return RankProcess(b"", number, 1.0)


def test_ranks_that_import_the_user_s_code_can_hang_and_be_ended(coordinator: Coordinator) -> None:
    assert coordinator.silence() is None
    group = coordinator.next_group()
    for rank in range(2):
        coordinator.joined(rank, f"ray-{rank}", "", f"pod-{rank}", a_process(rank))
    silence = coordinator.silence()
    assert silence is not None
    assert silence.group == group
    assert [one.process.pid for one in coordinator.members().values()] == [0, 1]
    hang = Hang(time=1.0, seconds=20.0, message="no step for 20 s", under_way=True)
    coordinator.hung(group, hang, True)
    assert coordinator.hang_of_group() == hang
    coordinator.disrupted(RecordKind.HANG, hang.message, (0,))
    assert coordinator.silence() is None, "until the next ranks begin"
    assert coordinator.members() == {}
    assert coordinator.next_group() == group, "it has never begun"
    assert coordinator.hang_of_group() is None
    assert coordinator.document().records[-1].pod == "pod-0"


def test_a_wait_for_the_commits_of_the_former_group_is_no_hang(coordinator: Coordinator) -> None:
    """Rank 0 asks again and again, and computes nothing meanwhile."""
    coordinator.uploaded(an_upload(10, 1))
    coordinator.next_group()

    def silent_s() -> float:
        found = coordinator.silence()
        return found.seconds if found is not None else 0.0

    wait_for(lambda: silent_s() > 0.2)
    assert coordinator.uploads_waiting()
    assert silent_s() < 0.2
