"""Accelerate on a real Ray: what a kill and a notice cost with a session."""

from collections.abc import Callable

from support.framework_runs import Journal, disturb, undisturbed
from support.local_runs import Run

EPOCHS, STEPS = 7, 12
"""Of the example; STEPS are those of an epoch."""


def test_no_step_is_lost_and_no_bit_is_different_with_a_session(
    a_run: Callable[..., Run], journal: Journal
) -> None:
    whole = undisturbed(a_run("accelerate", epochs=EPOCHS), journal)
    assert journal.steps() == list(range(1, EPOCHS * STEPS + 1))
    assert float(str(whole("accuracy"))) > 0.5

    run = a_run("accelerate", epochs=EPOCHS, step_seconds=0.1)
    lost = disturb(run, journal, "accelerate, session", kill_at=17, notice_at=50)
    assert lost == (0, 0)
    assert sorted(journal.steps()) == list(range(1, EPOCHS * STEPS + 1))
    assert run.metrics()["weights_sha256"] == whole("weights_sha256")
