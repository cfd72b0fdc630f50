"""How ranks connect to each other: all of them, and nobody else."""

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import repeat

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


def test_each_rank_is_connected_to_each_other_one() -> None:
    assert on_ranks(4, lambda rank: links_to_all(rank, 4, 30.0)) == expected(4)


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(20), bytes(16) + (1).to_bytes(4)]
)
def test_a_stranger_is_not_taken_for_a_rank(store: dist.Store, said: bytes) -> None:
    """One that reaches the port before the ranks do, and does not know their token."""

    def connect(rank: int) -> dict[int, socket.socket]:
        if rank == 1:
            at = "trainingrun/links/0/rank 0"
            store.wait([at], timedelta(seconds=30))
            port, _, host = store.get(at).decode().partition(" ")
            with socket.create_connection((host, int(port))) as stranger:
                stranger.send(said)
        return links_to_all(rank, 2, 30.0)

    assert on_ranks(2, connect) == expected(2)


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
