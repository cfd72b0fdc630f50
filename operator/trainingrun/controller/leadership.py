"""Of several operators one leads, by a Lease, and only that one writes.

No two clocks are compared: a candidate takes a Lease that it has seen unchanged for `LEASE_S` by
its own, and a leader writes for `WRITE_S`, which is less, after its last renewal. A Lease that is
absent is made without a holder and waited out like any other, since its leader does not know yet
that somebody has deleted it. Only what a leader itself has given back is taken at once.

The Kubernetes client's own election is not used: nearly all of it would have to be overridden.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any

from ..cluster.api_client import AlreadyExists, ClusterError, Conflict, Connection, NotFound
from ..cluster.resources import path
from ..cluster.server_clock import seconds_since_boot

log = logging.getLogger(__name__)

API_VERSION = "coordination.k8s.io/v1"
LEASE_S = 10
"""A leader that is silent for so long is replaced, at the latest `RETRY_S` and a second later."""
WRITE_S = 7
"""A leader writes for so long after its last renewal began: the rest of `LEASE_S` is for what is
under way, and for clocks that do not run equally fast."""
RETRY_S = 1.5
"""Between two tries to renew or to get the Lease."""
REQUEST_S = 2.0
"""Longest wait for the answer to one request about it."""
GIVEN_BACK_S = 1
"""The duration, in seconds, of a Lease without a holder that its leader has given back; one whose
holder somebody else has taken out has another."""


def given_back() -> dict[str, Any]:
    """The spec of a Lease that its leader gives back."""
    return {"leaseDurationSeconds": GIVEN_BACK_S, "renewTime": _wall_clock()}


class Leadership:
    """One candidate. `run` it; check `may_write_s` before each write."""

    def __init__(self, connection: Connection, namespace: str, name: str, identity: str) -> None:
        """Stands by until `run`.

        Args:
            connection: To the API server, of its own: no other request delays a renewal. Its
                `timeout_s` is `REQUEST_S`.
            namespace: Of the Lease.
            name: Of the Lease.
            identity: Of this process, unlike that of any other that ever was.
        """
        self._connection, self._identity = connection, identity
        self._metadata = {"name": name, "namespace": namespace}
        self._collection = path(API_VERSION, "Lease", namespace)
        self._path = path(API_VERSION, "Lease", namespace, name)
        self._about = f"Lease {namespace}/{name}"
        self._write_until = 0.0
        self._ours = False
        """Whether nobody else's Lease was seen since our last write, which may have arrived."""
        self._seen: object = None
        self._seen_at = 0.0
        self._last_error = ""

    @property
    def leads(self) -> bool:
        """Whether this process may write now."""
        return self.may_write_s() > 0

    def may_write_s(self) -> float:
        """Seconds from now for which no other process can hold the Lease; 0: not ours to write."""
        return max(0.0, self._write_until - seconds_since_boot())

    async def run(self, lead: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Stands by, leads, stands by again, until cancelled; then gives the Lease back.

        Args:
            lead: The work of a leader. Cancelled when the lead is lost, and waited for; it never
                ends by itself, but for an exception, which ends `run`.
        """
        try:
            log.info("standing by for %s", self._about)
            while True:
                while not self.leads:
                    await self._try()
                    await asyncio.sleep(0 if self.leads else RETRY_S)
                log.info("leading by %s", self._about)
                await self._one_term(lead)
                log.warning(
                    "lost %s: another operator leads, the API server is away, or this process was "
                    "stopped for a while; standing by again",
                    self._about,
                )
        finally:
            with contextlib.suppress(ClusterError, TimeoutError):
                async with asyncio.timeout(REQUEST_S):
                    await self._give_back()

    async def close(self) -> None:
        """Ends its connections."""
        await self._connection.close()

    async def _one_term(self, lead: Callable[[], Coroutine[Any, Any, None]]) -> None:
        work = asyncio.create_task(lead(), name="lead")
        keeping = asyncio.create_task(self._keep(), name="keep the Lease")
        try:
            await asyncio.wait({work, keeping}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                raise RuntimeError("the leader's work ended by itself")
            keeping.result()
        finally:
            for task in (work, keeping):
                task.cancel()
            await asyncio.gather(work, keeping, return_exceptions=True)

    async def _keep(self) -> None:
        """Renews until the right to write ends. A term in which it has ended, if only for a moment,
        is over: what was not written then is not lost, for the next term begins with every run.
        """
        while True:
            await asyncio.sleep(min(RETRY_S, self.may_write_s()))
            if not self.leads:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.may_write_s()):
                    await self._try()

    async def _try(self) -> None:
        """Takes or renews the Lease, if it is ours to have, and if the API server answers."""
        leads = self.leads
        try:
            lease = await self._read()
            if lease is None or not self._may_have(lease):
                self._write_until, self._ours = 0.0, False
                if lease is None:
                    await self._make()
                return
            began, self._ours = seconds_since_boot(), True
            await self._write(lease)
        except (AlreadyExists, Conflict):
            return  # another was quicker
        except ClusterError as error:
            self._log_once(error)
            return
        self._last_error, self._seen = "", None
        if leads and not self.leads:
            return  # too late for this term
        self._write_until = began + WRITE_S

    def _may_have(self, lease: Mapping[str, Any]) -> bool:
        spec = _spec(lease)
        holder, duration_s = spec.get("holderIdentity"), spec.get("leaseDurationSeconds") or 0
        if holder == self._identity and self._ours:
            return True
        if self.leads:
            return False
        if not holder and duration_s == GIVEN_BACK_S:
            return True
        seen = lease.get("metadata", {}).get("uid"), holder, spec.get("renewTime")
        if seen != self._seen:
            self._seen, self._seen_at = seen, seconds_since_boot()
        return seconds_since_boot() - self._seen_at > max(LEASE_S, duration_s)

    async def _read(self) -> dict[str, Any] | None:
        try:
            return await self._connection.request("GET", self._path)
        except NotFound:
            return None

    async def _make(self) -> None:
        """A Lease that nobody holds, and that nobody has given back."""
        made = {"apiVersion": API_VERSION, "kind": "Lease", "metadata": self._metadata}
        spec = {"leaseDurationSeconds": LEASE_S, "renewTime": _wall_clock()}
        await self._connection.create(self._collection, {**made, "spec": spec})

    async def _write(self, lease: Mapping[str, Any]) -> None:
        spec = _spec(lease)
        new = {
            **spec,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": LEASE_S,
            "renewTime": _wall_clock(),
        }
        if spec.get("holderIdentity") != self._identity:
            new["acquireTime"] = new["renewTime"]
            new["leaseTransitions"] = (spec.get("leaseTransitions") or 0) + 1
        # With the version that was read: if another has written since, or deleted it, this fails.
        await self._connection.request("PUT", self._path, {**lease, "spec": new})

    async def _give_back(self) -> None:
        """Gives the Lease back, if it is ours, so that the next one need not wait."""
        self._write_until = 0.0
        lease = await self._read() if self._ours else None
        if lease is not None and _spec(lease).get("holderIdentity") == self._identity:
            spec = {**_spec(lease), "holderIdentity": None, **given_back()}
            await self._connection.request("PUT", self._path, {**lease, "spec": spec})

    def _log_once(self, error: ClusterError) -> None:
        """Once per cause: it is tried again every second and a half."""
        if str(error) != self._last_error:
            log.warning("%s: %s; without it this operator only stands by", self._about, str(error))
        self._last_error = str(error)


def _spec(lease: Mapping[str, Any]) -> Mapping[str, Any]:
    return lease.get("spec") or {}


def _wall_clock() -> str:
    """For people who look at the Lease, and another text at each renewal."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
