"""`workers.globalBatch: keep`: whose batches make up one step of the optimizer."""

from dataclasses import dataclass


@dataclass(frozen=True)
class KeptBatch:
    """Each step takes what all of the run's workers take, however many ranks there are."""

    workers: int
    """All of the run."""
    ranks: int
    """Those of this worker group."""

    def shared_by(self, ranks: int) -> int:
        """How many there are at full size of the ranks of now that share the data.

        Ranks that share a matrix take the same samples, so fewer share the data.

        Raises:
            ValueError: not a whole number.
        """
        whole, rest = divmod(self.workers * ranks, self.ranks)
        if rest:
            raise ValueError(
                f"the loader is for {ranks} of {self.ranks} ranks, and with all "
                f"{self.workers} workers that would be no whole number, so workers.globalBatch "
                "cannot be keep; give all ranks data, or set globalBatch to scale"
            )
        return whole


_kept: KeptBatch | None = None


def keep(kept: KeptBatch | None) -> None:
    """Loaders of this process that are made from now on keep the batch; None: they do not."""
    global _kept
    _kept = kept


def kept() -> KeptBatch | None:
    """What loaders keep; None: each rank takes a batch in each step, with any number of ranks."""
    return _kept


def use_microbatches(what: str) -> str:
    """A sentence for code that takes data in another way.

    Args:
        what: it does, such as "this loop takes one batch in each step".
    """
    return (
        f"{what}, and with workers.globalBatch keep a step has several microbatches while fewer "
        "workers train; loop over session.microbatches(loader) of a ResumableDataLoader, or set "
        "globalBatch to scale"
    )
