"""What a run that starts waits for: nodes, ranks, a restore, the first step."""

from dataclasses import dataclass

from trainingrun_protocol.progress import Progress


@dataclass(frozen=True, slots=True)
class Wait:
    """What a start waits for."""

    what: str
    """In words, after `waits for`."""
    done: int = 0
    """How many of them are there."""
    of: int | None = None
    """Of how many; None: it is no number of things."""

    def __str__(self) -> str:
        number = f" ({self.done} of {self.of})" if self.of is not None else ""
        return f"waits for {self.what}{number}"


def wait_of(
    progress: Progress | None, nodes: int, of_nodes: int, ranks: int, of_ranks: int
) -> Wait | None:
    """What a run waits for that is starting; None: its trials start one by one.

    Args:
        progress: The driver's document; None: it has written none yet.
        nodes: Of Ray that have started.
        of_nodes: How many there will be.
        ranks: That have imported the code and joined the others.
        of_ranks: How many there will be.
    """
    if nodes < of_nodes:
        return Wait("Ray's nodes", nodes, of_nodes)
    if progress is None:
        return Wait("the driver, which imports Ray Train")
    if progress.trials is not None:
        return None
    if progress.resumed_from_step is not None:
        return Wait("the first step")
    if ranks < of_ranks:
        return Wait("ranks, which form the process group and import the code", ranks, of_ranks)
    return Wait("the ranks' choice of a checkpoint")
