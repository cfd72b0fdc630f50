"""Loops over steps that are left and begun again, also by a run that was interrupted meanwhile."""

from trainingrun_runtime.session.session_context import Loops


def test_a_loop_that_was_left_goes_on_when_it_is_begun_again() -> None:
    loops = Loops()
    loops.begin(100)
    loops.leave()
    assert loops.end() == 100
    assert loops.left == (100,)
    assert not loops.was_left(100)
    loops.begin(100)
    assert loops.left == ()


def test_a_resumed_run_does_not_begin_a_loop_again_that_it_had_left() -> None:
    resumed = Loops(left=(100,))
    assert resumed.was_left(100)
    assert not resumed.was_left(100)  # a second loop to the same end goes on with the steps
    assert resumed.left == (100,)  # still so in the next checkpoint
    assert not resumed.was_left(200)


def test_only_one_and_the_same_end_again_is_a_mistake() -> None:
    loops = Loops()
    assert not loops.already_reached(5)
    loops.reached(5)
    assert loops.already_reached(5)
    assert not loops.already_reached(10)
    loops.reached(10)
    assert not loops.already_reached(10)  # such as min(epoch * 5, 10)


def test_a_loop_of_no_steps_is_a_loop() -> None:
    loops = Loops()
    loops.begin(0)
    assert loops.inside
    assert loops.end() == 0
    assert loops.end() is None
    assert not loops.inside
