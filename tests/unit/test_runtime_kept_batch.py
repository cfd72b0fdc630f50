"""`workers.globalBatch: keep`: fewer ranks do the steps of all of them, in microbatches."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.parallel import DistributedDataParallel

from trainingrun_runtime import ResumableDataLoader
from trainingrun_runtime.checkpoints.stateful_objects import NotRestorable
from trainingrun_runtime.data import kept_batch
from trainingrun_runtime.data.drawn_batches import DrawnBatches
from trainingrun_runtime.data.kept_batch import KeptBatch
from trainingrun_runtime.data.position import Batch, Dealing, Microbatch, Position, batches_from
from trainingrun_runtime.known_errors.failure_causes import TooManyWorkers
from trainingrun_runtime.session import microbatches
from trainingrun_runtime.session.session_context import SavedObjects

ROOT = Path(__file__).parents[2]
WHOLE = st.integers(1, 9)


@pytest.fixture(autouse=True)
def no_kept_batch() -> Iterator[None]:
    yield
    kept_batch.keep(None)


def steps(
    position: Position, whole: int, ranks: int, batch_size: int, drop_last: bool = False
) -> Iterator[tuple[Position, Dealing, list[tuple[Batch, ...]]]]:
    """For each step: where it begins, how it is dealt, and its microbatches of all ranks."""
    dealing = Dealing(batch_size, ranks, drop_last, whole)
    of_ranks = batches_from(position, dealing, range(ranks))
    while taken := dealing.taken(position.left):
        yield position, dealing, [next(of_ranks) for _ in range(dealing.parts(taken))]
        position = position.after(dealing)
    assert next(of_ranks, None) is None


@given(
    samples=st.integers(9, 300),
    batch_size=st.integers(1, 7),
    whole=WHOLE,
    sizes=st.lists(st.integers(1, 9), min_size=3, max_size=3),
    done=st.lists(st.integers(0, 12), min_size=2, max_size=2),
    drop_last=st.booleans(),
)
def test_three_sizes_in_one_epoch_do_the_steps_of_all_workers(
    samples: int, batch_size: int, whole: int, sizes: list[int], done: list[int], drop_last: bool
) -> None:
    position = Position(seed=3, shuffle=True, samples=samples)
    undisturbed = [
        {int(i) for of_ranks in rounds for batch in of_ranks for i in batch.indices}
        for _, _, rounds in steps(position, whole, whole, batch_size, drop_last)
    ]
    seen: Counter[int] = Counter()
    found = []
    for ranks, most in zip(sizes, [*done, samples], strict=True):
        ranks = min(ranks, whole)
        for number, (at, dealing, rounds) in enumerate(
            steps(position, whole, ranks, batch_size, drop_last)
        ):
            if number == most:
                break
            here = [
                int(i)
                for of_ranks in rounds
                for batch in of_ranks
                if not batch.repeats
                for i in batch.indices
            ]
            sizes_here = {len(batch.indices) for of_ranks in rounds for batch in of_ranks}
            assert 1 <= min(sizes_here) <= max(sizes_here) <= batch_size, "fits in memory"
            assert max(sizes_here) - min(sizes_here) <= 1
            seen.update(here)
            found.append(set(here))
            position = at.after(dealing)
    assert found == undisturbed
    assert set(seen.values()) <= {1}
    assert drop_last or seen == Counter(range(samples))


@given(
    samples=st.integers(9, 200), batch_size=st.integers(1, 7), ranks=WHOLE, times=st.integers(1, 4)
)
def test_ranks_that_divide_all_take_the_very_batches_of_all(
    samples: int, batch_size: int, ranks: int, times: int
) -> None:
    """With their random numbers."""
    whole = ranks * times
    position = Position(seed=3, shuffle=True, samples=max(samples, whole))
    of_all = steps(position, whole, whole, batch_size)
    for (_, _, full_rounds), (_, _, rounds) in zip(
        of_all, steps(position, whole, ranks, batch_size), strict=True
    ):
        full = [batch for rank in range(whole) for batch in (r[rank] for r in full_rounds)]
        by_rank = [batch for rank in range(ranks) for batch in (r[rank] for r in rounds)]
        assert [b.indices.tolist() for b in by_rank] == [b.indices.tolist() for b in full]
        assert [b.number for b in by_rank] == [b.number for b in full]


@given(
    taken=st.integers(9, 200), batch_size=st.integers(1, 40), whole=WHOLE, ranks=st.integers(1, 9)
)
def test_each_sample_counts_alike_in_the_average_over_the_ranks(
    taken: int, batch_size: int, whole: int, ranks: int
) -> None:
    dealing = Dealing(batch_size, min(ranks, whole), False, whole)
    counted = Counter[int]()
    for rank in range(dealing.ranks):
        for part in range(dealing.parts(taken)):
            share, weight = dealing.share(taken, rank, part), dealing.weight(taken, rank, part)
            if weight == 0:
                assert batch_size == 1, "a sample of another microbatch, which counts there"
                continue
            of_a_sample = weight / (share.stop - share.start)
            assert of_a_sample / dealing.ranks == pytest.approx(1 / taken)
            counted.update(range(taken)[share])
    assert counted == Counter(range(taken))


@pytest.mark.parametrize(
    ("workers", "ranks", "microbatches_of_ranks"),
    [
        (8, 6, [1, 1, 2, 1, 1, 2]),
        (8, 5, [1, 2, 1, 2, 2]),
        (8, 3, [2, 3, 3]),
        (8, 4, [2, 2, 2, 2]),
        (8, 8, [1] * 8),
    ],
)
def test_with_a_batch_of_one_no_rank_takes_two_samples_at_once(
    workers: int, ranks: int, microbatches_of_ranks: list[int]
) -> None:
    """A model that fills the memory with one sample trains on when workers are lost."""
    dealing = Dealing(1, ranks, drop_last=False, whole=workers)
    places = [(rank, part) for rank in range(ranks) for part in range(dealing.parts(workers))]
    shares = [dealing.share(workers, *place) for place in places]
    assert {share.stop - share.start for share in shares} == {1}
    counting = Counter(rank for rank, part in places if dealing.weight(workers, rank, part))
    assert [counting[rank] for rank in range(ranks)] == microbatches_of_ranks


def test_a_loader_of_one_sample_says_which_microbatch_counts_nothing() -> None:
    kept(3)
    found = [drawn(a_loader(3, rank, samples=8, batch_size=1)) for rank in range(3)]
    taken = [
        [(m.data.tolist(), m.weight, m.last) for m in steps[0]] for steps in found
    ]  # of the first step, which takes four samples
    assert taken == [
        [([0], 0.0, False), ([0], 0.75, True)],
        [([1], 0.75, False), ([2], 0.0, True)],
        [([2], 0.75, False), ([3], 0.75, True)],
    ]


def a_loader(ranks: int, rank: int = 0, samples: int = 34, **options: Any) -> ResumableDataLoader:
    options = {"batch_size": 2, "shuffle": False, **options}
    return ResumableDataLoader(range(samples), rank=rank, world_size=ranks, **options)


def kept(ranks: int, workers: int = 4) -> None:
    kept_batch.keep(KeptBatch(workers, ranks))


def drawn(loader: ResumableDataLoader) -> list[list[Microbatch]]:
    """Those of an epoch, step by step."""
    found: list[list[Microbatch]] = [[]]
    for microbatch in loader.microbatches():
        found[-1].append(microbatch)
        if microbatch.last:
            found.append([])
    return found[:-1]


def test_a_loader_of_two_ranks_hands_out_the_batches_of_four_in_as_many_steps() -> None:
    kept(4)
    assert len(a_loader(4)) == 5
    kept(2)
    loader = a_loader(2, rank=1)
    assert len(loader) == 5, "so that a scheduler made of it is the same"
    steps = drawn(loader)
    assert [[m.data.tolist() for m in step] for step in steps][:2] == [
        [[4, 5], [6, 7]], [[12, 13], [14, 15]]
    ]  # fmt: skip
    assert [(m.weight, m.place) for m in steps[0]] == [(0.5, 2), (0.5, 3)]
    assert [len(step) for step in steps] == [2] * 5


def test_a_position_moves_with_the_last_microbatch_of_a_step_alone() -> None:
    kept(2)
    loader = a_loader(2)
    begin = loader.state_dict()
    taken = loader.microbatches()
    assert not next(taken).last
    assert (loader.state_dict(), loader.within_step) == (begin, True)
    assert next(taken).last
    assert (loader.state_dict()["consumed"], loader.within_step) == (8, False)


def test_a_step_that_leaves_microbatches_is_refused_as_a_resume_would_see_all_again() -> None:
    kept(2)
    loader = a_loader(2)
    batches = DrawnBatches({"loader": loader})
    batches.step_begins()
    of_step = microbatches.of_step(batches.microbatches(loader), [], lambda place: None)
    next(of_step)
    with pytest.raises(RuntimeError, match="before it has taken all of its microbatches of loader"):
        batches.step_done()
    assert len(list(of_step)) == 1
    batches.step_done()


@pytest.mark.parametrize("ranks", [4, 2])
def test_a_loop_that_takes_one_batch_in_each_step_is_refused_at_each_size(ranks: int) -> None:
    kept(ranks)
    loader = a_loader(ranks)
    with pytest.raises(ValueError, match=r"one batch after the other, and with workers.globalBatc"):
        iter(loader)
    SavedObjects({"loader": loader}).require_microbatches(0)
    with pytest.raises(NotRestorable, match="this session has no ResumableDataLoader, and with"):
        SavedObjects({"model": torch.nn.Linear(1, 1)}).require_microbatches(0)
    other: Any = torch.utils.data.DataLoader([1, 2])
    with pytest.raises(TypeError, match="takes a ResumableDataLoader, and this is a DataLoader"):
        DrawnBatches({}).microbatches(other)


def test_a_batch_that_the_code_divides_among_the_ranks_itself_is_refused() -> None:
    kept(4)
    state = a_loader(4, batch_size=2).state_dict()
    kept(2)
    same = a_loader(2, batch_size=2)
    same.load_state_dict(state)
    same.require_same_batch()
    other = a_loader(2, batch_size=4)
    other.load_state_dict(state)
    with pytest.raises(ValueError, match="had 8 samples and would have 16 now, and workers"):
        other.require_same_batch()


def test_a_position_without_a_kept_batch_is_continued_with_one_and_the_other_way() -> None:
    scaled = a_loader(4).state_dict()
    kept(2)
    keeping = a_loader(2)
    keeping.load_state_dict(scaled)
    keeping.require_same_batch()
    state = keeping.state_dict()
    kept_batch.keep(None)
    again = a_loader(2)
    again.load_state_dict(state)
    again.require_same_batch()
    assert again.state_dict() == scaled


def test_ranks_that_share_a_matrix_share_their_samples_also_at_full_size() -> None:
    kept(ranks=4, workers=8)
    assert a_loader(2, samples=99).dealing.whole == 4
    kept(ranks=6, workers=8)
    assert a_loader(3, samples=99).dealing.whole == 4
    with pytest.raises(ValueError, match="the loader is for 1 of 6 ranks, and with all 8 workers"):
        a_loader(1)


def test_an_epochs_end_of_another_run_is_dealt_to_the_ranks_there_are() -> None:
    """Left by a run with fewer workers: all of this one would have had no sample each."""
    state = {**a_loader(1, samples=11).state_dict(), "consumed": 8}
    kept(2)
    loader = a_loader(2, samples=11)
    loader.load_state_dict(state)
    assert [[m.data.tolist() for m in step] for step in drawn(loader)] == [[[8, 9]]]
    kept(4)
    with pytest.raises(TooManyWorkers, match="3 samples are left in this epoch for 4 ranks"):
        a_loader(4, samples=11).load_state_dict(state)


def test_other_microbatches_than_those_of_all_workers_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    microbatches.log_uneven(Dealing(64, 4, False, 8))
    assert not caplog.records
    microbatches.log_uneven(Dealing(64, 6, False, 8))
    assert caplog.messages == [
        "each step has 512 samples as with 8 ranks; 6 ranks take them in 2 microbatches of at most "
        "43 each, which are other ones than with all ranks, since 8 is no multiple of 6"
    ]


def test_two_ranks_or_one_end_with_the_weights_of_three_but_for_the_order_of_addition() -> None:
    roots = os.pathsep.join(str(ROOT / root) for root in ("operator", "training_images"))
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / "kept_batch_ranks.py")],
        env={**os.environ, "PYTHONPATH": roots},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])  # PyTorch 2.9's Gloo prints there, too
    assert [of["steps"] for of in found.values()] == [2 * 27] * 3
    assert all(of["apart"] < 1e-14 for of in found.values()), "of weights of about 1, in 64 bits"


class Exchanges:
    """Counts how often a model exchanges gradients."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self.number = 0
        model.register_comm_hook(None, self._exchange)

    def _exchange(self, _: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        self.number += 1
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done


def test_gradients_are_those_of_the_whole_step_and_exchanged_once(tmp_path: Path) -> None:
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = DistributedDataParallel(torch.nn.Linear(1, 1).double())
        exchanges = Exchanges(model)
        kept_batch.keep(KeptBatch(workers=3, ranks=1))
        loader = ResumableDataLoader(torch.arange(7, dtype=torch.float64), 2, seed=1)
        places: list[int] = []
        of_step = microbatches.of_step(loader.microbatches(), [model], places.append)
        for batch, weight in of_step:
            (model(batch[:, None]).square().mean() * weight).backward()
        assert places == [0, 1, 2]
        assert exchanges.number == 1
        found = model.module.weight.grad.clone()
        model.zero_grad()
        whole = first_step()
        model(whole[:, None]).square().mean().backward()
        assert torch.allclose(found, model.module.weight.grad, rtol=1e-14)
    finally:
        dist.destroy_process_group()


def first_step() -> torch.Tensor:
    """The samples of the epoch's first step."""
    position = Position(seed=1, shuffle=True, samples=7)
    (batches, *_) = ([*r] for _, _, r in steps(position, 3, 3, 2))
    found = [float(i) for of_ranks in batches for b in of_ranks for i in b.indices]
    return torch.tensor(found, dtype=torch.float64)
