"""Which rank the others wait for, and what the progress document shows of the ranks."""

import pytest

from trainingrun_protocol.progress import MOST_RANKS, RankRow
from trainingrun_runtime.coordinator.rank_comparison import (
    PATIENCE_S,
    RankComparison,
    RankPlace,
    SlowNodes,
)
from trainingrun_runtime.progress.rank_measures import MemoryUse, RankTimes

PLACES = {rank: RankPlace("", node, "") for rank, node in enumerate("abcd")}
GIB = 2**30


def compared(waits_s: list[float | None], step_s: float = 0.4) -> RankComparison:
    """Ranks that wait that long in steps of the same length, as in synchronous training."""
    ranks = RankComparison(len(waits_s))
    for now in (100.0, 100.0 + PATIENCE_S):
        for rank, wait_s in enumerate(waits_s):
            ranks.times(rank, RankTimes(step_s, wait_s, None), now)
    return ranks


def test_the_rank_that_waits_least_is_named_with_its_node() -> None:
    found = compared([0.2, 0.21, 0.19, 0.04]).findings(PLACES, 100.0 + PATIENCE_S)
    assert found["warnings"] == [
        "rank 3 on node d is slow: a step takes it 0.360 s of its own, 1.8 times the others' "
        "median of 0.200 s, and they wait for it; see what else runs on that node, and whether its "
        "data are more or farther away"
    ]
    assert (found["step_seconds"], found["communication_wait_rank"]) == (0.4, 1)
    assert found["communication_wait_share"] == pytest.approx(0.21 / 0.4)
    assert (found["slowest_rank"].rank, found["slowest_rank"].node) == (3, "d")


@pytest.mark.parametrize(
    ("data_s", "cause"),
    [
        pytest.param(
            [0.01, 0.3],
            "it waits for data for 0.300 s of that, the others' median is 0.010 s: see whether its "
            "data are more or farther away",
            id="its data are late",
        ),
        pytest.param(
            [0.1, 0.12],
            "it waits for data for only 0.120 s of that, and the rest takes longer: see what else "
            "runs on that node",
            id="data are no cause",
        ),
        pytest.param(
            [None, 0.3],
            "see what else runs on that node, and whether its data are more or farther away",
            id="not known of all ranks",
        ),
    ],
)
def test_it_is_said_whether_data_make_a_rank_slow(data_s: list[float | None], cause: str) -> None:
    ranks = RankComparison(2)
    for now in (100.0, 100.0 + PATIENCE_S):
        ranks.times(0, RankTimes(0.4, 0.3, None, data_s[0]), now)
        ranks.times(1, RankTimes(0.4, 0.0, None, data_s[1]), now)
    [warning] = ranks.findings(PLACES, 100.0 + PATIENCE_S)["warnings"]
    assert warning == (
        "rank 1 on node b is slow: a step takes it 0.400 s of its own, 4.0 times the others' "
        f"median of 0.100 s, and they wait for it; {cause}"
    )


def test_of_two_ranks_the_other_one_is_the_measure() -> None:
    found = compared([0.01, 0.3]).findings({}, 100.0 + PATIENCE_S)
    assert found["warnings"][0].startswith("rank 0 is slow: a step takes it 0.390 s")


@pytest.mark.parametrize(
    "waits_s",
    [
        pytest.param([0.1, 0.12, 0.08, 0.1], id="about as fast"),
        pytest.param([0.1, 0.1, 0.1, 0.02], id="a little slower"),
        pytest.param([0.39, 0.39, 0.39, 0.37], id="the difference is small in the step"),
        pytest.param([0.2, 0.2, 0.2, None], id="one rank is not known"),
        pytest.param([0.2], id="alone"),
    ],
)
def test_no_rank_is_named_where_none_is_slow(waits_s: list[float | None]) -> None:
    assert compared(waits_s).findings(PLACES, 1000.0)["warnings"] == []


def test_a_rank_is_named_only_once_it_has_been_slow_for_a_while() -> None:
    ranks = compared([0.2, 0.01])
    assert ranks.findings(PLACES, 99.0 + PATIENCE_S)["warnings"] == []
    assert ranks.findings(PLACES, 100.0 + PATIENCE_S)["warnings"]
    ranks.times(1, RankTimes(0.4, 0.2, None), 101.0 + PATIENCE_S)  # as fast as the other one
    ranks.times(1, RankTimes(0.4, 0.01, None), 102.0 + PATIENCE_S)
    assert ranks.findings(PLACES, 103.0 + PATIENCE_S)["warnings"] == []


def test_nothing_is_claimed_before_anything_is_measured() -> None:
    found = RankComparison(2).findings(PLACES, 0.0)
    assert (found.pop("warnings"), found.pop("ranks")) == ([], [])
    assert set(found.values()) == {None}


def test_memory_that_is_full_within_the_hour_is_said() -> None:
    ranks = RankComparison(2)
    ranks.memory[0] = MemoryUse(used=7 * GIB, limit=8 * GIB, per_hour=None)
    assert ranks.findings(PLACES, 0.0)["memory"].rank == 0
    ranks.memory[1] = MemoryUse(used=3 * GIB, limit=8 * GIB, per_hour=10 * GIB)
    found = ranks.findings(PLACES, 0.0)
    assert (found["memory"].rank, found["memory"].bytes_per_hour) == (1, 10 * GIB)
    assert found["warnings"] == [
        "rank 1 on node b runs out of memory in 0.5 h: its container holds 3.0 GiB of 8.0 GiB and "
        "10.0 GiB more each hour; see what the code keeps from step to step, as a list of losses "
        "without .item(), or raise workers.resources.memory"
    ]
    ranks.memory[1] = MemoryUse(used=3 * GIB, limit=8 * GIB, per_hour=GIB)
    assert ranks.findings(PLACES, 0.0)["warnings"] == []


def test_the_rank_that_waits_longest_for_data_is_named() -> None:
    ranks = RankComparison(4)
    assert set(ranks.data_wait().values()) == {None}
    for rank, share in ((0, 0.1), (3, 0.4), (2, 0.4), (1, 0.9), (1, 0.2)):
        ranks.times(rank, RankTimes(0.4, None, share), 100.0)
    assert ranks.data_wait() == {"data_wait_share": 0.4, "data_wait_rank": 2}


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


def named(*found: tuple[int | None, str, float]) -> list[str | None]:
    """What is said after each of these: the slow rank, its node, and seconds."""
    nodes = SlowNodes()
    return [nodes.note(rank, node, seconds) for rank, node, seconds in found]


NONE = (None, "", 0.0)
LEAVE = "rank 1 was the slow one there 3 times"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        pytest.param([(1, "a", 0), NONE, (1, "a", 90), NONE, (1, "a", 200)], LEAVE, id="thrice"),
        pytest.param([(1, "a", 0), (1, "a", 600), (1, "a", 1200)], LEAVE, id="for long"),
        pytest.param([(1, "a", 0), (1, "a", 599), (1, "a", 1199)], None, id="not for so long"),
        pytest.param([(1, "a", 0), NONE, (1, "a", 90)], None, id="twice"),
        pytest.param([(0, "a", 0), (2, "a", 9), (1, "a", 19)], LEAVE, id="any rank there"),
        pytest.param(
            [(1, "b", 0), (1, "a", 9), NONE, (1, "a", 90), NONE, (1, "a", 200)],
            None,
            id="a rank that is slow elsewhere too",
        ),
        pytest.param([(1, "", 0), NONE, (1, "", 9), NONE, (1, "", 19)], None, id="no node known"),
    ],
)
def test_a_node_is_left_where_a_rank_was_slow_three_times(
    found: list[tuple[int | None, str, float]], said: str | None
) -> None:
    assert named(*found)[-1] == said
    assert named(*found)[:-1] == [None] * (len(found) - 1)


def test_a_node_is_left_once() -> None:
    said = named(*[(1, "a", 600.0 * number) for number in range(10)])
    assert [sentence for sentence in said if sentence] == [LEAVE]


def test_a_rank_that_waits_for_data_is_not_slow_by_itself() -> None:
    for data_s, rank in (([0.01, 0.3], None), ([0.1, 0.12], 1), ([None, 0.3], None)):
        ranks = RankComparison(2)
        for now in (100.0, 100.0 + PATIENCE_S):
            ranks.times(0, RankTimes(0.4, 0.3, None, data_s[0]), now)
            ranks.times(1, RankTimes(0.4, 0.0, None, data_s[1]), now)
        assert ranks.slow_by_itself(100.0 + PATIENCE_S) == rank
        assert ranks.slow_by_itself(99.0 + PATIENCE_S) is None
