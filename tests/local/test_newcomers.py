"""What newcomers meet is answered in the progress document, with what to do: with real Ray."""

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.local_runs import Run
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.progress import RunState

pytestmark = pytest.mark.slow

TRAIN = """
import pathlib, tempfile
import ray, ray.train, torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from trainingrun_runtime import Session

scaling = ScalingConfig(num_workers=2)

def step_of(model):
    model(torch.ones(1, 1)).sum().backward()
"""
IN_BACKWARD = (
    f"script.py:{TRAIN.splitlines().index('    model(torch.ones(1, 1)).sum().backward()') + 1}"
)


@pytest.fixture
def a_script(ray: LocalRay, tmp_path: Path) -> Iterator[Callable[[str], Run]]:
    """Makes a run of a script; it is ended with the test."""
    runs: list[Run] = []

    def make(code: str) -> Run:
        script = tmp_path / "script.py"
        script.write_text(TRAIN + textwrap.dedent(code))
        runs.append(Run(ray, tmp_path, None, {}, script=script))
        return runs[-1]

    yield make
    for run in runs:
        run.stop()


ON_A_RANK = {
    "Checkpoint.from_dict": (
        'ray.train.report({"loss": 1.0}, checkpoint=Checkpoint.from_dict({"weights": 1}))',
        "pass Checkpoint.from_directory(folder) to ray.train.report",
    ),
    "ray.air.session as the script imported it": (
        'report({"loss": 1.0})',
        "call ray.train.report() instead",
    ),
    "ray.tune.report as the script imported it": (
        'report_to_tune({"loss": 1.0})',
        "ray.tune.report() does nothing in a training function; call ray.train.report() instead",
    ),
    "ray.tune.get_checkpoint": (
        "from ray import tune; tune.get_checkpoint()",
        "call ray.train.get_checkpoint() instead",
    ),
    "no GPU": ('torch.zeros(1).to("cuda")', "set workers.accelerator of the TrainingRun"),
    "a full /dev/shm": (
        "list(torch.utils.data.DataLoader(KilledByASignal(signal.SIGBUS), num_workers=1))",
        "raise workers.resources.sharedMemory",
    ),
    "a killed process of a data loader": (
        "list(torch.utils.data.DataLoader(KilledByASignal(signal.SIGKILL), num_workers=1))",
        "else workers.resources.memory, or lower num_workers",
    ),
    "a server that is not there": (
        'urllib.request.urlopen(f"http://127.0.0.1:{unused_port()}/labels.csv")',
        "use the name of a Service instead of localhost",
    ),
    "a host that is not there": (
        'urllib.request.urlopen("http://no-such-host.invalid/labels.csv")',
        "correct the host's name, or see that the pods reach DNS",
    ),
    "more memory than there is": (
        "torch.empty(1 << 50)",
        "raise workers.resources.memory, or make the batch smaller and accumulate gradients",
    ),
    "a process group of one's own": (
        'torch.distributed.init_process_group("gloo")',
        "take out init_process_group",
    ),
    "parameters that take no part in the loss": (
        "model = prepare_model(Half()); step_of(model); step_of(model)",
        '{"find_unused_parameters": True} to prepare_model',
    ),
    "tensors as metrics": (
        'ray.train.report({"loss": torch.zeros(1)})',
        "convert the tensors to Python objects",
    ),
    "a tensor that was saved on a GPU": (
        "torch.load(saved_on_a_gpu())",
        "use torch.load with map_location",
    ),
    "a package that the image does not have": (
        "import no_such_package",
        "put the package into training.requirements",
    ),
}

IN_THE_SCRIPT = {
    "TorchTrainer.restore": (
        'TorchTrainer.restore("/a").fit()',
        "storage.restoreFrom of the TrainingRun",
    ),
    "resume_from_checkpoint": (
        'TorchTrainer(print, resume_from_checkpoint=Checkpoint("/a")).fit()',
        "the run's newest checkpoint is ray.train.get_checkpoint()",
    ),
    "TransformersTrainer": (
        "from ray.train.huggingface import TransformersTrainer",
        "use TorchTrainer, with transformers.Trainer in its function",
    ),
}


def failure_of(run: Run) -> str:
    assert run.drive() == 1, run.log()
    progress = run.progress()
    assert progress.state is RunState.FAILED
    assert progress.failure
    assert progress.failure.kind == "Application"
    assert len(progress.failure.message) <= 500  # what the status keeps of it
    return progress.failure.message


@pytest.mark.parametrize(("code", "advice"), ON_A_RANK.values(), ids=ON_A_RANK.keys())
def test_an_error_on_a_rank_says_what_to_do(
    a_script: Callable[[str], Run], tmp_path: Path, code: str, advice: str
) -> None:
    folder = tmp_path
    run = a_script(
        f"""
        import os, signal, socket, urllib.request
        from ray.air.session import report
        from ray.tune import report as report_to_tune

        class KilledByASignal(torch.utils.data.Dataset):
            def __init__(self, number):
                self.number = number  # SIGBUS is what a write to a full /dev/shm is answered with

            def __len__(self):
                return 1

            def __getitem__(self, index):
                os.kill(os.getpid(), self.number)

        class Half(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.used, self.unused = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)

            def forward(self, numbers):
                return self.used(numbers)

        def unused_port():
            with socket.create_server(("127.0.0.1", 0)) as free:
                return free.getsockname()[1]

        def saved_on_a_gpu():
            torch.serialization.location_tag = lambda storage: "cuda:0"
            torch.save(torch.zeros(1), "{folder}/weights.pt")
            return "{folder}/weights.pt"

        def train():
            {code}

        TorchTrainer(train, scaling_config=scaling).fit()
        """
    )
    assert advice in failure_of(run)


@pytest.mark.parametrize(("code", "advice"), IN_THE_SCRIPT.values(), ids=IN_THE_SCRIPT.keys())
def test_an_error_of_the_script_says_what_to_do(
    a_script: Callable[[str], Run], code: str, advice: str
) -> None:
    assert advice in failure_of(a_script(code))


def test_what_scripts_do_around_their_training_works(
    a_script: Callable[[str], Run], tmp_path: Path
) -> None:
    """They connect to Ray, name a folder of their own, and read the result."""
    run = a_script(
        f"""
        from ray.train import CheckpointConfig

        def train(config):
            for epoch in range(3):
                with tempfile.TemporaryDirectory() as folder:
                    pathlib.Path(folder, "epoch").write_text(str(epoch))
                    checkpoint = Checkpoint.from_directory(folder)
                    ray.train.report({{"epoch": epoch, "loss": 1 / (1 + epoch)}}, checkpoint)

        ray.init(address="auto")
        result = TorchTrainer(
            train,
            scaling_config=scaling,
            run_config=RunConfig(name="mine", storage_path="{tmp_path}/elsewhere"),
        ).fit()
        ray.shutdown()

        def epoch_of(checkpoint):
            with checkpoint.as_directory() as folder:
                return pathlib.Path(folder, "epoch").read_text()

        found = [(epoch_of(one), metrics["loss"]) for one, metrics in result.best_checkpoints]
        assert found == [("1", 1 / 2), ("2", 1 / 3)], found  # checkpoints.keep is 2
        assert epoch_of(result.checkpoint) == "2"
        assert result.metrics["loss"] == 1 / 3
        assert list(result.metrics_dataframe["epoch"])[-1] == 2
        best = result.get_best_checkpoint("loss", "min")
        pathlib.Path("{tmp_path}/read").write_text(epoch_of(best))
        """
    )
    assert run.drive() == 0, run.log()
    assert (tmp_path / "read").read_text() == "2"
    assert not (tmp_path / "elsewhere").exists()


def test_a_rank_that_reports_alone_is_named_with_where_the_other_works(
    a_script: Callable[[str], Run],
) -> None:
    run = a_script(
        """
        def train():
            model = prepare_model(torch.nn.Linear(1, 1))
            for step in range(3):
                step_of(model)
                if ray.train.get_context().get_world_rank() == 0:
                    ray.train.report({"step": step})

        TorchTrainer(train, scaling_config=scaling).fit()
        """
    )
    run.start()
    said = run.wait_until(lambda progress: progress.standstill).standstill or ""
    assert said.startswith("rank 0 waits in ray.train.report for over 30 s for rank 1, which is at")
    assert f"{IN_BACKWARD} in step_of" in said  # in the all-reduce of its gradients
    assert "not under `if rank == 0`" in said


@pytest.mark.parametrize("session", [True, False], ids=["session", "plain"])
def test_a_rank_with_fewer_steps_is_named_with_where_the_other_works(
    a_script: Callable[[str], Run], session: bool
) -> None:
    run = a_script(
        f"""
        def train():
            rank = ray.train.get_context().get_world_rank()
            model = prepare_model(torch.nn.Linear(1, 1))
            steps = 5 if rank == 0 else 3
            for _ in Session(model=model).steps(steps) if {session} else range(steps):
                step_of(model)

        TorchTrainer(train, scaling_config=scaling).fit()
        """
    )
    run.start()
    said = run.wait_until(lambda progress: progress.standstill).standstill or ""
    assert said.startswith(
        "rank 1 waits after a loop with 3 steps done, for over 30 s for rank 0, which is at"
        if session
        else "rank 1 returned from the training function over 30 s ago, and not rank 0, which is at"
    )
    assert f"{IN_BACKWARD} in step_of" in said
    assert "every rank must do the same steps" in said
