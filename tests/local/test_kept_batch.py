"""`workers.globalBatch: keep`: fewer workers do the very steps that all of them would have done."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from support.kept_batches import SAMPLES, KeptBatchRun
from support.local_runs import two_workers, wait_for_both_nodes
from support.s3 import CREDENTIALS
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.exit_codes import FAILED_EXIT_CODE

pytestmark = pytest.mark.slow

ORDER_OF_ADDITION = 1e-12
"""What the weights, of 64 bits and about 1, may differ by: gradients are added in another order."""


@pytest.fixture
def ray(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[LocalRay]:
    """A Ray of each test's own: nodes leave it."""
    with two_workers(
        tmp_path_factory.mktemp("ray"), workers_per_node=request.param, **CREDENTIALS
    ) as cluster:
        yield cluster


def same(one: KeptBatchRun, other: KeptBatchRun) -> bool:
    return all(
        torch.allclose(a, b, rtol=0, atol=ORDER_OF_ADDITION)
        for a, b in zip(one.weights(), other.weights(), strict=True)
    )


@pytest.mark.parametrize("ray", [2], indirect=True)
def test_two_of_four_workers_end_with_the_weights_of_four(ray: LocalRay, tmp_path: Path) -> None:
    """Also with dropout and random augmentation: two ranks take the batches of four."""
    drawn = {"dropout": 0.3, "noise": 0.1}
    wait_for_both_nodes(ray, tmp_path)
    whole = KeptBatchRun(ray, tmp_path / "whole", workers=4, **drawn)
    assert whole.drive() == 0, whole.log()
    run = KeptBatchRun(ray, tmp_path / "run", workers=4, step_seconds=0.2, **drawn)
    run.start()
    run.wait_until(lambda progress: progress.step >= 4)
    ray.remove(ray.workers[1])
    assert run.wait() == 0, run.log()
    assert run.sizes() == [(4, 2)]
    assert run.samples_of_steps() == whole.samples_of_steps()
    assert same(run, whole)
    assert run.metrics() == {**whole.metrics(), "workers": 2}
    assert whole.sizes() == []


@pytest.mark.parametrize("ray", [1], indirect=True)
def test_three_sizes_of_which_one_does_not_divide_do_the_same_steps(
    ray: LocalRay, tmp_path: Path
) -> None:
    """Three workers, then two, which take other microbatches of the same samples, then one."""
    wait_for_both_nodes(ray, tmp_path)
    ray.add_worker()
    whole = KeptBatchRun(ray, tmp_path / "whole", workers=3)
    assert whole.drive() == 0, whole.log()
    run = KeptBatchRun(ray, tmp_path / "run", workers=3, step_seconds=0.3)
    run.start()
    run.wait_until(lambda progress: progress.step >= 4)
    ray.remove(ray.workers[-1])
    run.wait_until(lambda progress: len(progress.resizes) == 1 and progress.step >= 8)
    ray.remove(ray.workers[-1])
    assert run.wait() == 0, run.log()
    assert run.sizes() == [(3, 2), (2, 1)]
    assert run.seen() == [Counter(range(SAMPLES))] * 2
    assert run.samples_of_steps() == whole.samples_of_steps()
    assert same(run, whole)


@pytest.mark.parametrize("ray", [1], indirect=True)
def test_a_loop_that_would_change_the_batch_is_refused_at_full_size(
    ray: LocalRay, tmp_path: Path
) -> None:
    run = KeptBatchRun(ray, tmp_path / "run", workers=2)
    run.contract = run.contract.model_copy(update={"function": "support.elastic_runs:train"})
    wait_for_both_nodes(ray, tmp_path)
    assert run.drive() == FAILED_EXIT_CODE, run.log()
    failure = run.progress().failure
    assert failure is not None
    assert "loop over session.microbatches(loader) of a ResumableDataLoader" in failure.message
    assert run.steps() == []
