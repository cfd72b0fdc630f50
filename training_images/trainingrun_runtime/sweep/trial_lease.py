"""A trial's lease: the run's own fencing token, in the trial's folder."""

from dataclasses import dataclass

from ..store import lease
from ..store.bucket import Bucket
from ..store.lease import Lease
from ..store.loss_history import LossHistory


@dataclass
class TrialLease(Lease):
    """Held as long as the driver holds the run.

    Its object in the trial's folder has the trial's losses, and is what a result in that folder is
    valid by.
    """

    run: Lease | None = None
    """The driver's lease of the run."""

    @classmethod
    def of(cls, run: Lease, bucket: Bucket) -> "TrialLease":
        """Take a trial over for the driver that holds the run.

        Raises:
            Superseded: A later driver holds the run.
            StorageError: The store did not answer.
        """
        run.require()
        former = lease.newest_document(bucket)
        found = cls(
            bucket=bucket,
            fencing_token=run.fencing_token,
            attempt=run.attempt,
            holder=run.holder,
            taken=run.taken,
            nonce=run.nonce,
            history=LossHistory.of_next_driver(former.get("history")),
            run=run,
        )
        found.renew(run.taken)
        return found

    def held(self) -> bool:
        """Whether the driver still holds the run.

        Raises:
            StorageError: The store did not answer.
        """
        return self.run is None or self.run.held()

    def require(self) -> None:
        """Raise unless the driver still holds the run.

        Raises:
            Superseded: Another driver has taken it over.
            StorageError: The store did not answer.
        """
        if self.run is not None:
            self.run.require()
