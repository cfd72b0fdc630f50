"""A script as people start it with torchrun, unmodified, on real Ray: what it is told and keeps."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from support.local_runs import two_workers
from support.packages import zipped
from support.processes import wait_for
from support.torchrun_runs import FOLDER, Started, run_alone
from trainingrun.local.ray_nodes import LocalRay, Preemption
from trainingrun_protocol.contract import ContractCode, ContractHang, ContractTorchrun
from trainingrun_protocol.exit_codes import SUSPEND_EXIT_CODE
from trainingrun_protocol.progress import RecordKind, RunState
from trainingrun_runtime.store import kept_stacks, manifest, run_result

SAMPLE = Path(__file__).parents[2] / "manifests/samples/torchrun.yaml"
STEPS = 100


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRay]:
    """Two nodes, whose processes' output is kept."""
    with two_workers(tmp_path_factory.mktemp("ray"), uploads_output=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def sample() -> str:
    """The script of the sample."""
    config_map, _ = yaml.safe_load_all(SAMPLE.read_text())
    return str(config_map["data"]["train.py"])


@pytest.fixture
def a_run(ray: LocalRay, tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Makes runs: `a_run(code, "--steps", "10")`."""
    made: list[Started] = []

    def make(code: str, *arguments: str) -> Started:
        made.append(Started(ray, tmp_path / f"run-{len(made)}", code, *arguments))
        return made[-1]

    yield make
    for run in made:
        run.stop()


@pytest.fixture(scope="module")
def undisturbed(sample: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the sample ends with as two processes of their own, without Ray and without us."""
    folder = tmp_path_factory.mktemp("undisturbed")
    script = folder / "train.py"
    script.write_text(sample)
    command = [sys.executable, script, "--folder", folder, "--steps", str(STEPS)]
    run_alone(command)
    found: dict[str, Any] = torch.load(folder / "snapshot.pt")
    assert found["step"] == STEPS
    return found


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found["step"] == wanted["step"]
    for name, weights in wanted["model"].items():
        assert torch.equal(found["model"][name], weights)
    states = (one["optimizer"]["state"] for one in (found, wanted))
    for own, other in zip(*(state.values() for state in states), strict=True):
        assert torch.equal(own["momentum_buffer"], other["momentum_buffer"])


def test_a_killed_script_costs_the_steps_since_its_last_checkpoint_and_no_bit(
    a_run: Callable[..., Started], sample: str, undisturbed: dict[str, Any]
) -> None:
    run = a_run(
        sample, "--folder", FOLDER, "--steps", str(STEPS), "--save-every", "60",
        "--step-seconds", "0.3",
    )  # fmt: skip
    run.start()
    run.wait_until(lambda progress: progress.checkpoint is not None)
    run.scripts()[1].send_signal(signal.SIGKILL)
    assert run.wait() == 0, run.log()

    assert_same(run.kept(), undisturbed)
    assert run.begins() == [1, 61]
    result = run_result.read(run.bucket)
    assert result is not None
    assert result.checkpoint_uri == run.bucket.uri(manifest.committed(run.bucket)[-1].path)
    progress = run.progress()
    kinds = [record.kind for record in progress.records]
    assert kinds.count(RecordKind.WORKER_LOST) == 1
    assert progress.world_size == 2


@pytest.mark.slow
def test_a_script_that_handles_sigterm_loses_no_step_by_a_notice(
    a_run: Callable[..., Started], ray: LocalRay, sample: str, undisturbed: dict[str, Any]
) -> None:
    run = a_run(
        sample, "--folder", FOLDER, "--steps", str(STEPS), "--save-every", "1000",
        "--step-seconds", "0.2",
    )  # fmt: skip
    run.start()
    wait_for(lambda: len(run.scripts()) == 2)
    wait_for(lambda: run.begins() == [1])
    preemption = Preemption(ray, 0)
    preemption.poll(0)
    run.wait_until(lambda progress: preemption.poll(0) or preemption.done)
    assert run.wait() == 0, run.log()

    assert_same(run.kept(), undisturbed)
    saved = [int(m[1]) for line in run.lines() if (m := re.match(r"step (\d+): ", line))]
    assert len(saved) == 2, "at the notice, and at the end"
    assert run.begins() == [1, saved[0] + 1]
    records = [record.kind for record in run.progress().records]
    assert records.count(RecordKind.PREEMPTED) == 1
    assert RecordKind.WORKER_LOST not in records


@pytest.mark.slow
def test_a_suspended_run_goes_on_with_another_number_of_ranks(
    a_run: Callable[..., Started], sample: str
) -> None:
    run = a_run(
        sample, "--folder", FOLDER, "--steps", str(STEPS), "--save-every", "1000",
        "--step-seconds", "0.1",
    )  # fmt: skip
    run.start()
    wait_for(lambda: run.begins() == [1])
    run.suspend()
    assert run.wait() == SUSPEND_EXIT_CODE, run.log()
    assert run.progress().state is RunState.SUSPENDED
    stopped = run.kept()["step"]
    assert 0 < stopped < STEPS

    run.contract = run.contract.model_copy(update={"attempt": 2, "workers": 1})
    assert run.drive() == 0, run.log()
    assert "rank 0 of 1 begins with step " + str(stopped + 1) in run.lines()
    assert run.kept()["step"] == STEPS
    assert [one.world_size for one in manifest.committed(run.bucket)] == [2, 1]


@pytest.mark.slow
def test_a_script_ends_with_the_process_of_its_rank(
    a_run: Callable[..., Started], sample: str, undisturbed: dict[str, Any]
) -> None:
    run = a_run(sample, "--folder", FOLDER, "--steps", str(STEPS), "--step-seconds", "0.1")
    run.start()
    wait_for(lambda: run.begins() == [1])
    before = run.scripts()
    os.kill(run.training_process(), signal.SIGKILL)
    wait_for(lambda: not any(one.is_running() for one in before.values()), 60)
    wait_for(lambda: len(run.scripts()) == 2)
    assert run.wait() == 0, run.log()
    assert_same(run.kept(), undisturbed)
    assert not run.scripts()


@pytest.mark.slow
def test_the_error_of_a_script_is_that_of_the_run(a_run: Callable[..., Started]) -> None:
    run = a_run(
        """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    raise ValueError("bad batch")
dist.barrier()
"""
    )
    assert run.drive() == 1, run.log()
    progress = run.progress()
    assert progress.state is RunState.FAILED
    failure = progress.failure
    assert failure is not None
    assert failure.kind == "Application"
    assert failure.rank == 1
    assert failure.message == "rank 1 raised ValueError: bad batch (train.py:6)"
    assert 'raise ValueError("bad batch")' in failure.traceback
    assert not run.scripts()


@pytest.mark.slow
def test_a_module_of_the_code_is_started_as_by_torchrun_m(
    a_run: Callable[..., Started], tmp_path: Path
) -> None:
    """It imports from its own package, which a file named as the script could not."""
    module = """
import os, sys
from pathlib import Path
from .names import NAME
Path(sys.argv[1], f"{NAME}-{os.environ['RANK']}").write_text(__name__)
"""
    files = {"jobs/names.py": 'NAME = "rank"\n', "jobs/train.py": module}
    code = ContractCode(uri=zipped(tmp_path / "code.zip", files).as_uri())
    started = ContractTorchrun(module="jobs.train", args=[FOLDER])
    run = a_run("")
    run.contract = run.contract.model_copy(update={"code": code, "torchrun": started})
    assert run.drive() == 0, run.log()
    (newest,) = manifest.committed(run.bucket)
    kept = {name: run.bucket.get(f"{newest.path}/{name}") for name in ("rank-0", "rank-1")}
    assert kept == {"rank-0": b"__main__", "rank-1": b"__main__"}

    nowhere = ContractTorchrun(module="elsewhere.train")
    run = a_run("")
    run.contract = run.contract.model_copy(update={"torchrun": nowhere})
    assert run.drive() == 1, run.log()
    failure = run.progress().failure
    assert failure is not None
    assert "training.torchrun.module elsewhere.train is not in the image" in failure.message


DESCRIBES = """
import json, os, pathlib, sys
names = sys.argv[1]
pathlib.Path(names, os.environ["RANK"]).write_text(json.dumps({**os.environ, "TOLD": sys.argv[2:]}))
"""


@pytest.mark.slow
def test_it_has_the_variables_of_torchrun_and_succeeds_without_a_checkpoint(
    a_run: Callable[..., Started], tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    run = a_run(DESCRIBES, str(here), "--folder=$(TRAININGRUN_CHECKPOINT_DIR)/a", "$(NOTHING)")
    assert run.drive() == 0, run.log()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    subprocess.run([*torchrun, run.folder / "train.py", there], check=True, capture_output=True)

    found = [json.loads((here / str(rank)).read_text()) for rank in (0, 1)]
    theirs = json.loads((there / "1").read_text())
    # Of its agent, and of the terminal that it prints to.
    ignored = {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE", "LINES", "COLUMNS"}
    ignored.add("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING")
    assert theirs.keys() - os.environ.keys() - ignored <= found[1].keys()
    same = ("RANK", "WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE")
    same += ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE")
    assert {name: found[1][name] for name in same} == {name: theirs[name] for name in same}
    # One rank on each of two nodes.
    names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    assert [[one[name] for name in names] for one in found] == [
        ["0", "1", "0", "2"],
        ["0", "1", "1", "2"],
    ]
    folders = [one["TRAININGRUN_CHECKPOINT_DIR"] for one in found]
    assert folders[0] != folders[1]
    assert [one["TOLD"] for one in found] == [
        [f"--folder={folder}/a", "$(NOTHING)"] for folder in folders
    ]
    result = run_result.read(run.bucket)
    assert result is not None
    assert result.checkpoint_uri is None


@pytest.mark.slow
def test_a_script_that_hangs_is_found_by_its_own_stack_and_replaced(
    a_run: Callable[..., Started], sample: str, undisturbed: dict[str, Any]
) -> None:
    run = a_run(sample, "--folder", FOLDER, "--steps", str(STEPS), "--step-seconds", "0.1")
    run.contract = run.contract.model_copy(update={"hang": ContractHang(after_seconds=25)})
    run.start()
    wait_for(lambda: run.begins() == [1])
    run.scripts()[1].send_signal(signal.SIGSTOP)
    assert run.wait() == 0, run.log()
    assert_same(run.kept(), undisturbed)
    hang = run.progress().hang
    assert hang is not None
    assert [(one.rank, one.where.startswith("stopped in ")) for one in hang.ranks if one.hangs] == [
        (1, True)
    ]
    assert "(train.py:" in hang.message
    (kept,) = kept_stacks.kept(run.bucket)
    assert list(kept.ranks) == [0, 1]


@pytest.mark.slow
def test_a_hang_is_of_the_script_that_hangs_and_not_of_those_that_are_done(
    a_run: Callable[..., Started],
) -> None:
    run = a_run(
        """
import os, threading, time  # py-spy knows the names of threads by `threading`
def hang():
    time.sleep(600)
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    hang()
"""
    )
    run.contract = run.contract.model_copy(update={"hang": ContractHang(after_seconds=25)})
    assert run.drive() == 0, run.log()
    hang = run.progress().hang
    assert hang is not None
    assert [(one.rank, one.where) for one in hang.ranks if one.hangs] == [
        (1, "in hang (train.py:4)")
    ]
    assert run.progress().stuck_pods == []
    (kept,) = kept_stacks.kept(run.bucket)
    assert list(kept.ranks) == [0, 1]
