"""Which ranks the progress document shows, and what of each."""

from trainingrun_protocol.progress import MOST_RANKS, RankRow
from trainingrun_runtime.coordinator.rank_comparison import RankComparison, RankPlace
from trainingrun_runtime.progress.rank_measures import MemoryUse, RankTimes

GIB = 2**30


def rank_rows(
    times: dict[int, RankTimes], memory: dict[int, MemoryUse], places: dict[int, RankPlace]
) -> list[RankRow]:
    ranks = RankComparison(len(times))
    for rank, measured in times.items():
        ranks.times(rank, measured, 100.0)
    ranks.memory = memory
    rows: list[RankRow] = ranks.findings(places, 100.0)["ranks"]
    return rows


def test_each_rank_has_a_row_with_what_it_has_measured() -> None:
    times = {0: RankTimes(0.4, 0.2, None), 2: RankTimes(None, None, 0.5)}
    memory = {0: MemoryUse(GIB, 2 * GIB, 1000), 1: MemoryUse(GIB, None, None)}
    places = {0: RankPlace("", "a", "pod-0"), 1: RankPlace("", "", "")}
    assert rank_rows(times, memory, places) == [
        RankRow(
            rank=0,
            node="a",
            pod="pod-0",
            step_seconds=0.4,
            communication_wait_share=0.5,
            used_bytes=GIB,
            limit_bytes=2 * GIB,
            bytes_per_hour=1000,
        ),
        RankRow(rank=1, used_bytes=GIB),
        RankRow(rank=2, data_wait_share=0.5),
    ]


def test_of_many_ranks_the_slowest_the_waiting_and_the_fullest_are_shown() -> None:
    times = {rank: RankTimes(0.4, 0.3, 0.1) for rank in range(1000)}
    memory = {rank: MemoryUse(GIB, 8 * GIB, None) for rank in range(1000)}
    for slow in range(100, 110):
        times[slow] = RankTimes(0.4, 0.0, 0.0)
    for waiting in range(200, 210):
        times[waiting] = RankTimes(0.4, 0.3, 0.6)
    for full in range(300, 310):
        memory[full] = MemoryUse(7 * GIB, 8 * GIB, None)
    shown = [row.rank for row in rank_rows(times, memory, {})]
    assert shown == [*range(100, 106), *range(200, 205), *range(300, 305)]
    assert len(shown) == MOST_RANKS


def test_where_nothing_sets_ranks_apart_the_first_ones_are_shown() -> None:
    memory = {rank: MemoryUse(GIB, None, None) for rank in range(20)}
    assert [row.rank for row in rank_rows({}, memory, {})] == list(range(MOST_RANKS))
