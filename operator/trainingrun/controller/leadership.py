"""Of several operators one leads, by a Lease: the client library's election, made safe to act by.

The library (kubernetes 37, `kubernetes.aio.leaderelection`) decides who may hold the Lease. What it
lacks is added here, from outside:

- it counts by the wall clock, which can jump: here both the end of another's Lease and our own
  right to write are counted by a clock that only goes forward;
- a leader that is cut off holds its lead until its last renewal fails, and one that was
  stopped for a while until it checks again: `may_write_s` ends before the Lease could be another's;
- only answers of the API server count as failures, so that a broken connection would end the
  election, and a request without an answer would hang for ever;
- it does not give the Lease back at the end, so that the next one would wait for it to run out;
- its times are local ones marked as UTC, and missing where their microseconds happen to be 0;
- cancelled, it leaves the work that it has started behind.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration, V1Lease, V1LeaseSpec
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.leaderelection.electionconfig import Config
from kubernetes.aio.leaderelection.leaderelection import LeaderElection
from kubernetes.aio.leaderelection.leaderelectionrecord import LeaderElectionRecord
from kubernetes.aio.leaderelection.resourcelock.leaselock import LeaseLock

log = logging.getLogger(__name__)
# It logs every failed try with its traceback; what matters is logged here, once.
logging.getLogger("kubernetes.aio.leaderelection").setLevel(logging.CRITICAL)

LEASE_S = 10
"""A leader that is silent for so long is replaced, at the latest `RETRY_S` and a second later."""
WRITE_S = 7
"""A leader writes for so long after its last renewal began: the rest of `LEASE_S` is for what is
under way, and for clocks that do not run equally fast."""
RETRY_S = 1.5
"""Between two tries to renew or to get the Lease."""
REQUEST_S = 2.0
"""Longest wait for the answer to one of them."""

_NEVER_S = 10 * 365 * 86400
"""After which the library itself would take another's Lease: it compares two times of the wall
clock, between which that may have jumped. `_SafeLease.get` says when a Lease has run out."""

_NO_ANSWER = (aiohttp.ClientError, TimeoutError, OSError)


def now_s() -> float:
    """Seconds by a clock that only goes forward, also while the process or machine is stopped."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Leadership:
    """One candidate. `run` it; check `may_write_s` before each write."""

    def __init__(
        self, configuration: Configuration, namespace: str, name: str, identity: str
    ) -> None:
        """Made inside the event loop that will run it; stands by until `run`.

        Args:
            configuration: The API server's address and credentials.
            namespace: Of the Lease.
            name: Of the Lease.
            identity: Of this process, unlike that of any other that ever was.
        """
        self._client = ApiClient(configuration)
        self._lease = _SafeLease(name, namespace, identity, self._client)
        self._about = f"Lease {namespace}/{name}"

    @property
    def leads(self) -> bool:
        """Whether this process may write now."""
        return self.may_write_s() > 0

    def may_write_s(self) -> float:
        """Seconds from now for which no other process can hold the Lease; 0: not ours to write."""
        return max(0.0, self._lease.write_until - now_s())

    async def run(self, lead: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Stands by, leads, stands by again, until cancelled; then gives the Lease back.

        Args:
            lead: The work of a leader. Cancelled when the lead is lost, and waited for; it never
                ends by itself, but for an exception, which ends `run`.
        """
        try:
            log.info("standing by for %s", self._about)
            while True:
                await self._one_term(lead)
                log.warning(
                    "lost %s: another operator leads, or the API server is away; standing by again",
                    self._about,
                )
        finally:
            with contextlib.suppress(ApiException, *_NO_ANSWER):
                async with asyncio.timeout(REQUEST_S):
                    await self._lease.release()

    async def close(self) -> None:
        """Ends its connections."""
        await self._client.close()

    async def _one_term(self, lead: Callable[[], Coroutine[Any, Any, None]]) -> None:
        elected = asyncio.Event()
        config = Config(
            self._lease, _NEVER_S, WRITE_S, RETRY_S, _then(elected.set), _then(lambda: None)
        )
        election = asyncio.create_task(LeaderElection(config).run(), name="election")
        waiting = asyncio.create_task(elected.wait(), name="elected")
        work: asyncio.Task[Any] | None = None
        try:
            await asyncio.wait({election, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if elected.is_set():
                log.info("leading by %s", self._about)
                work = asyncio.create_task(lead(), name="lead")
                await asyncio.wait({election, work}, return_when=asyncio.FIRST_COMPLETED)
                if work.done():
                    work.result()
                    raise RuntimeError("the leader's work ended by itself")
            election.result()
        finally:
            tasks = [task for task in (work, waiting, election) if task is not None]
            for task in tasks:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


class _SafeLease(LeaseLock):  # type: ignore[misc]  # the library has no types
    """The library's lock, which says by our own clock whose the Lease is."""

    def __init__(self, name: str, namespace: str, identity: str, client: ApiClient) -> None:
        super().__init__(name, namespace, identity, client)
        self.write_until = 0.0
        self._seen: tuple[object, ...] = ()
        self._seen_at = 0.0
        self._last_error = ""

    async def get(
        self, name: str, namespace: str
    ) -> tuple[bool, LeaderElectionRecord] | tuple[bool, Exception] | tuple[bool, None]:
        try:
            async with asyncio.timeout(REQUEST_S):
                _, record = await super().get(name, namespace)
        except _NO_ANSWER as error:
            record = ApiException(reason=f"no answer ({type(error).__name__})")
        if isinstance(record, ApiException):
            if record.status != 404:  # it is made next
                self._log_once("cannot be read", record)
            return False, record
        if not isinstance(record, LeaderElectionRecord) or not record.holder_identity:
            return True, None  # nobody's: the library takes it
        if record.holder_identity == self.identity:
            return True, record
        self.write_until = 0.0
        seen = (record.holder_identity, record.acquire_time, record.renew_time)
        if seen != self._seen:
            self._seen, self._seen_at = seen, now_s()
        if now_s() - self._seen_at > float(record.lease_duration or LEASE_S):
            return True, None  # run out: the library takes it
        # A time that is always another makes the library count from now, whatever its clock does.
        record.renew_time = f"{now_s()} on our clock"
        return True, record

    async def create(
        self, name: str, namespace: str, election_record: LeaderElectionRecord
    ) -> bool:
        body = V1Lease(metadata={"name": name}, spec=self.update_lease(election_record))
        return await self._write(self.api_instance.create_namespaced_lease, namespace, body)

    async def update(self, name: str, namespace: str, updated_record: LeaderElectionRecord) -> bool:
        lease = self.lease_reference
        if lease is None:
            return False
        lease.spec = self.update_lease(updated_record, lease.spec)
        # With the version that was read: if another has written since, this fails.
        return await self._write(self.api_instance.replace_namespaced_lease, name, namespace, lease)

    async def release(self) -> None:
        """Gives the Lease back, if it is ours, so that the next one need not wait."""
        if self.write_until == 0.0:
            return
        self.write_until = 0.0
        lease = await self.api_instance.read_namespaced_lease(self.name, self.namespace)
        if lease.spec is not None and lease.spec.holder_identity == self.identity:
            lease.spec.holder_identity = None
            await self.api_instance.replace_namespaced_lease(self.name, self.namespace, lease)

    def update_lease(
        self, record: LeaderElectionRecord, current_spec: V1LeaseSpec | None = None
    ) -> V1LeaseSpec:
        spec = super().update_lease(record, current_spec)
        spec.lease_duration_seconds = LEASE_S
        return spec

    def election_record(self, lease: V1Lease) -> LeaderElectionRecord:
        record = super().election_record(lease)
        if lease.spec is not None:
            record.acquire_time = str(lease.spec.acquire_time)
            record.renew_time = str(lease.spec.renew_time)
        return record

    def time_str_to_iso(self, str_time: str | None) -> str | None:
        try:
            given = datetime.fromisoformat(str_time or "")
        except ValueError:
            given = datetime.now(UTC)
        return given.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")

    async def _write(self, call: Callable[..., Awaitable[object]], *arguments: object) -> bool:
        began = now_s()
        try:
            async with asyncio.timeout(REQUEST_S):
                await call(*arguments)
        except ApiException as error:
            if error.status != 409:  # another was quicker
                self._log_once("cannot be written", error)
            return False
        except _NO_ANSWER as error:
            self._log_once("cannot be written", ApiException(reason=type(error).__name__))
            return False
        self.write_until = began + WRITE_S
        self._last_error = ""
        return True

    def _log_once(self, what: str, error: ApiException) -> None:
        """Once per cause: it is tried again every second and a half."""
        about = f"Lease {self.namespace}/{self.name} {what}: {error.status or ''} {error.reason}"
        if about != self._last_error:
            log.warning("%s; without it this operator only stands by", about)
        self._last_error = about


def _then(do: Callable[[], None]) -> Callable[[], Any]:
    async def done() -> None:
        do()

    return done
