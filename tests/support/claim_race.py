"""A process that races another one for the objects of a claim."""

from multiprocessing.synchronize import Barrier

from trainingrun_runtime.store.bucket import Bucket

_together: Barrier


def begin(together: Barrier) -> None:
    """Of a pool of two processes."""
    global _together
    _together = together


def wins(contender: tuple[str, int]) -> set[int]:
    """Which of so many objects this contender creates; the other one tries at the same moment."""
    name, number = contender
    bucket = Bucket.open("pvc://runs/digits")
    won = set()
    for key in range(number):
        _together.wait(60)
        if bucket.create(f"lease/{key}", name.encode()):
            won.add(key)
    return won
