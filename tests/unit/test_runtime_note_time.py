"""How long the notes of the steps' ends may take."""

import time

import pytest

from trainingrun_runtime.survivors.last_step import ADVANCE_S, SHARE, NoteTime


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The CPU time of this thread, in seconds: `cpu[0] += 1` lets some pass."""
    now = [100.0]
    monkeypatch.setattr(time, "thread_time", lambda: now[0])
    return now


def note(notes: NoteTime, cpu: list[float], step_s: float, note_s: float) -> bool:
    """A step, and its note where there is time for it; whether there was."""
    notes.step_done(step_s)
    if notes.used_up:
        return False
    cpu[0] += note_s
    notes.noted()
    return True


def test_notes_take_no_larger_share_of_the_time_than_they_may(cpu: list[float]) -> None:
    notes = NoteTime()
    noted = sum(note(notes, cpu, step_s=0.1, note_s=0.001) for _ in range(10_000))
    assert SHARE * 1000 <= noted * 0.001 <= SHARE * 1000 + ADVANCE_S + 0.001


def test_the_first_steps_are_noted_before_there_is_any_time_to_have_a_share_of(
    cpu: list[float],
) -> None:
    notes = NoteTime()
    assert [note(notes, cpu, step_s=0.0, note_s=0.6 * ADVANCE_S) for _ in range(3)] == [
        True,
        True,
        False,
    ]


def test_what_the_step_itself_and_a_note_that_is_left_out_take_does_not_count(
    cpu: list[float],
) -> None:
    notes = NoteTime()
    for _ in range(10):
        cpu[0] += 1000  # the step
        notes.step_done(0.0)
        assert not notes.used_up
        cpu[0] += 1000  # left out for another reason: `noted` is not called
    assert note(notes, cpu, step_s=0.0, note_s=0.0)
