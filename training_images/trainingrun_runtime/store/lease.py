"""The run's lease: objects in the bucket that give each driver a fencing token.

`lease/<fencing token>.json` is created conditionally, so each token has exactly one holder, and the
highest token holds the run. A store may give one token to two all the same, so the object says by a
nonce whose it is, which each driver reads after it has taken a token and before it renews it. A new
driver does not wait for the old one's lease to expire, which would cost time after every loss: it
takes the next token at once, and the old driver, if it still runs, finds the higher token and ends.
The names of all objects that a driver writes contain its token, so a superseded driver overwrites
nothing.

A lease also carries how often the run was lost, over all its attempts and drivers.
"""

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from trainingrun_protocol.wire import LATEST, Count, Duration, UnixTime, Wire

from .bucket import Bucket, StorageError
from .storage_errors import UnusableError

FOLDER = "lease"
"""Where leases are, below the run's folder."""
_TRIES = 20
"""Conflicts with concurrent takers before `take` fails."""


class Superseded(Exception):
    """A later attempt holds the run; this one must end without writing."""


class NotListedError(UnusableError):
    """A list of the run's folder lacks what is in it, as far as this run knows.

    The store's client takes HTML with status 200, as of a proxy's maintenance page, for an empty
    list. So an empty one counts only where it names what is always there: the lease.
    """


def not_listed(bucket: Bucket, name: str) -> NotListedError:
    """The error for an object or a folder below the run's folder."""
    return NotListedError(
        f"{bucket.at()} does not list {name}, which this run has written; find out whether it was "
        "deleted, or something else answers there, such as a proxy or another node's disk"
    )


class LossHistory(Wire):
    """The losses that cost steps, and the time in which they happened.

    Each driver writes it into its lease, where the next one reads it: a new driver follows a new
    attempt, and also a new head within one.
    """

    losses: Count = 0
    """Losses of any kind after which steps were done again. A preemption with notice is none: it
    makes a checkpoint first. Nor is a crash whose last step another rank has saved."""
    trained: Duration = 0
    """Seconds of training, in steps that counted or not and in stalls."""
    unsaved: bool = False
    """Whether steps were done that no committed checkpoint holds."""
    step: Count = 0
    """Last step of the driver that wrote it."""
    step_time: UnixTime | None = None
    """Unix time at which that step was done; none: it has done none."""
    ended: bool = False
    """Whether that driver has ended by itself: then it has written its own losses."""

    @classmethod
    def of_next_driver(cls, written: Any, saved_step: int = -1) -> "LossHistory":
        """From the lease of the former driver, which has ended or is lost.

        Args:
            written: The history in it; one that cannot be read counts as none.
            saved_step: Of the newest checkpoint, which may be newer than that lease; -1: not known.
        """
        try:
            former = cls.model_validate(written or {})
        except ValidationError:
            return cls()
        unsaved = former.unsaved and former.step > saved_step
        return cls(losses=former.losses + unsaved, trained=former.trained)

    def seconds_between_losses(self, assumed: float, trained: float = 0.0) -> float:
        """Mean seconds of training between two losses.

        Args:
            assumed: What it is taken for before the first loss, until the run has trained longer.
            trained: Seconds of training that came after this history.
        """
        sofar = self.trained + trained
        return sofar / self.losses if self.losses else max(sofar, assumed)


@dataclass(frozen=True)
class LostDriver:
    """The driver before this one, which does not say that it ended by itself.

    Within an attempt its head was lost. That of an earlier attempt may have ended while the store
    was away.
    """

    attempt: int
    step: int
    """The last step that it had written into its lease."""
    step_time: float
    """Unix time of that step, in seconds."""
    holder: str
    """Name of its pod."""

    @classmethod
    def of(cls, document: dict[str, Any]) -> "LostDriver | None":
        """From its lease; None: it has ended, or has done no step that is known."""
        try:
            history = LossHistory.model_validate(document.get("history") or {})
        except ValidationError:
            return None
        if history.ended or history.step_time is None:
            return None
        holder = str(document.get("holder") or "")
        return cls(attempt_of(document), history.step, history.step_time, holder)


@dataclass
class Lease:
    """One driver's hold on the run, from `take` until a higher fencing token exists."""

    bucket: Bucket
    """The run's folder."""
    fencing_token: int
    """Grows with each driver of the run, from 1."""
    attempt: int
    """The attempt that it belongs to."""
    holder: str
    """Name of the holder for diagnosis, such as the pod."""
    taken: float
    """Unix time at which it was taken, in seconds."""
    nonce: str
    """Makes this holder's object differ from every other taker's; see `Bucket.create`."""
    history: LossHistory = field(default_factory=LossHistory)
    """The run's losses, for the next driver: at first those of its earlier drivers."""
    lost: LostDriver | None = None
    """The driver before this one, if it does not say that it has ended."""

    @classmethod
    def take(cls, bucket: Bucket, attempt: int, holder: str, now: float) -> "Lease":
        """Take the run over.

        Args:
            bucket: The run's folder.
            attempt: The taker's attempt.
            holder: Name of the holder for diagnosis, such as the pod.
            now: Unix time in seconds.

        Raises:
            Superseded: A later attempt holds the run.
            StorageError: The store did not answer, or concurrent takers won every time.
        """
        for _ in range(_TRIES):
            newest = newest_fencing_token(bucket)
            former = document(bucket, newest)
            holding = attempt_of(former)
            if holding > attempt:
                raise Superseded(f"attempt {holding} holds the run; this is attempt {attempt}")
            history = LossHistory.of_next_driver(former.get("history"))
            nonce = uuid.uuid4().hex
            lost = LostDriver.of(former)
            lease = cls(bucket, newest + 1, attempt, holder, now, nonce, history, lost)
            key = document_key(FOLDER, lease.fencing_token)
            if bucket.create(key, lease._content(now)) and lease._is_own():
                return lease
        raise StorageError(f"{_TRIES} concurrent drivers took the lease of {bucket.root} in a row")

    def renew(self, now: float) -> None:
        """Write the history, and the time of renewal: no driver waits for a lease to expire.

        Raises:
            Superseded: Another driver has written this fencing token's object.
            StorageError: The store did not answer.
        """
        if not self._is_own():
            raise Superseded(f"another driver has the fencing token {self.fencing_token}, too")
        self.bucket.put(document_key(FOLDER, self.fencing_token), self._content(now))

    def require(self) -> None:
        """Raise unless this driver still holds the run.

        Raises:
            Superseded: Another driver has taken it over.
            StorageError: The store did not answer, so it is unknown. Training may go on, since the
                name of everything that is written contains the fencing token.
            NotListedError: It does not list this lease, so it is unknown, too. `renew` writes one
                again that was deleted.
        """
        newest = newest_fencing_token(self.bucket)
        if newest < self.fencing_token:
            raise not_listed(self.bucket, document_key(FOLDER, self.fencing_token))
        if newest > self.fencing_token:
            raise Superseded(f"driver {newest} holds the run; this is driver {self.fencing_token}")

    def _is_own(self) -> bool:
        """Whether the object of this fencing token is what this driver has written.

        One that is gone or unreadable is nobody else's.
        """
        found = document(self.bucket, self.fencing_token).get("nonce", self.nonce)
        return bool(found == self.nonce)

    def _content(self, now: float) -> bytes:
        return json.dumps(
            {
                "fencingToken": self.fencing_token,
                "attempt": self.attempt,
                "holder": self.holder,
                "taken": self.taken,
                "renewed": now,
                "nonce": self.nonce,
                "history": self.history.to_dict(),
            }
        ).encode()


def document_key(folder: str, fencing_token: int) -> str:
    """The place in the bucket of the one object that a driver writes to a folder."""
    return f"{folder}/{fencing_token:06d}.json"


def fencing_tokens(bucket: Bucket, folder: str) -> list[int]:
    """Of the drivers that have written their object to a folder."""
    names = [entry.key.rpartition("/")[2].removesuffix(".json") for entry in bucket.list(folder)]
    return [int(name) for name in names if name.isascii() and name.isdigit()]


def newest_fencing_token(bucket: Bucket) -> int:
    """The fencing token that holds the run; 0 before the first driver."""
    return max(fencing_tokens(bucket, FOLDER), default=0)


def require_empty(bucket: Bucket, folder: str, listed: Callable[[], object]) -> None:
    """Make sure that there is nothing in a folder of the run for which an empty list has come.

    Args:
        bucket: The run's folder.
        folder: Below it.
        listed: Lists that folder again: true, if something in it counts.

    Raises:
        NotListedError: There is something, or the answer to this has no lease either.
        StorageError: The store did not answer.
    """
    there = bucket.folders()
    if FOLDER not in there:
        raise not_listed(bucket, f"{FOLDER}/")
    # What somebody else has put there does not count.
    if folder in there and (listed() or not bucket.has_folder(folder)):
        raise not_listed(bucket, f"what is in {folder}/")


def document(bucket: Bucket, fencing_token: int) -> dict[str, Any]:
    """The lease with a fencing token; empty if it is free, or its object is unreadable.

    An unreadable lease does not block the run: the next driver takes a higher token.

    Raises:
        StorageError: The store did not answer.
    """
    content = bucket.get(document_key(FOLDER, fencing_token)) if fencing_token else None
    try:
        found: Any = json.loads(content or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def newest_document(bucket: Bucket) -> dict[str, Any]:
    """The newest lease; empty if there is none, or it is unreadable.

    Raises:
        StorageError: The store did not answer.
    """
    return document(bucket, newest_fencing_token(bucket))


def attempt_of(document: dict[str, Any]) -> int:
    """The attempt that holds a lease; 0 if it names none."""
    try:
        return int(document.get("attempt", 0))
    except (ValueError, TypeError, OverflowError):
        return 0


def time_of(document: dict[str, Any], field: str) -> float:
    """A Unix time of a lease, `taken` or `renewed`; 0 if it has none."""
    try:
        found = float(document.get(field, 0))
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return found if 0 <= found <= LATEST else 0.0
