"""When a checkpoint is due: `checkpoints.everySeconds` after the last one, at the end of a loop
earlier.
"""

LOOP_END_S = 10.0
"""Seconds after which a checkpoint is due at the end of a loop or an epoch, because what follows,
such as an evaluation, may take long."""


def at_loop_end_s(every_seconds: float, save_seconds: float) -> float:
    """Seconds after the last checkpoint at which one is due at the end of a loop or an epoch.

    Args:
        every_seconds: `checkpoints.everySeconds`.
        save_seconds: That a checkpoint takes, its upload included; it is made for a tenth of the
            time at most.
    """
    return min(every_seconds, max(LOOP_END_S, 10 * save_seconds))
