"""How ranks connect to each other: all of them, and nobody else."""

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count, repeat
from typing import Any

import pytest
import torch.distributed as dist

from trainingrun_runtime.coordination import link_setup
from trainingrun_runtime.coordination.link_setup import links_to_all
from trainingrun_runtime.coordination.rank_links import RankUnreachable


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> dist.Store:
    """Of the ranks, which are threads here, and make their links once."""
    store = dist.HashStore()
    monkeypatch.setattr(link_setup, "_default_store", lambda: store)
    monkeypatch.setattr(link_setup, "_made", repeat(0))
    return store


def on_ranks(ranks: int, call: Callable[[int], dict[int, socket.socket]]) -> list[dict[int, str]]:
    """What each rank reads from each other one, after each has sent its number and the other's."""
    with ThreadPoolExecutor(ranks) as threads:
        links = list(threads.map(call, range(ranks)))
    for rank, others in enumerate(links):
        for other, link in others.items():
            link.send(f"{rank} to {other}".encode())
    found = []
    for others in links:
        for link in others.values():
            link.settimeout(10)
        found.append({other: link.recv(100).decode() for other, link in sorted(others.items())})
    for others in links:
        for link in others.values():
            link.close()
    return found


def expected(ranks: int) -> list[dict[int, str]]:
    return [
        {other: f"{other} to {rank}" for other in range(ranks) if other != rank}
        for rank in range(ranks)
    ]


def stranger_at_rank_0(store: dist.Store) -> socket.socket:
    """A connection of somebody who knows the port alone."""
    at = "trainingrun/links/0/rank 0"
    store.wait([at], timedelta(seconds=30))
    port, _, host = store.get(at).decode().partition(" ")
    return socket.create_connection((host, int(port)))


def test_each_rank_is_connected_to_each_other_one() -> None:
    assert on_ranks(4, lambda rank: links_to_all(rank, 4, 30.0)) == expected(4)


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(20), bytes(16) + (1).to_bytes(4)]
)
def test_a_stranger_is_not_taken_for_a_rank(store: dist.Store, said: bytes) -> None:
    """One that reaches the port before the ranks do, and does not know their token."""

    def connect(rank: int) -> dict[int, socket.socket]:
        if rank == 1:
            with stranger_at_rank_0(store) as stranger:
                stranger.send(said)
        return links_to_all(rank, 2, 30.0)

    assert on_ranks(2, connect) == expected(2)


def test_a_rank_may_come_later_than_others_say_who_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 2 reaches rank 0, and does not yet know where rank 1 is."""
    monkeypatch.setattr(link_setup, "_HELLO_S", 0.2)
    whose, heard = link_setup._whose, threading.Event()

    def then_rank_1_begins(*of: Any) -> int | None:
        said = whose(*of)
        heard.set()
        return said

    monkeypatch.setattr(link_setup, "_whose", then_rank_1_begins)

    def connect(rank: int) -> dict[int, socket.socket]:
        assert rank != 1 or heard.wait(30), "rank 0 has not listened to rank 2"
        return links_to_all(rank, 3, 10.0)

    assert on_ranks(3, connect) == expected(3)


def said_until_closed(stranger: socket.socket, said: bytes, every_s: float) -> int:
    """How often a stranger can say something to a rank until that one closes the connection."""
    stranger.settimeout(every_s)
    for times in count():
        try:
            stranger.sendall(said)
            if not stranger.recv(1):
                return times
        except TimeoutError:
            continue
        except ConnectionError:
            return times
    raise AssertionError


@pytest.mark.parametrize("said", [b"", b"x"], ids=["silent", "slow"])
def test_a_stranger_holds_up_the_ranks_for_as_long_as_a_hello_may_take(
    store: dist.Store, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(link_setup, "_HELLO_S", 0.5)
    spoken: list[int] = []

    def connect(rank: int) -> dict[int, socket.socket]:
        if rank == 2:
            with stranger_at_rank_0(store) as stranger:
                spoken.append(said_until_closed(stranger, said, 0.1))
        return links_to_all(rank, 3, 30.0)

    assert on_ranks(3, connect) == expected(3)
    assert spoken[0] < 12


def test_a_silent_stranger_does_not_prolong_the_wait_for_a_rank(store: dist.Store) -> None:
    with ThreadPoolExecutor(1) as threads:
        began = time.monotonic()
        rank = threads.submit(links_to_all, 0, 2, 1.0)
        with stranger_at_rank_0(store):
            error = rank.exception(30)
    assert "timed out waiting 1 s for rank 1 to connect" in str(error)
    assert time.monotonic() - began < link_setup._HELLO_S


def test_a_rank_that_gives_up_closes_its_connections(store: dist.Store) -> None:
    """So that a rank which has all of its own learns of it in its first exchange."""
    with socket.create_server(("127.0.0.1", 0)) as rank_0:
        store.set("trainingrun/links/0/token", "0" * 16)
        store.set("trainingrun/links/0/rank 0", f"{rank_0.getsockname()[1]} 127.0.0.1")
        with pytest.raises(RankUnreachable, match="for rank 2 to connect") as met:
            links_to_all(1, 3, 0.2)
        link, _ = rank_0.accept()
    with link:
        link.settimeout(10)
        assert link.recv(100) == b"0" * 16 + (1).to_bytes(4)
        assert link.recv(1) == b"", met  # which holds what the rank had opened


def test_a_rank_that_cannot_listen_is_no_error_of_the_application(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_setup, "_own_address", lambda _: "192.0.2.1")  # no node has it
    with pytest.raises(RankUnreachable, match=r"rank 0 cannot be connected to the others: .*; ran"):
        links_to_all(0, 2, 5.0)


def test_a_rank_that_sends_no_packet_is_given_up_after_half_a_minute() -> None:
    """Linux gives the connection up, whether or not the node has acknowledged all that was sent."""
    with ThreadPoolExecutor(2) as threads:
        links = threads.map(lambda rank: links_to_all(rank, 2, 30.0), range(2))
        for link in [link for others in links for link in others.values()]:
            with link:
                assert link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                if hasattr(socket, "TCP_USER_TIMEOUT"):
                    idle, every, times, sent_ms = (
                        link.getsockopt(socket.IPPROTO_TCP, option)
                        for option in (
                            socket.TCP_KEEPIDLE,
                            socket.TCP_KEEPINTVL,
                            socket.TCP_KEEPCNT,
                            socket.TCP_USER_TIMEOUT,
                        )
                    )
                    assert idle + times * every == sent_ms / 1000 == link_setup._SILENCE_S


def test_a_rank_that_does_not_come_is_named() -> None:
    with pytest.raises(RankUnreachable, match=r"timed out waiting 0\.2 s for rank 1 to connect"):
        links_to_all(0, 2, 0.2)


def test_a_rank_that_is_gone_already_is_named(store: dist.Store) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    store.set("trainingrun/links/0/token", "0" * 16)
    store.set("trainingrun/links/0/rank 0", f"{port} 127.0.0.1")
    with pytest.raises(RankUnreachable, match=r"rank 0 is not reached at 127.0.0.1.*refused"):
        links_to_all(1, 2, 5.0)


def test_a_rank_whose_address_is_not_known_in_time_is_named(store: dist.Store) -> None:
    store.set("trainingrun/links/0/token", "0" * 16)
    with pytest.raises(RankUnreachable, match="rank 0 is not known to the other ranks"):
        links_to_all(1, 2, 0.2)
