"""A run that begins from another run's checkpoint, with real Ray."""

import copy
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.local_runs import Run
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.contract import SUSPEND_FILE, ContractRestore
from trainingrun_protocol.exit_codes import SUSPEND_EXIT_CODE
from trainingrun_protocol.progress import RecordKind, RunState
from trainingrun_runtime.checkpoints.encoding import TAG
from trainingrun_runtime.store import manifest, run_result
from trainingrun_runtime.store.bucket import Bucket

pytestmark = pytest.mark.slow

STEPS = 60
LOSSES = (RecordKind.WORKER_LOST, RecordKind.PREEMPTED, RecordKind.HANG)


@pytest.fixture(scope="module")
def linear(ray: LocalRay, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Makes runs of the linear example: `linear(steps=60)`."""

    def make(source: Run | None = None, step: int | None = None, **config: Any) -> Run:
        folder = tmp_path_factory.mktemp("run")
        run = Run(ray, folder, "trainingrun_runtime.examples.linear:train", config)
        if source is not None:
            wanted = ContractRestore(uri=source.bucket.root, step=step)
            run.contract = run.contract.model_copy(update={"restore_from": wanted})
        return run

    return make


@pytest.fixture(scope="module")
def undisturbed(linear: Callable[..., Run]) -> str:
    """The weights after all steps in one run."""
    run = linear(steps=STEPS)
    assert run.drive() == 0, run.log()
    return str(run.metrics()["weights_sha256"])


@pytest.fixture(scope="module")
def half(linear: Callable[..., Run]) -> Run:
    """A run that did half of the steps, with a checkpoint between its first step and its last."""
    run = linear(steps=STEPS // 2, step_seconds=0.1)
    assert run.drive(suspend_at=10) == SUSPEND_EXIT_CODE, run.log()
    (run.state / SUSPEND_FILE).unlink()
    assert run.drive() == 0, run.log()
    assert steps_of(run)[-1] == STEPS // 2
    return run


@pytest.fixture
def source(half: Run, tmp_path: Path) -> Run:
    """The same with a copy of its folder, which a test may change."""
    own = copy.copy(half)
    shutil.copytree(folder_of(half), tmp_path / "source")
    own.bucket = Bucket.open((tmp_path / "source").as_uri())
    return own


def folder_of(run: Run) -> Path:
    return Path(run.bucket.root.removeprefix("file://"))


def steps_of(run: Run) -> list[int]:
    return [committed.step for committed in manifest.committed(run.bucket)]


def why_skipped(run: Run) -> str:
    """Of the one checkpoint that was passed over."""
    (skipped,) = [
        one for one in run.progress().records if one.kind is RecordKind.CHECKPOINT_SKIPPED
    ]
    return skipped.message


def files(run: Run) -> dict[str, tuple[bytes, int]]:
    return {
        str(file): (file.read_bytes(), file.stat().st_mtime_ns)
        for file in folder_of(run).rglob("*")
        if file.is_file()
    }


def alter_newest(run: Run) -> None:
    """Change one byte of the newest checkpoint's largest file."""
    newest = manifest.committed(run.bucket)[-1]
    name = max(newest.files, key=lambda each: newest.files[each].size)
    content = run.bucket.get(f"{newest.path}/{name}") or b""
    run.bucket.put(f"{newest.path}/{name}", content[:-1] + bytes([content[-1] ^ 1]))


def test_a_run_goes_on_where_another_one_ended_and_then_needs_only_its_own_checkpoints(
    linear: Callable[..., Run], source: Run, undisturbed: str
) -> None:
    before = files(source)
    run = linear(source, steps=STEPS, step_seconds=0.1)
    assert run.drive(suspend_at=40) == SUSPEND_EXIT_CODE, run.log()
    began = run.progress()
    newest = manifest.committed(source.bucket)[-1]
    assert began.resumed_from_step == STEPS // 2
    assert began.restored_from == source.bucket.uri(newest.path)
    (restored,) = [one.message for one in began.records if one.kind is RecordKind.RESTORED]
    assert restored == f"restored step {STEPS // 2} of another run, from {began.restored_from}"
    assert files(source) == before, "the other run's folder is only read"

    shutil.rmtree(folder_of(source))
    (run.state / SUSPEND_FILE).unlink()
    assert run.drive() == 0, run.log()
    went_on = run.progress()
    assert went_on.restored_from is None
    assert 40 <= (went_on.resumed_from_step or 0) < STEPS
    assert run.metrics()["weights_sha256"] == undisturbed


def test_workers_that_are_lost_before_the_first_own_checkpoint_begin_there_again(
    linear: Callable[..., Run], source: Run, undisturbed: str
) -> None:
    run = linear(source, steps=STEPS, step_seconds=0.1)
    run.start()
    run.wait_until(lambda progress: progress.step >= STEPS // 2 + 5)
    for process in run.training_processes():  # all of them: one that is left saves its last step
        os.kill(process, signal.SIGKILL)
    assert run.wait() == 0, run.log()
    restored = [one for one in run.progress().records if one.kind is RecordKind.RESTORED]
    assert [one.step for one in restored] == [STEPS // 2, STEPS // 2]
    assert all("of another run" in one.message for one in restored)
    assert run.metrics()["weights_sha256"] == undisturbed


def test_a_run_with_nothing_left_to_do_has_a_checkpoint_of_its_own(
    linear: Callable[..., Run], source: Run
) -> None:
    run = linear(source, steps=STEPS // 2)
    assert run.drive() == 0, run.log()
    assert steps_of(run) == [STEPS // 2]
    result = run_result.read(run.bucket)
    assert result is not None
    assert (result.checkpoint_uri or "").startswith(f"{run.bucket.root}/checkpoints/")
    assert result.metrics["weights_sha256"] == source.metrics()["weights_sha256"]


def test_the_config_of_the_new_run_decides_its_learning_rate(
    linear: Callable[..., Run], source: Run, undisturbed: str
) -> None:
    still = linear(source, steps=STEPS, lr=0.0)
    assert still.drive() == 0, still.log()
    former = source.metrics()["weights_sha256"]
    assert still.metrics()["weights_sha256"] == former != undisturbed


def test_another_number_of_workers_goes_on_as_well(linear: Callable[..., Run], source: Run) -> None:
    run = linear(source, steps=STEPS)
    run.contract = run.contract.model_copy(update={"workers": 1})
    assert run.drive() == 0, run.log()
    assert (run.progress().resumed_from_step, run.progress().step) == (STEPS // 2, STEPS)


def test_a_damaged_checkpoint_is_passed_over_unless_its_step_is_wanted(
    linear: Callable[..., Run], source: Run, undisturbed: str
) -> None:
    alter_newest(source)
    older = steps_of(source)[-2]
    run = linear(source, steps=STEPS)
    assert run.drive() == 0, run.log()
    assert run.progress().resumed_from_step == older < STEPS // 2
    assert f"the checkpoint of step {STEPS // 2} is damaged" in why_skipped(run)
    assert run.metrics()["weights_sha256"] == undisturbed

    exact = linear(source, step=STEPS // 2, steps=STEPS)
    assert exact.drive() == 1, exact.log()
    failure = exact.progress().failure
    assert failure is not None
    assert failure.kind == "Application"
    assert f"storage.restoreFrom.step is {STEPS // 2}, and in" in failure.message
    assert "is damaged" in failure.message
    assert steps_of(exact) == []


def hold_what_nobody_can_read(folder: Path) -> None:
    content = torch.load(folder / "session.pt", weights_only=True)
    content["objects"]["unreadable"] = 2**3000
    torch.save(content, folder / "session.pt")


def hold_a_tensor_of_another_type(folder: Path) -> None:
    tensors = load_file(folder / "state-0.safetensors")
    halves = {key: tensor.half() for key, tensor in tensors.items()}
    save_file(halves, folder / "state-0.safetensors")


def change_newest(run: Run, change: Callable[[Path], None]) -> None:
    """Change files of the newest checkpoint, as if they had been committed so."""
    newest = manifest.committed(run.bucket)[-1]
    folder = folder_of(run) / newest.path
    change(folder)
    whole = manifest.digest_folder(folder)
    changed = newest.model_copy(update={"files": {name: whole[name] for name in newest.files}})
    run.bucket.put(newest.key, changed.model_dump_json(by_alias=True).encode())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (hold_what_nobody_can_read, "session.pt cannot be read"),
        (hold_a_tensor_of_another_type, "state-0.safetensors does not hold"),
    ],
)
def test_a_checkpoint_that_was_committed_and_cannot_be_read_is_passed_over(
    linear: Callable[..., Run],
    source: Run,
    undisturbed: str,
    change: Callable[[Path], None],
    said: str,
) -> None:
    change_newest(source, change)
    older = steps_of(source)[-2]
    run = linear(source, steps=STEPS)
    assert run.drive() == 0, run.log()
    assert run.progress().resumed_from_step == older < STEPS // 2
    assert said in why_skipped(run)
    assert run.metrics()["weights_sha256"] == undisturbed


def hold_what_a_later_version_writes(folder: Path) -> None:
    content = torch.load(folder / "session.pt", weights_only=True)
    content["objects"]["later"] = {TAG: "heap", "items": []}
    torch.save(content, folder / "session.pt")


def test_a_checkpoint_of_a_later_version_fails_the_attempt_in_a_sentence(
    linear: Callable[..., Run], source: Run
) -> None:
    """As after the image was rolled back."""
    change_newest(source, hold_what_a_later_version_writes)
    run = linear(source, steps=STEPS)
    assert run.drive() == 1, run.log()
    ended = run.progress()
    assert ended.failure is not None
    assert (ended.failure.kind, ended.failure.retry) == ("Application", "UnlessRepeated")
    said = "the checkpoint holds a 'heap', which this version of trainingrun does not know; resume"
    assert said in ended.failure.message
    assert [one for one in ended.records if one.kind in LOSSES] == []
    assert steps_of(run) == []


def test_a_step_that_is_missing_fails_in_a_sentence_before_any_worker_starts(
    linear: Callable[..., Run], source: Run
) -> None:
    run = linear(source, step=7, steps=STEPS)
    assert run.drive() == 1, run.log()
    ended = run.progress()
    assert (ended.state, ended.world_size) == (RunState.FAILED, 0)
    assert ended.failure is not None
    assert (ended.failure.kind, ended.failure.retry) == ("Application", "UnlessRepeated")
    assert ended.failure.message.startswith("storage.restoreFrom.step is 7, and file://")
    assert "choose one of them" in ended.failure.message
