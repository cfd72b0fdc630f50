"""A run whose number of workers may change: how many there are, when it grows, what it refuses."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ray.train import ScalingConfig, WorkerGroupError
from ray.train.torch import TorchTrainer
from torch.utils.data import DataLoader

from support.runtime_calls import a_contract, a_manifest, a_report, an_upload
from trainingrun_runtime import ResumableDataLoader
from trainingrun_runtime.checkpoints.stateful_objects import NotRestorable
from trainingrun_runtime.coordinator import checkpoints
from trainingrun_runtime.coordinator.checkpoints import Command
from trainingrun_runtime.coordinator.coordinator import Coordinator
from trainingrun_runtime.coordinator.run_progress import GROWTH_S
from trainingrun_runtime.driver import overruled
from trainingrun_runtime.driver.trainer import Trainers, scaling_of
from trainingrun_runtime.known_errors.failure_causes import (
    FailureCause,
    Resized,
    TooManyWorkers,
    classify,
)
from trainingrun_runtime.ray_internals import elastic
from trainingrun_runtime.ray_internals.elastic import SETTLE_S, ElasticSize, GrowthRule
from trainingrun_runtime.session.session_context import SavedObjects
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.lease import Lease
from trainingrun_runtime.worker.leaving_a_rank import as_text

ELASTIC = a_contract(workers=8, minimum_workers=2, resize_seconds=30)
FIXED = a_contract(workers=8)


@pytest.mark.parametrize(
    ("contract", "theirs", "workers"),
    [
        pytest.param(ELASTIC, None, (2, 8), id="a function"),
        pytest.param(ELASTIC, 8, (2, 8), id="a script with the most"),
        pytest.param(ELASTIC, (3, 6), (3, 6), id="a script within the run's pods"),
        pytest.param(ELASTIC, (1, 16), (2, 8), id="a script beyond them on both sides"),
        pytest.param(ELASTIC, (9, 16), (2, 8), id="a script with none of them"),
        pytest.param(FIXED, (2, 8), 8, id="a script, without workers.minimum"),
        pytest.param(a_contract(workers=8, minimum_workers=8), None, 8, id="no room to shrink"),
    ],
)
def test_the_bounds_of_the_number_of_workers(contract: Any, theirs: Any, workers: Any) -> None:
    given = None if theirs is None else ScalingConfig(num_workers=theirs)
    scaling = scaling_of(contract, given)
    assert scaling.num_workers == workers
    elastic = isinstance(workers, tuple)
    assert scaling.elastic_resize_monitor_interval_s == (30.0 if elastic else 60.0)


def test_ranks_with_too_few_samples_ask_for_no_fewer_workers_than_the_scripts_minimum(
    tmp_path: Path,
) -> None:
    """Ray would begin the same group again and again."""
    lease = Lease.take(Bucket.open(f"file://{tmp_path}/run"), 1, "pod", 1000)
    told: Any = SimpleNamespace(remote=lambda *_: None)
    coordinator: Any = SimpleNamespace(driver_times=told, overruled=told, storage=told)
    committer: Any = SimpleNamespace()
    trainer = TorchTrainer(lambda: None, scaling_config=ScalingConfig(num_workers=(3, 6)))
    Trainers(ELASTIC, coordinator, lease, committer)._prepare(trainer)
    function: Any = trainer.train_loop_per_worker
    assert trainer.scaling_config.num_workers == (3, 6)
    assert function._contract.minimum_workers == 3


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        pytest.param({"num_workers": 8}, [], id="the most"),
        pytest.param({"num_workers": (3, 6)}, [], id="within the run's pods"),
        pytest.param(
            {"num_workers": (1, 16)},
            [
                "ScalingConfig(num_workers=(1, 16)) of the script is overruled: (2, 8) is used, "
                "which are workers.minimum and workers.count of the TrainingRun"
            ],
            id="beyond them",
        ),
        pytest.param(
            {"num_workers": (2, 8), "elastic_resize_monitor_interval_s": 5},
            [
                "ScalingConfig(elastic_resize_monitor_interval_s=5) of the script is overruled: "
                "30.0 is used, which is workers.resizeSeconds of the TrainingRun"
            ],
            id="its own interval",
        ),
    ],
)
def test_of_a_scripts_bounds_what_is_not_used_is_said(
    theirs: dict[str, Any], said: list[str]
) -> None:
    given = ScalingConfig(**theirs)
    assert overruled.by_scaling(given, scaling_of(ELASTIC, given)) == said


def test_without_a_minimum_it_is_said_how_to_have_one() -> None:
    given = ScalingConfig(num_workers=(2, 8))
    (sentence,) = overruled.by_scaling(given, scaling_of(FIXED, given))
    assert sentence.endswith("8 is used, which is workers.count of the TrainingRun; "
                             "workers.minimum is not set")  # fmt: skip


def test_nodes_that_join_together_are_one_growth() -> None:
    rule = GrowthRule(interval_s=60)
    assert not rule.due(100, workers=1, possible=2)
    assert not rule.due(100 + SETTLE_S - 0.1, 1, 3)
    assert not rule.due(100 + SETTLE_S, 1, 3)
    assert rule.due(100 + 2 * SETTLE_S, 1, 3)


def test_a_group_that_has_grown_does_not_grow_again_for_the_interval() -> None:
    rule = GrowthRule(interval_s=60, grown=100)
    rule.due(110, 2, 3)
    assert not rule.due(159.9, 2, 3)
    assert rule.due(160, 2, 3)


def test_a_group_of_all_that_there_is_does_not_grow() -> None:
    rule = GrowthRule(interval_s=0)
    rule.due(100, 2, 2)
    assert not rule.due(200, 2, 2)
    assert not rule.due(200 + SETTLE_S, 2, 1)


class Cluster:
    """Nodes of one worker each, and the coordinator, which may not answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, interval_s: float = 60) -> None:
        self.now, self.nodes, self.told, self.answers = 1000.0, 2, [], True
        room = SimpleNamespace(room_for=lambda each: {f"{n}": 1 for n in range(self.nodes)})
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self.wait)
        monkeypatch.setattr(elastic, "nodes", room)
        monkeypatch.setattr(elastic, "time", clock)
        scaling = ScalingConfig(num_workers=(1, 8), elastic_resize_monitor_interval_s=interval_s)
        self.size = ElasticSize(scaling, self, requests=False)

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def begins(self) -> int:
        return self.size.make_decision_for_non_running_worker_group().num_workers

    def trains(self, seconds: int) -> None:
        for _ in range(seconds):
            self.wait(1)
            self.size.make_decision_for_running_worker_group(None, None)

    def most_workers(self) -> None:
        """As many as there are."""

    def joined(self, nodes: dict[str, int]) -> None:
        """Nothing is prestarted."""

    def grow(self, workers: int, possible: int) -> bool:
        self.told.append("grow")
        return False  # a session ends by itself

    def stay(self) -> bool:
        self.told.append("stay")
        return self.answers


def test_a_group_that_was_to_grow_stays_where_the_further_node_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(monkeypatch)
    assert cluster.begins() == 2
    cluster.nodes = 3
    cluster.trains(4)
    assert set(cluster.told) == {"grow"}
    cluster.nodes, cluster.answers = 2, False
    cluster.told.clear()
    cluster.trains(2)
    cluster.answers = True
    cluster.trains(9)
    assert cluster.told == ["stay"] * 3, "it is told again until it was told"


def test_a_group_that_has_ended_to_grow_in_vain_does_not_end_for_it_again_for_the_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(monkeypatch)
    cluster.begins()
    cluster.nodes = 3
    cluster.trains(4)
    cluster.nodes = 2  # the ranks act before Ray's controller looks again
    assert cluster.begins() == 2
    cluster.nodes = 3
    cluster.told.clear()
    cluster.trains(59)
    assert cluster.told == []
    cluster.trains(5)
    assert cluster.told


def test_a_request_to_grow_that_is_taken_back_takes_no_other_one_with_it(
    coordinator: Coordinator,
) -> None:
    trains(coordinator)
    coordinator.grow(2, 8)
    assert coordinator.stepped(a_report(1, 5, total=1000)) is Command.RESIZE
    coordinator.stay()
    assert coordinator.stepped(a_report(1, 6, total=1000)) is Command.NONE
    coordinator.request(Command.CHECKPOINT_AND_EXIT)
    coordinator.stay()
    assert coordinator.stepped(a_report(1, 7, total=1000)) is Command.CHECKPOINT_AND_EXIT


def test_the_end_for_a_larger_group_is_no_loss() -> None:
    ended = Resized("saved after step 7, for more workers")
    failure = classify(WorkerGroupError("failed", {0: ended, 1: pickle.loads(pickle.dumps(ended))}))
    assert failure.cause is FailureCause.RESIZED
    assert (failure.message, failure.most_workers) == ("saved after step 7, for more workers", None)
    assert as_text(ended) is ended


def test_a_group_that_is_too_large_for_an_epochs_end_says_how_large_it_may_be() -> None:
    failure = classify(WorkerGroupError("failed", {0: Resized("3 samples are left", most=3)}))
    assert failure.most_workers == 3


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    made = Coordinator(ELASTIC, 3, 1000.0, tmp_path / "progress.json", None)
    made.group_started(2, 0, [])
    yield made
    made.close()


def trains(coordinator: Coordinator, left_s: float = 1000) -> None:
    """A session has done a step of a second, and has as many seconds left."""
    coordinator.session_began(1)
    coordinator.stepped(a_report(1, 1, total=1 + int(left_s)))


def test_a_session_is_asked_to_save_and_ends_by_itself(coordinator: Coordinator) -> None:
    coordinator.session_began(1)
    assert not coordinator.grow(2, 8)
    assert coordinator.stepped(a_report(1, 1, total=1000)) is Command.NONE, "nobody knew the rest"
    assert not coordinator.grow(2, 8)
    assert coordinator.stepped(a_report(1, 5)) is Command.RESIZE
    coordinator.group_started(8, 5, [])
    assert coordinator.stepped(a_report(2, 6)) is Command.NONE


def test_while_nothing_can_be_committed_no_group_is_asked_to_end_for_a_larger_one(
    coordinator: Coordinator,
) -> None:
    """It would make a checkpoint after each step, and train little."""
    trains(coordinator)
    coordinator.grow(2, 8)
    lost = an_upload(step=5, group=1)
    coordinator.uploaded(lost)
    coordinator.abandoned(lost)
    assert coordinator.stepped(a_report(1, 6, total=1000)) is Command.NONE
    coordinator.grow(2, 8)
    assert coordinator.stepped(a_report(1, 7, total=1000)) is Command.NONE
    made = an_upload(step=8, group=1)
    coordinator.uploaded(made)
    coordinator.committed(made, a_manifest(made), "s3://b/r/c")
    coordinator.grow(2, 8)
    assert coordinator.stepped(a_report(1, 9, total=1000)) is Command.RESIZE


def test_an_abandoned_checkpoint_takes_no_suspension_back(coordinator: Coordinator) -> None:
    coordinator.request(Command.SUSPEND)
    lost = an_upload(step=5, group=1)
    coordinator.uploaded(lost)
    coordinator.abandoned(lost)
    assert coordinator.stepped(a_report(1, 6)) is Command.SUSPEND


def test_a_suspension_comes_before_a_growth(coordinator: Coordinator) -> None:
    trains(coordinator)
    coordinator.request(Command.SUSPEND)
    assert not coordinator.grow(2, 8)
    assert coordinator.stepped(a_report(1, 5)) is Command.SUSPEND


def test_code_without_a_session_grows_only_just_after_a_checkpoint(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not coordinator.grow(2, 8), "it has no checkpoint"
    upload = an_upload(step=5, group=1)
    coordinator.uploaded(upload)
    assert not coordinator.grow(2, 8), "it is not committed"
    coordinator.committed(upload, a_manifest(upload), "s3://b/r/c")
    assert coordinator.grow(2, 8)
    monkeypatch.setattr(checkpoints, "JUST_S", 0.0)
    assert not coordinator.grow(2, 8), "much is done since"


@pytest.mark.parametrize(
    ("left", "grows"),
    [pytest.param(GROWTH_S, False, id="nearly done"), pytest.param(GROWTH_S * 3, True, id="long")],
)
def test_what_is_nearly_done_does_not_grow(
    coordinator: Coordinator, left: float, grows: bool
) -> None:
    trains(coordinator, left)
    coordinator.grow(2, 4)
    assert (coordinator.stepped(a_report(1, 1)) is Command.RESIZE) is grows


def test_the_limit_of_a_group_is_for_the_next_one_alone(coordinator: Coordinator) -> None:
    coordinator.limit_workers(1)
    assert coordinator.most_workers() == 1
    coordinator.group_started(1, 5, [])
    assert coordinator.most_workers() is None


def test_a_loader_says_up_to_how_many_ranks_its_epoch_can_go_on_with() -> None:
    loader = ResumableDataLoader(range(10), 4, shuffle=False, rank=0, world_size=1)
    assert loader.continues_with(10)
    batches = iter(loader)
    next(batches)
    next(batches)  # 2 samples are left
    assert loader.continues_with(2)
    assert not loader.continues_with(3)
    grown = ResumableDataLoader(range(10), 4, shuffle=False, rank=0, world_size=3)
    with pytest.raises(TooManyWorkers, match="2 samples are left in this epoch for 3 ranks") as few:
        grown.load_state_dict(loader.state_dict())
    assert few.value.most == 2
    next(batches)
    assert loader.continues_with(10), "the next epoch has all samples"


class Position:
    """How far a loader of the user's own is: of the same steps it is the same on all ranks."""

    def state_dict(self) -> dict[str, Any]:
        return {"batches": 3}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class PyTorchs(Position, DataLoader[int]):
    pass


class OwnLoader(Position):
    def __iter__(self) -> Iterator[int]:
        yield 0

    def __len__(self) -> int:
        return 1


class Losses(Position, list[float]):
    """Values that are iterated over, and no loader."""


class Drawing(Position):
    """As torchdata's nodes, it draws batches by itself."""

    def __iter__(self) -> "Drawing":
        return self

    def __next__(self) -> int:
        return 0


def test_a_loader_of_one_number_of_ranks_is_refused() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(1, 1))
    resumable = ResumableDataLoader(range(4), rank=0, world_size=1)
    others = {
        "model": model,
        "losses": Losses([1.0]),
        "optimizer": torch.optim.SGD([*model.parameters()]),
    }
    SavedObjects({**others, "loader": resumable}).refuse_one_number_of_ranks()
    for loader in (PyTorchs(range(4)), OwnLoader(), Drawing()):  # type: ignore[arg-type]
        kind = type(loader).__name__
        with pytest.raises(NotRestorable, match=f"loader is a {kind}, whose position is that of"):
            SavedObjects({**others, "loader": loader}).refuse_one_number_of_ranks()
