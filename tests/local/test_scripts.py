"""A script's run is done when its `fit` says so, however the script itself ends: with real Ray."""

import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from support.local_runs import Run
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.contract import SUSPEND_FILE
from trainingrun_protocol.exit_codes import SUSPEND_EXIT_CODE
from trainingrun_protocol.progress import Failure, RecordKind, RunState
from trainingrun_runtime.report_page import traces
from trainingrun_runtime.store import manifest, run_result, start_traces, verification

TRAIN = """
import time
import ray.train
import torch
from ray.train import Checkpoint, ScalingConfig, TrainingFailedError
from ray.train.torch import TorchTrainer
from trainingrun_runtime import Session

def train(config):
    session = Session(model=torch.nn.Linear(1, 1))
    for step in session.steps(config["steps"]):
        time.sleep(0.05)
        if step == config.get("fails_at"):
            raise ValueError("bad batch")

def trainer(**config):
    scaling = ScalingConfig(num_workers=2)
    return TorchTrainer(train, train_loop_config=config, scaling_config=scaling)
"""


@pytest.fixture
def a_script(ray: LocalRay, tmp_path: Path) -> Callable[[str], Run]:
    """Makes a run of a script: the training above, and what is done with it."""

    def make(code: str) -> Run:
        script = tmp_path / "script.py"
        script.write_text(TRAIN + textwrap.dedent(code))
        return Run(ray, tmp_path, None, {}, script=script)

    return make


def failure_of(run: Run) -> Failure:
    progress = run.progress()
    assert progress.state is RunState.FAILED
    assert progress.failure is not None
    assert run_result.read(run.bucket) is None
    return progress.failure


def test_a_script_that_swallows_the_failure_of_its_training_has_failed(
    a_script: Callable[[str], Run],
) -> None:
    run = a_script(
        """
        try:
            trainer(steps=5, fails_at=2).fit()
        except TrainingFailedError:
            print("never mind")
        """
    )
    assert run.drive() == 1, run.log()
    failure = failure_of(run)
    assert failure.kind == "Application"
    assert re.search(r"ValueError: bad batch \(script\.py:\d+\)", failure.message)


@pytest.mark.slow
def test_a_script_that_swallows_a_suspend_is_suspended(a_script: Callable[[str], Run]) -> None:
    run = a_script(
        """
        try:
            trainer(steps=1000).fit()
        except TrainingFailedError:
            raise SystemExit(0)
        """
    )
    run.start()
    run.wait_until(lambda progress: progress.step >= 5)
    (run.state / SUSPEND_FILE).touch()
    assert run.wait() == SUSPEND_EXIT_CODE, run.log()
    assert run.progress().state is RunState.SUSPENDED
    assert manifest.committed(run.bucket)[-1].step == run.progress().step
    assert run_result.read(run.bucket) is None


@pytest.mark.parametrize(
    "code",
    [
        "print('no training here')",
        pytest.param("import os; os._exit(0)", marks=pytest.mark.slow),
    ],
)
def test_a_script_that_never_trains_has_failed(a_script: Callable[[str], Run], code: str) -> None:
    run = a_script(code)
    assert run.drive() == 1, run.log()
    assert "without calling fit()" in failure_of(run).message


@pytest.mark.slow
def test_a_script_gets_its_arguments_and_the_names_of_its_run(
    a_script: Callable[[str], Run],
) -> None:
    run = a_script(
        """
        import os, sys

        def train(config):
            session = Session(model=torch.nn.Linear(1, 1))
            names = ("NAME", "NAMESPACE", "UID", "ATTEMPT")
            rank = "/".join(os.environ["TRAININGRUN_" + name] for name in names)
            for _ in session.steps(1):
                pass
            session.finish(rank=rank, script=config["script"])

        trainer(script=" ".join(sys.argv[1:])).fit()
        """
    )
    run.contract = run.contract.model_copy(update={"script_args": ["--lr", "0.1"], "attempt": 2})
    assert run.drive() == 0, run.log()
    assert run.metrics() == {"rank": "example/default/0/2", "script": "--lr 0.1"}


def test_a_script_without_checkpoints_prints_its_last_metrics_and_the_table(
    a_script: Callable[[str], Run],
) -> None:
    """As the quick starts of Ray Train and its own local mode end."""
    run = a_script(
        """
        def plain():
            for step in range(1, 4):
                ray.train.report({"loss": 1 / step, "history": [step] * 300})

        result = TorchTrainer(plain, scaling_config=ScalingConfig(num_workers=0)).fit()
        print(f"Final loss: {result.metrics['loss']:.3f}")
        print("history:", len(result.metrics["history"]))
        print("losses:", [round(loss, 3) for loss in result.metrics_dataframe["loss"]])
        """
    )
    assert run.drive() == 0, run.log()
    assert run.metrics()["loss"] == 1 / 3
    log = run.log()
    assert "Final loss: 0.333" in log
    assert "history: 300" in log
    assert "losses: [1.0, 0.5, 0.333]" in log
    (trace,) = traces.of(start_traces.read(run.bucket))
    of_rank_0 = [span.name for span in trace.spans if span.process == "rank 0"]
    assert of_rank_0[-2:] == ["trainingrun.checkpoint.fetch", "training.first_report"]


@pytest.mark.slow
def test_the_result_of_a_script_has_what_earlier_drivers_have_reported_and_saved(
    a_script: Callable[[str], Run],
) -> None:
    run = a_script(
        """
        import os, pathlib, tempfile

        def plain():
            restored = ray.train.get_checkpoint()
            first = restored is None
            for step in (1, 2, 3) if first else ():
                with tempfile.TemporaryDirectory() as folder:
                    pathlib.Path(folder, "weights").touch()
                    ray.train.report(
                        {"step": step, "loss": 1 / step}, checkpoint=Checkpoint(folder)
                    )
            if first:
                raise ValueError("bad batch")

        result = TorchTrainer(plain, scaling_config=ScalingConfig(num_workers=2)).fit()
        print("loss:", result.metrics["loss"])
        print("best:", [metrics["loss"] for _, metrics in result.best_checkpoints])
        print("files:", os.listdir(result.checkpoint.to_directory()))
        print("steps:", list(result.metrics_dataframe["step"]))
        """
    )
    assert run.drive() == 1, run.log()
    run.contract = run.contract.model_copy(update={"attempt": 2})
    assert run.drive() == 0, run.log()
    log, kept = run.log(), manifest.committed(run.bucket)
    assert f"loss: {kept[-1].metrics['loss']}" in log
    assert f"best: {[each.metrics['loss'] for each in kept]}" in log
    assert "files: ['weights']" in log
    assert f"steps: {list(range(1, kept[-1].step + 1))}" in log


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ('print(result.metrics["accuracy"])', "KeyError: 'accuracy'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import os; os._exit(4)", "SystemExit: 4"),
        ("trainer(steps=7).fit()", "fit() was called a second time"),
    ],
)
def test_a_script_that_fails_after_its_training_is_not_trained_again(
    a_script: Callable[[str], Run], ending: str, said: str
) -> None:
    run = a_script(f"result = trainer(steps=5).fit()\n{ending}\n")
    assert run.drive() == 1, run.log()
    failure = failure_of(run)
    assert failure.kind == "Application"
    assert failure.retry == "Never"
    assert said in failure.message
    assert re.search(r"at script\.py:\d+", failure.message)
    assert "read the weights" in failure.message
    assert "script.py" in failure.traceback
    assert [committed.step for committed in manifest.committed(run.bucket)] == [5]


@pytest.mark.slow
def test_overruled_settings_of_a_script_are_named_and_its_callbacks_are_called(
    a_script: Callable[[str], Run], tmp_path: Path
) -> None:
    run = a_script(
        f"""
        from pathlib import Path
        from ray.train import CheckpointConfig, FailureConfig, RunConfig, UserCallback

        class Noting(UserCallback):
            def after_report(self, run_context, metrics, checkpoint):
                Path({str(tmp_path)!r}, "called").write_text(str(len(metrics)))

        def train():
            session = Session(model=torch.nn.Linear(1, 1))
            for _ in session.steps(1):
                pass
            session.finish(ranks=ray.train.get_context().get_world_size())

        TorchTrainer(
            train,
            scaling_config=ScalingConfig(num_workers=0),  # Ray's mode without workers
            run_config=RunConfig(
                name="experiment",
                storage_path="/nowhere",
                failure_config=FailureConfig(max_failures=3),
                checkpoint_config=CheckpointConfig(num_to_keep=2),
                callbacks=[Noting()],
            ),
        ).fit()
        """
    )
    assert run.drive() == 0, run.log()
    assert run.metrics()["ranks"] == 2
    assert (tmp_path / "called").read_text() == "2"
    overruled = [
        record.message
        for record in run.progress().records
        if record.kind is RecordKind.SETTING_OVERRULED
    ]
    assert [sentence.partition(" of the script")[0] for sentence in overruled] == [
        "ScalingConfig(num_workers=0)",
        "RunConfig(name='experiment')",
        "RunConfig(storage_path='/nowhere')",
        "FailureConfig(max_failures=3)",
    ]
    for sentence in overruled:
        assert sentence in (tmp_path / "driver.log").read_text()


@pytest.mark.slow
def test_the_best_checkpoints_by_ray_s_own_validation_are_kept_and_in_the_result(
    a_script: Callable[[str], Run],
) -> None:
    run = a_script(
        """
        import tempfile, pathlib
        from ray.train import CheckpointConfig, Result, RunConfig
        from ray.train.v2.api.validation_config import ValidationConfig

        def rate(checkpoint):
            with checkpoint.as_directory() as folder:
                return {"score": float(pathlib.Path(folder, "score").read_text())}

        def plain():
            for step, score in enumerate((0.2, 0.9, 0.5, 0.8, 0.1, 0.3), 1):
                with tempfile.TemporaryDirectory() as folder:
                    pathlib.Path(folder, "score").write_text(str(score))
                    ray.train.report({"step": step}, Checkpoint(folder), validation=True)

        result = TorchTrainer(
            plain,
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(
                checkpoint_config=CheckpointConfig(
                    num_to_keep=2, checkpoint_score_attribute="score"
                )
            ),
            validation_config=ValidationConfig(rate),
        ).fit()
        print("result:", result.metrics["score"])
        print("best:", [metrics["score"] for _, metrics in result.best_checkpoints])
        again = Result.from_path(result.path, result.filesystem)
        print("again:", [metrics["score"] for _, metrics in again.best_checkpoints])
        print("table:", list(again.metrics_dataframe["score"]))
        """
    )
    assert run.drive() == 0, run.log()
    found = run_result.read(run.bucket)
    assert found is not None
    assert found.metrics["score"] == 0.3
    kept = {committed.step: committed for committed in manifest.committed(run.bucket)}
    assert set(kept) == {2, 4, 5, 6}
    assert found.best_checkpoint_uri == run.bucket.uri(kept[2].path)
    for line in (
        "result: 0.3",
        "best: [0.1, 0.3, 0.8, 0.9]",
        "again: [0.1, 0.3, 0.8, 0.9]",
        "table: [0.2, 0.9, 0.5, 0.8, 0.1, 0.3]",
    ):
        assert line in run.log()
    said = [record.kind for record in run.progress().records]
    assert RecordKind.SETTING_OVERRULED not in said


@pytest.mark.slow
def test_checkpoints_of_one_name_are_kept_apart(a_script: Callable[[str], Run]) -> None:
    """A second upload under the first one's name would overwrite what is committed."""
    run = a_script(
        """
        import tempfile, pathlib

        def plain():
            for step in range(1, 5):
                with tempfile.TemporaryDirectory() as folder:
                    pathlib.Path(folder, "weights").write_text(f"after step {step}")
                    ray.train.report(
                        {"step": step},
                        checkpoint=Checkpoint.from_directory(folder),
                        checkpoint_dir_name="latest",
                    )

        TorchTrainer(plain, scaling_config=ScalingConfig(num_workers=2)).fit()
        """
    )
    assert run.drive() == 0, run.log()
    kept = manifest.committed(run.bucket)
    assert [committed.step for committed in kept] == [3, 4]
    assert len({committed.path for committed in kept}) == 2
    for committed in kept:
        assert verification.verify(run.bucket, committed) is None
        weights = run.bucket.get(f"{committed.path}/weights")
        assert weights == f"after step {committed.step}".encode()
    found = run_result.read(run.bucket)
    assert found is not None
    assert found.checkpoint_uri == run.bucket.uri(kept[-1].path)


@pytest.mark.slow
def test_a_script_opens_and_closes_ray_itself_and_reads_datasets(
    a_script: Callable[[str], Run],
) -> None:
    run = a_script(
        """
        import ray

        def read(config=None):
            session = Session()
            rows = 0
            for _ in session.steps(1):
                for batch in ray.train.get_dataset_shard("train").iter_batches(batch_size=8):
                    rows += len(batch["id"])
            session.finish(rows=rows, told=config["word"])

        environment = {"env_vars": {"WORD": "hush"}}
        ray.init("auto", num_cpus=4, runtime_env=environment, ignore_reinit_error=False)
        TorchTrainer(
            read,
            train_loop_config={"word": "hello"},
            scaling_config=ScalingConfig(num_workers=2),
            datasets={"train": ray.data.range(64)},
        ).fit()
        ray.shutdown()
        """
    )
    assert run.drive() == 0, run.log()
    found = run_result.read(run.bucket)
    assert found is not None
    assert found.metrics["told"] == "hello"
    assert found.metrics["rows"] == 32
    said = [record.message.partition(" is overruled")[0] for record in run.progress().records]
    assert "ray.init(num_cpus=4) of the script" in said
    assert "ray.init(runtime_env={'env_vars': …}) of the script" in said
    assert "hush" not in str(run.progress())
