"""Sends what `reconciling.status.notifications` has planned to the webhooks of runs.

Beside the reconciles, which it only tells how each notice has fared. A namespace has one delivery
at a time, and namespaces take turns, so that a receiver that is slow holds up its own namespace
alone.

The address is a tenant's choice, and the operator may reach what the tenant does not: so only hosts
that the platform has named are connected to, redirects are not followed, and of the answer only the
status counts. The address is a secret: no error's own text is told, for most hold a part of it.
"""

import asyncio
import base64
import binascii
import logging
import re
import ssl
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import aiohttp
from yarl import URL

from ..cluster.api_client import ClusterError, Forbidden, proxy_for
from ..cluster.object_store import Object, encoded
from ..reconciling.model import Delivery, DeliveryOutcome, Notice
from .fair_queue import FairQueue
from .work_queue import Key

log = logging.getLogger(__name__)

MOST_AT_ONCE = 32
"""Deliveries under way, each of another namespace."""
TIMEOUT_S = 10.0
"""Longest time to read an address, and then of a receiver to answer."""
PAUSE_S = 1.0
"""Between two of one namespace: receivers of chats take about one a second."""
RETRY_S = (5.0, 3600.0)
"""First and longest wait after a delivery that failed; it doubles with each."""
ANSWER_BYTES = 4096
"""Read ahead of an answer, of which nothing is used but its status."""
LONGEST_ADDRESS = 4096
"""Characters."""

ALLOWED_HOST = re.compile(
    r"(http://)?([*][.])?[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
    r"(:[1-9][0-9]{0,4})?"
)
"""An entry of `ReconcileSettings.notification_hosts`."""
_PORTS = {"https": 443, "http": 80}


class _Unsendable(Exception):
    """Nothing was sent; the text says why, in a clause for the user."""


def is_allowed(url: URL, allowed: Collection[str]) -> bool:
    """Whether the platform has named the host of an address, with its scheme and port."""
    return any(_is(url, entry) for entry in allowed)


def _is(url: URL, entry: str) -> bool:
    rest = entry.removeprefix("http://")
    scheme = "https" if rest == entry else "http"
    host, _, port = rest.partition(":")
    if url.scheme != scheme or url.port != (int(port) if port else _PORTS[scheme]):
        return False
    found = url.raw_host or ""
    return found.endswith(host[1:]) if host.startswith("*.") else found == host


@dataclass(slots=True, eq=False)
class _Lane:
    """The notice that a webhook of a run gets now."""

    key: Key
    notice: Notice
    wanted: bool = True
    delivery: Delivery | None = None
    timer: asyncio.TimerHandle | None = None

    def drop(self) -> None:
        """It is not tried again; a try that is under way ends by itself."""
        self.wanted = False
        if self.timer is not None:
            self.timer.cancel()


class Notifier:
    """Of a leader; a restart loses how deliveries have fared, and nothing that has to be sent."""

    def __init__(
        self,
        secret: Callable[[str, str], Awaitable[Object | None]],
        allowed_hosts: Sequence[str],
        *,
        on_change: Callable[[str, str], None] = lambda namespace, name: None,
        may_act: Callable[[], bool] = lambda: True,
    ):
        """Sends nothing until `want`. Made inside a running event loop; `close` it.

        Args:
            secret: The Secret of this namespace and name; None: there is none. It may raise
                ClusterError.
            allowed_hosts: See `ReconcileSettings.notification_hosts`.
            on_change: Called for a run of which a notice was tried.
            may_act: Called before one is sent.
        """
        self._secret, self._allowed_hosts = secret, tuple(allowed_hosts)
        self._on_change, self._may_act = on_change, may_act
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, force_close=True, ssl=ssl.create_default_context()
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=ANSWER_BYTES,
            headers={"User-Agent": "trainingrun-operator", "Accept-Encoding": "identity"},
        )
        self._lanes: dict[Key, dict[str, _Lane]] = {}
        self._queue: FairQueue[_Lane] = FairQueue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._resting: dict[str, asyncio.TimerHandle | None] = {}
        """Namespaces that have one under way (None), or had one just now."""

    def want(self, key: Key, notices: Sequence[Notice]) -> None:
        """Sends these, and of this run nothing else; the same again changes nothing."""
        former, lanes = self._lanes.pop(key, {}), dict[str, _Lane]()
        for notice in notices:
            lane = former.pop(notice.webhook, None)
            if lane is not None and lane.notice.id != notice.id:
                lane.drop()
                lane = None
            if lane is None:
                lane = _Lane(key, notice)
                self._put(lane)
            lane.notice = notice  # its format may have been changed
            lanes[notice.webhook] = lane
        for lane in former.values():
            lane.drop()
        if lanes:
            self._lanes[key] = lanes

    def deliveries(self, key: Key) -> Mapping[str, Delivery]:
        """How the wanted notices of a run fare that were tried, by webhook."""
        lanes = self._lanes.get(key, {})
        return {name: lane.delivery for name, lane in lanes.items() if lane.delivery is not None}

    def forget(self, key: Key) -> None:
        """The run is gone."""
        self.want(key, ())

    async def close(self) -> None:
        """Ends every task, timer and connection."""
        for key in list(self._lanes):
            self.forget(key)
        self._queue.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for timer in self._resting.values():
            if timer is not None:
                timer.cancel()
        await self._session.close()

    def _put(self, lane: _Lane) -> None:
        lane.timer = None
        self._queue.put(lane.key[0], lane)
        self._begin()

    def _begin(self) -> None:
        """Begins what may begin."""
        while len(self._tasks) < MOST_AT_ONCE:
            try:
                lane = self._queue.pop(but=self._resting)
            except IndexError:
                return
            if lane.wanted:
                self._resting[lane.key[0]] = None
                name = f"notify {'/'.join(lane.key)}"
                task = asyncio.create_task(self._deliver(lane), name=name)
                self._tasks.add(task)
                task.add_done_callback(self._ended)

    async def _deliver(self, lane: _Lane) -> None:
        outcome, problem = await self._try(lane)
        tries = lane.delivery.tries + 1 if lane.delivery else 1
        lane.delivery = Delivery(lane.notice.id, outcome, problem, tries)
        loop, namespace = asyncio.get_running_loop(), lane.key[0]
        if outcome == "failed" and lane.wanted:
            first, last = RETRY_S
            wait_s = min(last, first * 2.0 ** min(tries - 1, 30))
            lane.timer = loop.call_later(wait_s, self._put, lane)
        self._resting[namespace] = loop.call_later(PAUSE_S, self._rested, namespace)
        self._on_change(*lane.key)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._begin()

    def _rested(self, namespace: str) -> None:
        self._resting.pop(namespace, None)
        self._begin()

    async def _try(self, lane: _Lane) -> tuple[DeliveryOutcome, str]:
        """The outcome, and the problem."""
        notice = lane.notice
        try:
            url = await self._address(lane.key[0], notice)
            if not self._may_act():
                raise _Unsendable("this operator does not lead any more")
            async with asyncio.timeout(TIMEOUT_S):
                return _judged(await self._post(url, notice))
        except _Unsendable as error:
            return "failed", str(error)
        except TimeoutError:
            return "failed", f"its receiver does not answer within {TIMEOUT_S:g} s"
        except Forbidden:
            return "failed", (
                f"the operator's roles do not let it read Secret {notice.secret}; install its "
                "chart with rbac.create, or grant that"
            )
        except ClusterError:
            return "failed", f"the API server does not answer with Secret {notice.secret}"
        except aiohttp.ClientConnectorCertificateError:
            return "failed", (
                "the certificate of its receiver is not one for that host that the operator trusts"
            )
        except (aiohttp.ClientError, OSError):
            return "failed", "its receiver cannot be reached, or does not speak HTTP or TLS"
        except Exception as error:
            # Not its text, nor a traceback: either may hold the address.
            log.error("a notification was not sent: %s", type(error).__name__)
            return "failed", f"the operator has a fault ({type(error).__name__}); report it"

    async def _address(self, namespace: str, notice: Notice) -> URL:
        """Read anew for each try, and kept nowhere.

        Raises:
            _Unsendable: There is none, or none that may be used.
            ClusterError: It cannot be read.
        """
        try:
            async with asyncio.timeout(TIMEOUT_S):
                found = await self._secret(namespace, notice.secret)
        except TimeoutError:
            raise ClusterError(f"no answer within {TIMEOUT_S:g} s") from None
        if found is None:
            raise _Unsendable(f"there is no Secret {notice.secret}; create it")
        data = (found.get("data") or {}).get(notice.key)
        if data is None:
            raise _Unsendable(f"Secret {notice.secret} has no key {notice.key}; add it")
        try:
            url = URL(base64.b64decode(data).decode()[:LONGEST_ADDRESS].strip())
            is_whole = url.scheme in _PORTS and url.raw_host is not None
        except (binascii.Error, ValueError):
            is_whole = False
        if not is_whole:
            raise _Unsendable(
                f"key {notice.key} of Secret {notice.secret} holds no address; write one such as "
                "https://hooks.example.com/…"
            )
        if not is_allowed(url, self._allowed_hosts):
            raise _Unsendable(
                f"key {notice.key} of Secret {notice.secret} holds an address with a scheme, host "
                "or port to which this operator sends nothing; correct it, or have the operator's "
                "administrators add the host to notifications.allowedHosts of its chart"
            )
        return url

    async def _post(self, url: URL, notice: Notice) -> int:
        """The status of the receiver's answer."""
        headers = {"Content-Type": notice.content_type, "Idempotency-Key": notice.id}
        async with self._session.post(
            url,
            data=encoded(notice.body),
            headers=headers,
            allow_redirects=False,
            proxy=proxy_for(f"{url.scheme}://{url.raw_host}"),
        ) as answer:
            return answer.status


def _judged(status: int) -> tuple[DeliveryOutcome, str]:
    """What an answer's status means, as `_try` returns it."""
    if 200 <= status < 300:
        return "delivered", ""
    if status in (408, 429) or status >= 500:
        return "failed", f"its receiver answers {status}"
    if 300 <= status < 400:
        return "refused", (
            f"its receiver answers {status}, and redirects are not followed; write the final "
            "address into the Secret"
        )
    return "refused", f"its receiver answers {status}; correct the address in the Secret"
