"""A rank's random state after its last steps: kept for a process that was killed."""

import os
import random
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from support import checkpoints
from trainingrun_runtime.checkpoints import kept_random, note_time, random_state, snapshot
from trainingrun_runtime.checkpoints.accumulated_gradients import AccumulatedGradients
from trainingrun_runtime.checkpoints.encoding import encode
from trainingrun_runtime.checkpoints.kept_random import KeptRandom
from trainingrun_runtime.checkpoints.restored_files import LocalFiles
from trainingrun_runtime.checkpoints.snapshot import Position
from trainingrun_runtime.checkpoints.watched_tensors import NotWhole
from trainingrun_runtime.gradient_exchange import GradientExchange
from trainingrun_runtime.noted_steps import NotedSteps


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "random-0-1"


def draws() -> list[object]:
    """What is drawn next; Gaussian numbers come in pairs, of which one waits for the next call."""
    return [
        torch.rand(3).tolist(),
        np.random.rand(3).tolist(),
        np.random.randn(),
        random.random(),
        random.gauss(0, 1),
    ]


def test_the_packed_state_draws_what_was_to_be_drawn() -> None:
    draws()  # now one Gaussian number of each kind waits
    state = random_state.packed()
    expected = draws(), draws()
    random_state.put_back(random_state.unpacked(state))
    assert (draws(), draws()) == expected


def test_the_packed_state_is_what_a_checkpoint_would_hold() -> None:
    draws()
    expected, state = random_state.current(), random_state.unpacked(random_state.packed())
    assert torch.equal(state.pop("torch"), expected.pop("torch"))
    assert state == expected


def test_the_states_of_the_last_two_noted_steps_are_kept_whichever_they_are(path: Path) -> None:
    kept = KeptRandom(path, 8)
    for step in (2, 4, 6):
        kept.note(step, f"after {step}".encode())
    assert [kept.after(step) for step in (2, 4, 6)] == [None, b"after 4", b"after 6"]


def test_the_states_of_the_last_two_steps_are_kept(path: Path) -> None:
    kept = KeptRandom(path, 8)
    for step in (1, 2, 3):
        kept.note(step, f"after {step}".encode())
    for find in (kept.after, lambda step: kept_random.read(str(path), step)):
        assert find(3) == b"after 3"
        assert find(2) == b"after 2"
        assert find(1) is None
        assert find(4) is None


def test_the_file_outlives_a_process_that_is_killed(path: Path) -> None:
    process = os.fork()
    if process == 0:
        KeptRandom(path, 8).note(7, b"state")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(process, 0)
    assert kept_random.read(str(path), 7) == b"state"


def test_a_state_that_was_half_written_does_not_count(path: Path) -> None:
    KeptRandom(path, 8).note(7, b"state")
    path.write_bytes(path.read_bytes().replace(b"state", b"stale"))
    assert kept_random.read(str(path), 7) is None


def test_a_new_process_of_the_rank_leaves_the_former_one_its_file(path: Path) -> None:
    former = KeptRandom(path, 8)
    former.note(7, b"state")
    KeptRandom(path, 8)
    former.note(8, b"next")
    assert former.after(8) == b"next"
    assert kept_random.read(str(path), 7) is None


def test_nobody_else_may_read_it(path: Path) -> None:
    KeptRandom(path, 8)
    assert path.stat().st_mode & 0o777 == 0o600


def test_no_file_is_left_after_the_training(path: Path) -> None:
    kept = KeptRandom(path, 8)
    kept.note(7, b"state")
    kept.close()
    kept.close()
    assert not path.exists()
    assert kept.after(7) == b"state", "the policy may still ask for it"
    assert kept_random.read(str(path), 7) is None


def noted(path: Path | None) -> NotedSteps:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = NotedSteps(random_file=path, world_size=2, exchange=GradientExchange({}))
    objects = {"model": model, "optimizer": optimizer}
    steps.begin(objects, 0, AccumulatedGradients([optimizer]), (), set, lambda: [0, 0])
    assert steps.noting, steps.reason
    return steps


def test_a_rank_keeps_the_state_of_each_step_that_it_notes(path: Path) -> None:
    steps = noted(path)
    state = random_state.packed()
    steps.note(Position(3), {}, lambda: None, 1.0)
    draws()
    assert steps.random_state(3) == state
    with pytest.raises(NotWhole, match="step 4"):
        steps.random_state(4)


def test_a_step_for_whose_note_there_is_no_time_keeps_no_state(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = noted(path)
    monkeypatch.setattr(note_time, "ADVANCE_S", -1.0)
    steps.note(Position(3), {}, lambda: None, 0.0)
    with pytest.raises(NotWhole, match="step 3"):
        steps.random_state(3)


def test_with_a_seed_none_is_kept() -> None:
    steps = noted(None)
    steps.note(Position(3), {}, lambda: None, 1.0)
    assert steps.random_state(3) is None
    assert steps.random_file is None


def test_a_checkpoint_has_the_states_of_all_ranks(tmp_path: Path) -> None:
    states, expected = {}, {}
    for rank in range(2):
        torch.manual_seed(rank)
        states[rank] = random_state.packed()
        expected[rank] = draws()
    model = torch.nn.Linear(2, 1)
    tree = {"model": encode(model.state_dict(), "model")}
    files = snapshot.shared(tree, (), Position(3), 2) | snapshot.random_files(states)
    checkpoints.write(files, tmp_path)
    for rank in range(2):
        snapshot.restore(LocalFiles(tmp_path), {"model": torch.nn.Linear(2, 1)}, rank, 2)
        assert draws() == expected[rank]
