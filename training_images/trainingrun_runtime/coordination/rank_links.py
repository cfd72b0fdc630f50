"""Connections between all ranks, by which each sends every other one a few numbers.

A collective of gloo takes CPU time of the thread that trains, and more of gloo's own thread, which
delays training where each rank has one core. Here a rank writes to its sockets, and reads them when
it wants the result; no thread is needed. A rank sends as many messages as there are other ranks.
"""

import select
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from socket import socket

_HEADER = struct.Struct("!II")
_READ_AT_ONCE = 1 << 12
_LOOK_AGAIN_S = 0.05


class RankUnreachable(ConnectionError):
    """Another rank does not answer, or its connection is closed."""


class RankLinks:
    """The connections of this rank.

    One thread starts the rounds and waits for them; others may ask for what has arrived.

    Args:
        rank: of this process.
        links: to every other rank, by rank; non-blocking.
        timeout_s: seconds after which a rank that waits for another one fails.
    """

    def __init__(self, rank: int, links: Mapping[int, socket], timeout_s: float) -> None:
        self._rank, self._timeout_s = rank, timeout_s
        self._peers = {other: _Peer(link) for other, link in sorted(links.items())}
        self._lock = threading.Lock()
        self._rounds: dict[int, dict[int, Sequence[int]]] = {}
        self._started = 0

    def start(self, numbers: Sequence[int]) -> "Round":
        """Send these numbers to every other rank; all ranks call it equally often.

        Args:
            numbers: signed integers of 64 bits.
        """
        number, self._started = self._started, self._started + 1
        message = _HEADER.pack(number, len(numbers)) + struct.pack(f"!{len(numbers)}q", *numbers)
        with self._lock:
            by_rank = self._rounds.setdefault(number, {})  # others' may have arrived
            by_rank[self._rank] = tuple(numbers)
            for peer in self._peers.values():
                # An error is raised where the result is wanted: the others still get the numbers.
                peer.send(message)
        return Round(self, number, by_rank)

    def receive(self, number: int) -> bool:
        """Read what has arrived; whether every rank has sent its numbers of this round."""
        with self._lock:
            by_rank = self._rounds.get(number)
            if by_rank is None:  # waited for
                return True
            if len(by_rank) <= len(self._peers):
                for rank, peer in self._peers.items():
                    for of, numbers in peer.received():
                        self._rounds.setdefault(of, {})[rank] = numbers
            return len(by_rank) > len(self._peers)

    def wait(self, number: int) -> None:
        """Return once every rank has sent its numbers of this round.

        Raises:
            RankUnreachable: a rank is lost, or silent for too long.
        """
        deadline = time.monotonic() + self._timeout_s
        while not self.receive(number) or any(peer.unsent for peer in self._peers.values()):
            left = deadline - time.monotonic()
            self._raise_if_lost(number, out_of_time=left <= 0)
            self._poll(left)
        with self._lock:
            del self._rounds[number]

    def _raise_if_lost(self, number: int, *, out_of_time: bool) -> None:
        with self._lock:  # another thread may have read a rank's last numbers, and its end
            missing = [rank for rank in self._peers if rank not in self._rounds[number]]
            lost = [rank for rank in missing if self._peers[rank].lost is not None]
        if lost:
            raise RankUnreachable(f"rank {lost[0]} is lost: {self._peers[lost[0]].lost}")
        if out_of_time:
            silent = missing or [rank for rank, peer in self._peers.items() if peer.unsent]
            raise RankUnreachable(
                f"timed out waiting {self._timeout_s:g} s for rank {', '.join(map(str, silent))}"
            )

    def _poll(self, seconds: float) -> None:
        """Wait until something can be read, or sent where that is wanted."""
        ready = select.poll()
        for peer in self._peers.values():
            if peer.lost is None:
                wanted = select.POLLIN | (select.POLLOUT if peer.unsent else 0)
                ready.register(peer.link, wanted)
        # Another thread may read what this one waits for.
        ready.poll(1e3 * min(seconds, _LOOK_AGAIN_S))
        with self._lock:
            for peer in self._peers.values():
                peer.send()


@dataclass(frozen=True)
class Round:
    """The numbers that each rank sends once."""

    _links: RankLinks
    _number: int
    _by_rank: Mapping[int, Sequence[int]]

    def wait(self) -> list[Sequence[int]]:
        """Every rank's numbers, by rank; to be called once.

        Raises:
            RankUnreachable: a rank is lost, or silent for too long.
        """
        self._links.wait(self._number)
        return self._in_order()

    def known(self) -> list[Sequence[int]] | None:
        """The same without a wait, from any thread; None: not every rank's have arrived."""
        return self._in_order() if self._links.receive(self._number) else None

    def _in_order(self) -> list[Sequence[int]]:
        return [numbers for _, numbers in sorted(self._by_rank.items())]


@dataclass
class _Peer:
    """Another rank."""

    link: socket
    lost: str | None = None
    """Why nothing more is to be expected of it."""
    unsent: bytearray = field(default_factory=bytearray)
    _unread: bytearray = field(default_factory=bytearray)

    def send(self, message: bytes = b"") -> None:
        """Send what is unsent, and a message; an error is kept in `lost`."""
        self.unsent += message
        while self.unsent:
            try:
                del self.unsent[: self.link.send(self.unsent)]
            except BlockingIOError:  # far more is unread than what is sent in a step
                return
            except OSError as error:
                self.lost = self.lost or _reason(error)
                self.unsent.clear()

    def received(self) -> Iterator[tuple[int, Sequence[int]]]:
        """The messages that have arrived since: the number of the round, and the numbers."""
        self._read()
        while len(self._unread) >= _HEADER.size:
            number, count = _HEADER.unpack_from(self._unread)
            end = _HEADER.size + 8 * count
            if len(self._unread) < end:
                return
            numbers = struct.unpack_from(f"!{count}q", self._unread, _HEADER.size)
            del self._unread[:end]
            yield number, numbers

    def _read(self) -> None:
        data = b" " * _READ_AT_ONCE
        while len(data) == _READ_AT_ONCE:
            try:
                data = self.link.recv(_READ_AT_ONCE)
            except BlockingIOError:
                return
            except OSError as error:
                self.lost = self.lost or _reason(error)
                return
            self._unread += data
        if not data:
            self.lost = self.lost or "connection closed by peer"


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
