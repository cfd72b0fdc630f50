"""The numbers of the e2e table: what counts as a lost step and as a second without training."""

import pytest

from e2e.report import (
    Step,
    gaps_in_numbers,
    normal_step_seconds,
    read_journals,
    seconds_without_training,
    steps_lost,
)


def steps(*pairs: tuple[float, int]) -> list[Step]:
    return [Step(time, number) for time, number in pairs]


RESUMED = steps((10, 1), (11, 2), (12, 3), (13, 4), (33, 3), (34, 4), (35, 5))


def test_journals_of_two_pods_are_merged_by_time():
    assert read_journals(["3.5 3\n4.5 4\n", "1.5 1\n2.5 2\n"]) == steps(
        (1.5, 1), (2.5, 2), (3.5, 3), (4.5, 4)
    )


@pytest.mark.parametrize(
    "torn",
    [
        pytest.param("2.5 1", id="no line end"),
        pytest.param("2.5", id="one number"),
        pytest.param("2.5 x\n", id="no number"),
        pytest.param("\x00\x00 7\n", id="NUL bytes"),
        pytest.param("1 2 3\n", id="three numbers"),
    ],
)
def test_a_line_cut_off_by_a_kill_is_left_out(torn):
    assert read_journals(["1.5 1\n" + torn]) == steps((1.5, 1))


def test_a_step_done_twice_is_one_lost_step():
    assert steps_lost(RESUMED) == 2


def test_a_step_done_three_times_is_two_lost_steps():
    assert steps_lost(steps((1, 1), (2, 1), (3, 1))) == 2


def test_nothing_is_lost_without_a_repetition():
    assert steps_lost(steps((1, 1), (2, 2), (3, 3))) == 0
    assert steps_lost([]) == 0


def test_the_pause_is_counted_less_one_normal_step():
    assert normal_step_seconds(RESUMED) == 1
    assert seconds_without_training(RESUMED, since=13.2) == 19


def test_a_disturbance_seen_only_steps_later_still_counts_its_pause():
    assert seconds_without_training(RESUMED, since=11.5) == 19


def test_pauses_before_the_disturbance_are_not_its_doing():
    early = steps((1, 1), (21, 2), (22, 3), (23, 4), (26, 5), (27, 6))
    assert seconds_without_training(early, since=23.5) == 2


def test_training_that_never_came_back_is_no_short_pause():
    with pytest.raises(ValueError, match="no step was done after"):
        seconds_without_training(RESUMED, since=40)


def test_steps_that_were_skipped_are_named():
    assert gaps_in_numbers(steps((1, 1), (2, 2), (3, 5))) == [3, 4]
    assert gaps_in_numbers(RESUMED) == []
