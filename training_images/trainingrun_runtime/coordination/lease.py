"""Who may write: the run's lease, a row of objects in the bucket.

`lease/<epoch>.json` is created by whoever takes the run over, and creation is conditional, so each
epoch has exactly one holder. The highest epoch holds the run. A new driver does not wait for the
old one to be late, which would cost time after every loss: it takes the next epoch at once, and the
old one, should it still live, sees that and stops itself. Whatever an epoch writes is named by the
epoch, so even a driver that has not looked yet overwrites nothing.
"""

import json
import uuid
from dataclasses import dataclass
from typing import Any

from ..checkpoints.bucket import Bucket, StorageError

FOLDER = "lease"
"""Where leases are, below the run's folder."""
_TRIES = 20
"""Takers at once that one taker stands before it gives up."""


class Superseded(Exception):
    """A later attempt holds the run; this one must end without writing."""


@dataclass
class Lease:
    """One driver's hold on the run, from `take` until a higher epoch appears."""

    bucket: Bucket
    """The run's folder."""
    epoch: int
    """This driver's number, from 1."""
    attempt: int
    """The attempt that it belongs to."""
    holder: str
    """Whom to name when somebody asks, such as the pod."""
    taken: float
    """Unix time at which it was taken, in seconds."""
    nonce: str
    """Makes this holder's object differ from every other taker's; see `Bucket.create`."""

    @classmethod
    def take(cls, bucket: Bucket, attempt: int, holder: str, now: float) -> "Lease":
        """Take the run over.

        Args:
            bucket: The run's folder.
            attempt: The taker's attempt.
            holder: Whom to name when somebody asks, such as the pod.
            now: Unix time in seconds.

        Raises:
            Superseded: A later attempt holds the run.
            StorageError: The store did not answer, or others were faster every time.
        """
        for _ in range(_TRIES):
            newest = highest(bucket)
            holding = _attempt_of(bucket, newest)
            if holding > attempt:
                raise Superseded(f"attempt {holding} holds the run; this is attempt {attempt}")
            lease = cls(bucket, newest + 1, attempt, holder, now, uuid.uuid4().hex)
            if bucket.create(_key(lease.epoch), lease._content(now)):
                return lease
        raise StorageError(f"{_TRIES} others took the lease of {bucket.root} in a row")

    def renew(self, now: float) -> None:
        """Say that this driver lives. It only informs: nobody waits for a lease to expire.

        Raises:
            StorageError: The store did not answer.
        """
        self.bucket.put(_key(self.epoch), self._content(now))

    def held(self) -> bool:
        """Whether nobody has taken the run over since.

        Raises:
            StorageError: The store did not answer, so nobody knows. Training may go on, since
                everything is written under this epoch's own name.
        """
        return highest(self.bucket) <= self.epoch

    def require(self) -> None:
        """Go on only while nobody has taken the run over since.

        Raises:
            Superseded: Somebody has.
            StorageError: The store did not answer, so nobody knows.
        """
        newest = highest(self.bucket)
        if newest > self.epoch:
            raise Superseded(f"driver {newest} holds the run; this is driver {self.epoch}")

    def _content(self, now: float) -> bytes:
        return json.dumps(
            {
                "epoch": self.epoch,
                "attempt": self.attempt,
                "holder": self.holder,
                "taken": self.taken,
                "renewed": now,
                "nonce": self.nonce,
            }
        ).encode()


def _key(epoch: int) -> str:
    return f"{FOLDER}/{epoch:06d}.json"


def highest(bucket: Bucket) -> int:
    """The epoch that holds the run; 0 if nobody ever did."""
    names = [entry.key.rpartition("/")[2].removesuffix(".json") for entry in bucket.list(FOLDER)]
    return max((int(name) for name in names if name.isascii() and name.isdigit()), default=0)


def _attempt_of(bucket: Bucket, epoch: int) -> int:
    """The attempt that holds an epoch; 0 if it is free, or its object says nothing sensible.

    An unreadable lease must not lock the run out for ever, and need not: its epoch is passed.
    """
    content = bucket.get(_key(epoch)) if epoch else None
    try:
        document: Any = json.loads(content or b"{}")
        return int(document.get("attempt", 0))
    except (ValueError, TypeError, AttributeError):
        return 0
