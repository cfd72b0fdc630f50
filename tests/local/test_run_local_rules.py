"""What a local run decides without any process: retries, losses, folders, the machine's limits."""

import errno
import io
import os
import signal
import site
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from support.cli_server import call
from trainingrun.api.failures_spec import Failures
from trainingrun.api.v1alpha1 import TrainingRun
from trainingrun.local import LocalError, Options, machine, processes
from trainingrun.local.attempts import (
    Driver,
    FailedAttempt,
    GiveUp,
    Retry,
    Tally,
    after_failure,
    outcome,
)
from trainingrun.local.display import Display, beyond_memory
from trainingrun.local.folder import Folder, own_run
from trainingrun.local.interruptions import Interruption, Interruptions, TrialLosses
from trainingrun.local.ray_nodes import LocalRay, Node, Preemption
from trainingrun.local.run import _Loop, _terminable
from trainingrun.rendering import RenderSettings, contract
from trainingrun_protocol.contract import PROGRESS_FILE, SUSPEND_FILE
from trainingrun_protocol.exit_codes import DONE_EXIT_CODE
from trainingrun_protocol.progress import (
    Failure,
    LastCheckpoint,
    Progress,
    ProgressResult,
    RankRow,
    Record,
    RecordKind,
    Resize,
    RunState,
)

APPLICATION = Failure(kind="Application", message="ValueError: no")
STORAGE = Failure(kind="Storage", message="a disk is full")
INFRASTRUCTURE = Failure(kind="Infrastructure", message="the head node died")


def a_run(**spec: object) -> TrainingRun:
    wanted = {
        "training": {"function": "examples.digits:train"},
        "storage": {"uri": "s3://runs/demo", "endpoint": "http://elsewhere:7070"},
        **spec,
    }
    return TrainingRun.model_validate({"metadata": {"name": "digits"}, "spec": wanted})


def test_an_application_is_retried_as_often_as_max_restarts_says() -> None:
    rules = Failures(max_restarts=1)
    first = after_failure(rules, Tally(), APPLICATION, newer_checkpoint=True)
    assert isinstance(first, Retry)
    second = after_failure(rules, first.tally, APPLICATION, newer_checkpoint=True)
    assert second == GiveUp("failures.maxRestarts is 1, and all of them are used up")


def test_the_same_error_before_the_first_step_is_not_tried_a_third_time() -> None:
    rules = Failures(max_restarts=5)
    error = Failure(kind="Application", message="rank 0 raised KeyError", retry="UnlessRepeated")
    first = after_failure(rules, Tally(), error, newer_checkpoint=False, stepped=False)
    assert isinstance(first, Retry)
    again = error.model_copy(update={"message": "rank 1 raised KeyError"})
    second = after_failure(rules, first.tally, again, newer_checkpoint=False, stepped=False)
    assert isinstance(second, GiveUp)
    assert "two attempts in a row" in second.message
    for other, stepped in (
        (again, True),
        (error.model_copy(update={"message": "rank 0 raised TypeError"}), False),
        (error.model_copy(update={"retry": "Always"}), False),
    ):
        found = after_failure(rules, first.tally, other, newer_checkpoint=False, stepped=stepped)
        assert isinstance(found, Retry)


def test_a_script_that_fails_after_its_training_is_not_tried_again() -> None:
    error = Failure(kind="Application", message="KeyError", retry="Never")
    found = after_failure(Failures(), Tally(), error, newer_checkpoint=True)
    assert isinstance(found, GiveUp)


def test_lost_infrastructure_uses_up_no_restart_and_the_other_way_round() -> None:
    rules = Failures(max_restarts=0, max_preemptions=1)
    lost = after_failure(rules, Tally(), INFRASTRUCTURE, newer_checkpoint=True)
    assert isinstance(lost, Retry)
    assert lost.tally.restarts == 0
    again = after_failure(rules, lost.tally, INFRASTRUCTURE, newer_checkpoint=True)
    assert isinstance(again, GiveUp)
    assert "maxPreemptions is 1" in again.message


def test_attempts_without_progress_end_the_run_whatever_ended_them() -> None:
    rules = Failures(max_attempts_without_progress=2)
    first = after_failure(rules, Tally(), INFRASTRUCTURE, newer_checkpoint=False)
    assert isinstance(first, Retry)
    assert isinstance(
        after_failure(rules, first.tally, APPLICATION, newer_checkpoint=False), GiveUp
    )
    assert isinstance(after_failure(rules, first.tally, APPLICATION, newer_checkpoint=True), Retry)


def test_a_checkpoint_of_an_attempt_before_is_no_progress_of_this_one() -> None:
    made = LastCheckpoint(uri="s3://runs/demo/a", step=5, time=1.0)
    document = Progress(attempt=2, state=RunState.FAILED, checkpoint=made, failure=STORAGE)
    for before, newer in ((0, True), (4, True), (5, False)):
        ended = outcome(1, document, before)
        assert isinstance(ended, FailedAttempt)
        assert ended.newer_checkpoint == newer


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (APPLICATION, [10, 10, 20, 35]),
        (INFRASTRUCTURE, [0, 0, 10, 20]),
        (STORAGE, [60, 60, 120, 240]),
    ],
    ids=["application", "infrastructure", "storage"],
)
def test_the_wait_grows_as_on_a_cluster_while_no_checkpoint_is_made(
    failure: Failure, expected: list[float]
) -> None:
    rules = Failures(
        max_restarts=1000,
        max_attempts_without_progress=1000,
        backoff={"initialSeconds": 10, "factor": 2, "maxSeconds": 35},
    )
    tally, waits = Tally(), []
    for newer_checkpoint in (True, False, False, False):
        retry = after_failure(rules, tally, failure, newer_checkpoint)
        assert isinstance(retry, Retry)
        tally = retry.tally
        waits.append(retry.wait_s)
    assert waits == expected


def test_the_wait_of_a_long_series_is_the_limit() -> None:
    rules = Failures(max_attempts_without_progress=1000, backoff={"factor": 10, "maxSeconds": 35})
    retry = after_failure(
        rules, Tally(attempts_without_progress=900), INFRASTRUCTURE, newer_checkpoint=False
    )
    assert isinstance(retry, Retry)
    assert retry.wait_s == 35


def seen(
    *documents: tuple[int, float, int | None], records_before: tuple[Record, ...] = ()
) -> tuple[Interruptions, list[Interruption | None]]:
    """Feeds (step, time of it, step that was restored just before) to new Interruptions."""
    records = [*records_before, Record(number=1, kind=RecordKind.RESTORED, time=0, step=0)]
    found, results = Interruptions(), []
    for step, time, restored in documents:
        if restored is not None:
            number = len(records) + 1
            records.append(
                Record(number=number, kind=RecordKind.RESTORED, time=time, step=restored)
            )
        progress = Progress(
            attempt=1, fencing_token=1, step=step, step_time=time, records=list(records)
        )
        results.append(found.record(progress))
    return found, results


def test_an_overruled_setting_is_said_once_whatever_attempt_records_it() -> None:
    said = "ScalingConfig(num_workers=8) of the script is overruled: 2 is used, which is [it]"
    record = Record(number=1, kind=RecordKind.SETTING_OVERRULED, time=0, message=said)
    written = io.StringIO()
    display = Display(Console(file=written), "digits")
    for attempt in (1, 2):
        display.overruled(Progress(attempt=attempt, records=[record]))
    assert written.getvalue() == f"{said}\n"


def test_an_undisturbed_run_has_no_interruption() -> None:
    found, results = seen((1, 10.0, None), (2, 11.0, None), (2, 11.0, None))
    assert results == [None, None, None]
    assert found.first_step_time == 10.0


def test_an_interruption_costs_the_steps_done_again_and_the_time_between_steps() -> None:
    _, results = seen((7, 10.0, None), (5, 10.0, 5), (6, 16.5, None))
    assert results == [None, None, Interruption(7, 5, 6.5)]
    assert results[-1].steps_lost == 2


def test_a_checkpoint_made_in_time_loses_no_step() -> None:
    _, results = seen((7, 10.0, None), (7, 10.0, 7), (8, 12.0, None))
    assert results[-1].steps_lost == 0


def test_an_interruption_says_why_steps_are_done_again() -> None:
    why = "rank 1 did not answer in time"
    restored = Record(number=1, kind=RecordKind.RESTORED, time=10.0, step=5, reason=why)
    found = Interruptions()
    found.record(Progress(attempt=1, step=7, step_time=10.0))
    found.record(Progress(attempt=1, step=5, step_time=10.0, records=[restored]))
    assert found.record(Progress(attempt=1, step=6, step_time=12.0)) == Interruption(7, 5, 2.0, why)


def test_a_larger_worker_group_is_no_interruption() -> None:
    larger = Record(number=1, kind=RecordKind.RESTORED, time=10.0, step=7)
    resize = Resize(number=1, step=7, time=10.0, from_workers=1, to_workers=2)
    found = Interruptions()
    found.record(Progress(attempt=1, step=7, step_time=9.0))
    after = Progress(attempt=1, step=8, step_time=14.0, records=[larger], resizes=[resize])
    assert found.record(after) is None
    assert found.ended == []


LOST = Record(number=1, kind=RecordKind.WORKER_LOST, time=50.0, message="rank 1 died")


def restored(step: int) -> Record:
    return Record(number=2, kind=RecordKind.RESTORED, time=58.0, step=step)


def test_of_a_script_without_a_session_no_number_of_lost_steps_is_claimed() -> None:
    found = Interruptions()
    before = Progress(attempt=1, step=20, step_time=45.0, has_session=False)
    assert found.record(before) is None
    after = before.model_copy(update={"records": [LOST, restored(20)]})
    over = found.record(after)
    assert over is not None
    assert (over.steps_lost, over.seconds) == (None, 8.0)
    assert (
        "continues from the report at step 20, and what was done since is done again" in over.cost
    )
    assert found.record(after) is None, "it is counted once"


def test_an_interruption_of_a_function_that_reports_nothing_is_counted_by_its_end() -> None:
    found = Interruptions()
    found.record(Progress(attempt=1, state=RunState.STARTING))
    lost = Progress(attempt=1, state=RunState.RECOVERING, records=[LOST, restored(0)])
    assert found.record(lost) is None, "it may have a session that does its first step"
    over = found.record(lost.model_copy(update={"state": RunState.SUCCEEDED, "has_session": False}))
    assert over is not None
    assert (over.steps_lost, over.cost) == (
        None,
        "it begins again, since no checkpoint was reported",
    )


def test_a_function_that_reports_nothing_counts_as_training_once_that_is_known() -> None:
    found = Interruptions()
    found.record(Progress(attempt=1, state=RunState.TRAINING, time=90.0, has_session=False))
    assert found.first_step_time == 90.0


def test_a_loss_of_a_trial_is_shown_and_that_a_trial_begins_is_not() -> None:
    records = [
        Record(number=1, kind=RecordKind.RESTORED, time=1, message="trial 1: resumed from step 0"),
        Record(number=2, kind=RecordKind.RESTORED, time=2, message="trial 2: resumed from step 0"),
        Record(number=3, kind=RecordKind.WORKER_LOST, time=9, message="trial 2: rank 0 died"),
        Record(number=4, kind=RecordKind.RESTORED, time=15, message="trial 2: resumed from step 8"),
    ]
    losses = TrialLosses()
    assert losses.record(Progress(attempt=1, records=records[:3])) == ["trial 2: rank 0 died"]
    assert losses.record(Progress(attempt=1, records=records)) == ["trial 2: resumed from step 8"]
    assert losses.count == 1


def test_a_loss_whose_cause_is_known_later_is_one_loss() -> None:
    lost = Record(number=1, kind=RecordKind.WORKER_LOST, time=9, message="trial 2: rank 0 died")
    said = "trial 2: rank 0 died: it used more memory than its limit"
    found = Record(number=2, kind=RecordKind.OUT_OF_MEMORY, time=9, message=said)
    restored = Record(number=3, kind=RecordKind.RESTORED, time=15, message="trial 2: resumed")
    losses = TrialLosses()
    assert losses.record(Progress(attempt=1, records=[lost])) == [lost.message]
    assert losses.record(Progress(attempt=1, records=[found])) == [said]
    assert losses.record(Progress(attempt=1, records=[found, restored])) == [restored.message]
    assert losses.count == 1
    only = TrialLosses()
    assert only.record(Progress(attempt=1, records=[found, restored])) == [said, restored.message]
    assert only.count == 1


def test_a_rank_that_a_cluster_would_end_for_its_memory_is_named() -> None:
    rows = [
        RankRow(rank=0, used_bytes=2**29),
        RankRow(rank=1, used_bytes=5 * 2**29),
        RankRow(rank=2, used_bytes=2**40, limit_bytes=2**41),  # of a whole container
    ]
    found = beyond_memory(Progress(attempt=1, ranks=rows), "512Mi")
    assert found == {
        1: "rank 1 uses 2.5 GiB of 512Mi, workers.resources.memory, at which a cluster would end it"
    }


def test_a_second_restore_before_any_step_belongs_to_the_same_interruption() -> None:
    found, results = seen((7, 10.0, None), (5, 10.0, 5), (3, 10.0, 3), (4, 20.0, None))
    assert results[-1] == Interruption(7, 3, 10.0)
    assert len(found.ended) == 1


def test_the_folder_takes_the_buckets_place_and_each_run_has_its_own(tmp_path: Path) -> None:
    one = Folder.prepare(a_run(), tmp_path, resume=False)
    other = Folder.prepare(a_run(), tmp_path, resume=False)
    assert one.uri.startswith(f"file://{tmp_path}/digits-")
    assert one.uri != other.uri
    assert one.run.spec.storage.endpoint is None


def test_resume_goes_on_with_the_latest_run_and_a_new_attempt(tmp_path: Path) -> None:
    first = Folder.prepare(a_run(), tmp_path, resume=False)
    first.record.begin(3, 2)
    resumed = Folder.prepare(a_run(), tmp_path, resume=True)
    assert (resumed.uri, resumed.first_attempt) == (first.uri, 4)


def test_there_must_be_something_to_resume(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="holds no run of digits to resume"):
        Folder.prepare(a_run(), tmp_path, resume=True)


def test_a_folder_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalError, match=r"cannot write to .*/file: Not a directory"):
        Folder.prepare(a_run(), tmp_path / "file", resume=False)


def test_a_driver_that_succeeds_while_it_is_asked_to_end_has_succeeded(tmp_path: Path) -> None:
    document = Progress(attempt=1, state=RunState.SUCCEEDED, result=ProgressResult(metrics={}))
    text = document.model_dump_json(by_alias=True)
    code = (
        "import pathlib, time\n"
        f"state = pathlib.Path({str(tmp_path)!r})\n"
        f"while not (state / {SUSPEND_FILE!r}).exists(): time.sleep(0.01)\n"
        f"(state / {PROGRESS_FILE!r}).write_text({text!r})\n"
        f"raise SystemExit({DONE_EXIT_CODE})"
    )

    class Head:
        """What a driver needs of a Ray: a head, on which this code finishes a run."""

        head = SimpleNamespace(state=tmp_path)

        def start_on_head(
            self, _arguments: list[str], _variables: dict[str, str], log: Path
        ) -> "subprocess.Popen[bytes]":
            return processes.start([sys.executable, "-c", code], os.environ, log)

    own = contract(Folder.prepare(a_run(), tmp_path / "runs", False).run, 1, RenderSettings())
    driver = Driver(Head(), own, tmp_path / "log")  # type: ignore[arg-type]
    assert driver.success() is None
    assert not driver.suspend(60)
    assert driver.success() == document


@pytest.fixture
def hang_up() -> Iterator[Callable[[Any], None]]:
    """Sets what SIGHUP does in this process; afterwards it does what it did before."""
    before = signal.getsignal(signal.SIGHUP)  # whoever started the tests may ignore it
    yield lambda action: signal.signal(signal.SIGHUP, action)
    signal.signal(signal.SIGHUP, before)


def test_a_terminal_that_is_closed_ends_a_run_as_ctrl_c_does_unless_nohup_says_no(hang_up) -> None:
    hang_up(signal.SIG_DFL)
    with _terminable():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)  # the kernel's, after the shell's
    hang_up(signal.SIG_IGN)
    with _terminable():
        signal.raise_signal(signal.SIGHUP)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_once_a_run_saves_only_ctrl_c_stops_it_at_once(hang_up, first: signal.Signals) -> None:
    hang_up(signal.SIG_DFL)
    with _terminable():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(first)
        try:  # of `timeout`, of another who suspends the run, or of a terminal that is closed
            for kind in (signal.SIGTERM, signal.SIGHUP, signal.SIGTERM):
                signal.raise_signal(kind)
        except KeyboardInterrupt:
            pytest.fail("the run is stopped without a checkpoint")
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_second_ctrl_c_says_that_no_checkpoint_is_saved_and_what_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Driver:
        """Ctrl-C comes while it trains, and again while it saves its checkpoint."""

        def __init__(self, *_arguments: object) -> None:
            pass

        @property
        def exit_code(self) -> int | None:
            raise KeyboardInterrupt

        def suspend(self, _wait_s: float) -> bool:
            raise KeyboardInterrupt

        def progress(self) -> None:
            return None

        success = kill = progress

    monkeypatch.setattr("trainingrun.local.run.Driver", Driver)
    folder, output = Folder.prepare(a_run(), tmp_path, False), io.StringIO()
    ray, display = SimpleNamespace(running=True), Display(Console(file=output, width=1000), "one")
    base = contract(folder.run, 1, RenderSettings())
    loop = _Loop(folder, base, ray, display, Options())  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt), folder.record:
        loop.run_attempts()
    assert output.getvalue().splitlines()[-1] == (
        f"stopped, without a last checkpoint; --resume continues in {tmp_path}"
    )
    (condition,) = own_run("digits", tmp_path)[1]["status"]["conditions"]
    assert condition["message"] == "attempt 1 was stopped, without a last checkpoint"


DONE = Progress(attempt=1, state=RunState.SUCCEEDED, result=ProgressResult(metrics={}))


class Trains:
    """A driver whose documents a test gives; it saves a checkpoint when it is asked to end."""

    def __init__(self, documents: Iterator[Progress]) -> None:
        self._documents = documents
        self._last: Progress | None = None
        self.exit_code: int | None = None
        self.asked: list[str] = []

    def progress(self) -> Progress | None:
        self._last = next(self._documents, self._last)
        if self._last is not None and self._last.result is not None:
            self.exit_code = DONE_EXIT_CODE
        return self._last

    def suspend(self, _wait_s: float) -> bool:
        self.asked.append("save")
        return True

    def kill(self) -> None:
        self.asked.append("kill")

    def ranks(self) -> int:
        return 0

    def printed(self) -> str:
        return ""


@pytest.fixture
def trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., _Loop]]:
    """A run with this driver, on a Ray of which a node dies between any two documents."""
    ended = subprocess.Popen(["true"])
    ended.wait()

    class Dying(LocalRay):
        running, head = True, SimpleNamespace(alive=True)  # type: ignore[assignment]

        def _start_node(self, name: str, _arguments: list[str], devices: tuple[str, ...]) -> Node:
            return Node(name, self._state_of(name), ended, devices)

    monkeypatch.setattr("trainingrun.local.run._POLL_S", 0)
    monkeypatch.setattr(processes, "kill", lambda *_processes: None)
    with Dying(tmp_path / "logs", {}, {"CPU": 1}) as ray:
        ray.add_worker()

        def loop(driver: Trains) -> _Loop:
            monkeypatch.setattr("trainingrun.local.run.Driver", lambda *_arguments: driver)
            folder = Folder.prepare(a_run(), tmp_path, False)
            display = Display(Console(file=io.StringIO()), "one")
            return _Loop(folder, contract(folder.run, 1, RenderSettings()), ray, display, Options())

        yield loop


def test_nodes_that_die_without_a_newer_checkpoint_end_a_run_once_its_last_step_is_saved(
    trains: Callable[..., _Loop], tmp_path: Path
) -> None:
    driver = Trains(iter([*[Progress(attempt=1)] * 60, DONE]))
    with pytest.raises(LocalError) as ended:
        trains(driver).run_attempts()
    assert str(ended.value) == (
        "21 nodes died by themselves without a newer checkpoint; see that there is enough memory, "
        f"and the log of the last one, {tmp_path}/logs/local-21.log; a checkpoint is saved, and "
        f"--resume continues in {tmp_path}"
    )
    assert driver.asked == ["save", "kill"]


def test_nodes_that_die_between_checkpoints_end_no_run_however_many_they_are(
    trains: Callable[..., _Loop],
) -> None:
    saved = [LastCheckpoint(uri="file:///x", step=n // 15, time=1.0) for n in range(15, 60)]
    documents = [Progress(attempt=1, step=one.step, checkpoint=one) for one in saved]
    loop = trains(Trains(iter([*documents, DONE])))
    assert loop.run_attempts() == DONE
    assert [node.name for node in loop.ray.workers] == ["local-47"], "46 have died"


@pytest.mark.parametrize("devices", [(), ("0",)], ids=["CPUs", "GPUs"])
@pytest.mark.parametrize("polls", [1, 2], ids=["after the notice", "after the SIGTERM"])
def test_a_preempted_node_is_not_replaced_in_a_cluster_that_was_started_anew(
    tmp_path: Path, polls: int, devices: tuple[str, ...]
) -> None:
    def node(name: str) -> Node:
        process: Any = SimpleNamespace(poll=lambda: -signal.SIGKILL, terminate=lambda: None)
        return Node(name, tmp_path, process, devices)

    started = []
    ray: Any = SimpleNamespace(
        workers=(node("local-1"),), add_worker=lambda: started.append("local"), remove=lambda _: ()
    )
    preemption = Preemption(ray, 0)
    for _ in range(polls):
        preemption.poll(0)
    started.clear()
    ray.workers = (node("local-3"),)
    for _ in range(3):
        preemption.poll(0)
    assert started == []
    assert preemption.done


LINEAR = """
apiVersion: trainingrun.dev/v1alpha1
kind: TrainingRun
metadata: {name: tiny}
spec:
  training: {function: "trainingrun_runtime.examples.linear:train"}
  storage: {uri: "s3://nobody/looks/here"}
"""


@pytest.mark.parametrize("refuses", ["tempfile.mkdtemp", f"{LocalRay.__module__}.LocalRay.start"])
def test_what_this_machine_refuses_when_ray_starts_is_said_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: str
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "/tmp/tr-1")

    (tmp_path / "run.yaml").write_text(LINEAR)
    monkeypatch.setattr(refuses, refuse)
    runs = str(tmp_path / "runs")
    code, _, errors = call("run", str(tmp_path / "run.yaml"), "--local", "--folder", runs)
    sentence = (
        "Ray cannot be started, since this machine refuses what it needs (Read-only file system: "
        "/tmp/tr-1); Ray keeps its files below /tmp: have space there and the right to write"
    )
    assert (code, errors) == (1, f"{sentence}\n")
    status = own_run("tiny", tmp_path / "runs")[1]["status"]
    assert (status["phase"], status["conditions"][0]["message"]) == ("Failed", sentence)


def test_a_folder_that_no_search_path_can_name_is_refused_by_its_name(tmp_path: Path) -> None:
    job = tmp_path / "co:lon"
    job.mkdir()
    (job / "run.yaml").write_text(LINEAR)
    code, _, errors = call("run", str(job / "run.yaml"), "--local", "--folder", str(tmp_path / "f"))
    assert (code, errors) == (
        1,
        f"no module can be imported from {job}, since PYTHONPATH is split at each :; rename that "
        "folder, or use another one\n",
    )
    assert not (tmp_path / "f").exists()


SCRIPT = {"training": {"script": {"configMap": "my-code", "file": "train.py"}}}


def test_a_script_and_what_it_imports_come_from_the_file_itself(tmp_path: Path) -> None:
    folder = Folder.prepare(a_run(**SCRIPT), tmp_path, resume=False)
    script = folder.write_script({"my-code": {"train.py": "import model", "model.py": ""}})
    assert script is not None
    assert script.read_text() == "import model"
    assert script.with_name("model.py").exists()


def test_a_script_of_the_image_is_read_on_this_machine(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    folder = Folder.prepare(a_run(training={"script": {"path": str(script)}}), tmp_path, False)
    with pytest.raises(LocalError, match=r"training.script.path .*/train.py is not a file on this"):
        folder.write_script({})
    script.write_text("")
    assert folder.write_script({}) == script


@pytest.mark.parametrize(
    ("config_maps", "sentence"),
    [
        pytest.param({}, "ConfigMap my-code is not in the file", id="no ConfigMap"),
        pytest.param(
            {"my-code": {"main.py": ""}}, "has no key train.py, only main.py", id="no such key"
        ),
    ],
)
def test_a_script_that_is_not_there_is_named(
    tmp_path: Path, config_maps: dict[str, dict[str, str]], sentence: str
) -> None:
    folder = Folder.prepare(a_run(**SCRIPT), tmp_path, resume=False)
    with pytest.raises(LocalError, match=sentence):
        folder.write_script(config_maps)


def a_gpu_run(kind: str = "nvidia", workers: int = 2) -> TrainingRun:
    return a_run(workers={"count": workers, "accelerator": {"kind": kind}})


@pytest.mark.parametrize(
    ("shown", "expected"), [("1,0", ("1", "0")), (" GPU-1f, GPU-2e ,-1,3", ("GPU-1f", "GPU-2e"))]
)
def test_only_gpus_that_the_shell_leaves_are_used(
    tmp_path: Path, shown: str, expected: tuple[str, ...]
) -> None:
    for number in range(4):
        (tmp_path / f"nvidia{number}").touch()
    spec = a_gpu_run().spec
    assert machine.devices(spec, tmp_path, {"CUDA_VISIBLE_DEVICES": shown}) == expected
    for none in ("", "-1"):
        with pytest.raises(LocalError, match=f"CUDA_VISIBLE_DEVICES={none} leaves it 0"):
            machine.devices(spec, tmp_path, {"CUDA_VISIBLE_DEVICES": none})


def test_gpus_are_counted_on_the_machine(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert machine.devices(a_gpu_run().spec, tmp_path, {}) == ("0", "1")
    with pytest.raises(LocalError, match=r"requests 3 NVIDIA GPU\(s\) .* this machine has 2"):
        machine.devices(a_gpu_run(workers=3).spec, tmp_path, {})


def test_other_accelerators_need_a_cluster(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="is tpu, which needs a cluster"):
        machine.devices(a_gpu_run("tpu", workers=1).spec, tmp_path)


def test_a_run_on_cpus_fits_every_machine(tmp_path: Path) -> None:
    spec = a_run(workers={"count": 64, "resources": {"cpu": "64"}}).spec
    assert machine.devices(spec, tmp_path) == ()


def test_variables_from_a_secret_come_from_the_shell() -> None:
    secret = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    training = {"function": "a:b", "env": [{"name": "PLAIN", "value": "1"}, secret]}
    spec = a_run(training=training).spec
    assert machine.variables(spec, {"TOKEN": "t", "OTHER": "o"}) == {"PLAIN": "1", "TOKEN": "t"}
    with pytest.raises(LocalError, match="export TOKEN in this shell"):
        machine.variables(spec, {})


def test_a_variable_that_names_an_earlier_one_has_its_value_as_in_a_pod() -> None:
    values = {
        "ROOT": "/data",
        "CACHE": "$(ROOT)/cache",
        "SCRATCH": "$(CACHE)/a:$(ROOT)/b",
        "LATER": "$(LAST) $(HOME)",
        "LITERAL": "$$(ROOT) $ROOT 5$ $()",
        "LAST": "x",
        "CURVE": "$(TRAININGRUN_NAME)-$(WANDB_NAME)",
        "WANDB_NAME": "mine",
        "OTHER": "$(WANDB_NAME)",
    }
    ours = {"TRAININGRUN_NAME": "digits", "WANDB_NAME": "ours"}
    env = [{"name": name, "value": value} for name, value in values.items()]
    spec = a_run(training={"function": "a:b", "env": env}).spec
    assert machine.variables(spec, {"HOME": "/root"}, ours) == {
        **values,
        "CACHE": "/data/cache",
        "SCRATCH": "/data/cache/a:/data/b",
        "CURVE": "digits-ours",
        "OTHER": "mine",
        "LITERAL": "$(ROOT) $ROOT 5$ $()",
    }


def test_a_search_path_of_the_run_joins_those_of_its_script_and_of_the_shell() -> None:
    variables = {"PYTHONPATH": "/opt/libs", "LD_LIBRARY_PATH": "/opt/lib"}
    shell = {"PYTHONPATH": "/shell", "LD_LIBRARY_PATH": "/usr/lib/cuda"}
    found = machine.search_paths(Path("/code/train.py"), variables, shell)
    places = found["PYTHONPATH"].split(":")
    assert places[:3] == ["/code", "/opt/libs", str(Path.cwd())]
    assert places[-1] == "/shell"
    assert found["LD_LIBRARY_PATH"] == "/opt/lib:/usr/lib/cuda"
    beside = machine.search_paths(None, variables, shell, Path("/job"))["PYTHONPATH"].split(":")
    assert beside[:3] == ["/opt/libs", str(Path.cwd()), "/job"]
    plain = machine.search_paths(None, {}, {})
    assert "" not in plain["PYTHONPATH"].split(":"), "that would be the working directory"
    assert "LD_LIBRARY_PATH" not in plain


@pytest.mark.parametrize("installed", [True, False])
def test_packages_are_found_where_python_looks_last_also_by_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    """In front, a package would be taken for the module of its name, of the shell or of Python."""
    root = site.getsitepackages()[0] if installed else str(tmp_path)
    spec = SimpleNamespace(submodule_search_locations=[f"{root}/trainingrun"])
    monkeypatch.setattr("importlib.util.find_spec", lambda _module: spec)
    places = machine.search_paths(None, {}, {"PYTHONPATH": "/shell"})["PYTHONPATH"].split(":")
    of_project = [] if installed else [root, root]
    assert places == [str(Path.cwd()), *of_project, "/shell"]


def restoring(
    tmp_path: Path, root: str = "student", **source: object
) -> tuple[Folder, TrainingRun]:
    """A local run with this `storage.restoreFrom`, and its folder."""
    storage = {"uri": "s3://runs/demo", "endpoint": "http://elsewhere:7070", "restoreFrom": source}
    run = a_run(storage=storage)
    return Folder.prepare(run, tmp_path / root, resume=False), run


@pytest.mark.parametrize("root", ["student", "teacher"], ids=["beside", "same folder"])
def test_a_run_that_is_named_is_the_latest_one_of_that_name_here(tmp_path: Path, root: str) -> None:
    for age, name in enumerate(("teacher-00000002", "teacher-00000001", "teacher-retry-00000003")):
        found = tmp_path / "teacher" / name
        found.mkdir(parents=True)
        os.utime(found, (1000 - age, 1000 - age))
    folder, run = restoring(tmp_path, root, run="teacher", step=7)
    restored = folder.restore_from(run.spec.storage)
    assert restored
    assert restored.uri == (tmp_path / "teacher" / "teacher-00000002").as_uri()
    assert restored.step == 7


def test_a_folder_elsewhere_is_read_with_the_endpoint_of_the_file(tmp_path: Path) -> None:
    folder, run = restoring(tmp_path, uri="s3://runs/demo/teacher-1/")
    restored = folder.restore_from(run.spec.storage)
    assert restored
    assert (restored.uri, restored.endpoint) == (
        "s3://runs/demo/teacher-1",
        "http://elsewhere:7070",
    )
    assert contract(folder.run, 1, RenderSettings()).storage.endpoint is None


def test_a_run_that_is_not_here_is_a_sentence_until_the_run_has_its_own_checkpoint(
    tmp_path: Path,
) -> None:
    folder, run = restoring(tmp_path, run="teacher")
    with pytest.raises(LocalError, match=r"restoreFrom\.run is teacher, and neither .*/student"):
        folder.restore_from(run.spec.storage)
    own = tmp_path / "student" / f"digits-{folder.run.metadata.uid[:8]}" / "manifests"
    own.mkdir(parents=True)
    (own / "000001-000001.json").write_text("{}")
    assert folder.restore_from(run.spec.storage) is None


def test_a_run_without_restore_from_begins_from_scratch(tmp_path: Path) -> None:
    run = a_run()
    assert Folder.prepare(run, tmp_path, resume=False).restore_from(run.spec.storage) is None
